// What the tests of answers share: a usage, a pipeline with a tool, golden files.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "serve/api/answer_parts.h"
#include "serve/tag_tokenizer.h"
#include "serve/text/pipeline.h"

namespace tandem::serve {

inline const Usage kUsage{.prompt_tokens = 12,
                          .completion_tokens = 30,
                          .cached_tokens = 4,
                          .reasoning_tokens = 3,
                          .accepted_tokens = 9,
                          .rejected_tokens = 2};

inline void expect_golden(const std::string& name, const std::string& found) {
  std::ifstream file(std::string(TANDEM_TEST_DATA) + "/../golden/api/" + name, std::ios::binary);
  std::stringstream expected;
  expected << file.rdbuf();
  if (expected.str() == found) return;
  const std::string path = ::testing::TempDir() + name;
  std::ofstream(path, std::ios::binary) << found;
  ADD_FAILURE() << name << " differs; what was found is in " << path;
}

inline std::unique_ptr<TextPipeline> pipeline(bool thinking, std::vector<std::string> stops) {
  PipelineOptions options;
  options.tokenizer = &tag_tokenizer();
  options.markers = Markers::of(tag_tokenizer());
  options.starts_thinking = thinking;
  options.stops = std::move(stops);
  options.tools = std::make_shared<const ToolSet>(Json::parse(
      R"([{"type":"function","function":{"name":"write","parameters":{"properties":{"text":{"type":"string"}}}}}])"));
  auto made = TextPipeline::create(std::move(options));
  EXPECT_TRUE(made.ok());
  return *std::move(made);
}

}  // namespace tandem::serve
