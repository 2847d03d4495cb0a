// Numbers as scripts read them back.
#include "cli/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tandem {
namespace {

TEST(JsonNumber, ASinglePrecisionNumberComesBackWithNoDigitTooMany) {
  EXPECT_EQ(json_number(0.1f).dump(), "0.1");
  EXPECT_EQ(json_number(-3.2010467f).dump(), "-3.2010467");
  for (const float x : {1e-38f, 1.0f / 3, 16777217.0f, std::numeric_limits<float>::max()}) {
    EXPECT_EQ(Json::parse(json_number(x).dump()).get<float>(), x);
  }
}

TEST(JsonNumber, WhatJsonCannotSayHasAStandIn) {
  EXPECT_EQ(json_number(-std::numeric_limits<float>::infinity()).dump(), "-9999.0");
  EXPECT_EQ(json_number(std::nanf("")).dump(), "null");
}

TEST(JsonLine, BytesThatAreNoTextDoNotStopIt) {
  EXPECT_EQ(json_line({{"file", "caf\xe9"}}), "{\"file\":\"caf\xef\xbf\xbd\"}\n");
}

}  // namespace
}  // namespace tandem
