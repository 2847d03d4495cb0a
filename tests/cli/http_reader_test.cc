#include "cli/bench/http_reader.h"

#include <gtest/gtest.h>

#include <random>

namespace tandem::bench {
namespace {

const std::string kChunked =
    "HTTP/1.1 100 Continue\r\n\r\n"
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: Chunked\r\n\r\n"
    "5\r\nhello\r\nA;name=value\r\n, to you\r\n\r\n0\r\nTrailer: x\r\n\r\n";

struct Read {
  ResponseReader reader;
  std::string body;
  bool ok = true;
};

// In pieces of random sizes.
Read read(const std::string& bytes, std::mt19937& random) {
  Read r;
  for (size_t at = 0; at < bytes.size();) {
    const size_t n = 1 + random() % 7;
    r.ok = r.ok && r.reader.feed(std::string_view(bytes).substr(at, n), r.body);
    at += n;
  }
  return r;
}

TEST(ResponseReader, ChunkedBodiesAreTheSameHoweverTheyAreCut) {
  std::mt19937 random(1);
  for (int i = 0; i < 500; ++i) {
    const Read r = read(kChunked, random);
    ASSERT_TRUE(r.ok && r.reader.done());
    EXPECT_EQ(r.reader.status(), 200);
    EXPECT_EQ(r.body, "hello, to you\r\n");
    EXPECT_TRUE(r.reader.keeps_alive());
  }
}

TEST(ResponseReader, SizedBodiesEndWithTheirLastByte) {
  std::mt19937 random(2);
  const Read r = read("HTTP/1.1 429 Too Many\r\ncontent-length: 3\r\nConnection: close\r\n\r\nabc", random);
  EXPECT_TRUE(r.ok && r.reader.done());
  EXPECT_EQ(r.reader.status(), 429);
  EXPECT_EQ(r.body, "abc");
  EXPECT_FALSE(r.reader.keeps_alive());
  EXPECT_TRUE(read("HTTP/1.1 204 None\r\n\r\n", random).reader.done());
  EXPECT_TRUE(read("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", random).reader.done());
}

TEST(ResponseReader, ABodyWithoutSizeEndsWithTheConnection) {
  std::mt19937 random(3);
  Read r = read("HTTP/1.0 200 OK\n\nall of it", random);
  EXPECT_FALSE(r.reader.done());
  EXPECT_TRUE(r.reader.feed_end());
  EXPECT_TRUE(r.reader.done());
  EXPECT_EQ(r.body, "all of it");
  EXPECT_FALSE(r.reader.keeps_alive());
}

TEST(ResponseReader, AnEndAnywhereBeforeTheLastByteIsSeen) {
  for (size_t n = 0; n < kChunked.size(); ++n) {
    ResponseReader reader;
    std::string body;
    ASSERT_TRUE(reader.feed(std::string_view(kChunked).substr(0, n), body));
    EXPECT_FALSE(reader.done());
    EXPECT_FALSE(reader.feed_end());
  }
}

TEST(ResponseReader, WhatIsNotHttpIsRefused) {
  std::mt19937 random(4);
  for (const char* bytes : {"SSH-2.0-x\r\n", "HTTP/1.1 abc\r\n", "HTTP/1.1 200 OK\r\nno colon\r\n",
                            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n",
                            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
                            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n"}) {
    EXPECT_FALSE(read(bytes, random).ok) << bytes;
  }
}

std::vector<std::string> events(const std::string& bytes, std::mt19937& random) {
  SseReader reader;
  std::vector<std::string> found;
  for (size_t at = 0; at < bytes.size();) {
    const size_t n = 1 + random() % 5;
    reader.feed(std::string_view(bytes).substr(at, n), [&](SseReader::Kind kind, std::string_view text) {
      found.push_back((kind == SseReader::Kind::comment ? "#" : "") + std::string(text));
    });
    at += n;
  }
  return found;
}

TEST(SseReader, EventsAndCommentsAreTheSameHoweverTheyAreCut) {
  std::mt19937 random(5);
  const std::string stream =
      ": generation_stats {\"a\": 1}\n\nevent: x\ndata: one\nid: 7\n\ndata:two\ndata:  lines\n\n\n\ndata\n\n"
      "data: [DONE]\n\ndata: never ended\n";
  const std::vector<std::string> expected{"#generation_stats {\"a\": 1}", "one", "two\n lines", "", "[DONE]"};
  for (const std::string end : {"\n", "\r\n", "\r"}) {
    std::string bytes;
    for (const char c : stream) bytes += c == '\n' ? end : std::string(1, c);
    for (int i = 0; i < 300; ++i) ASSERT_EQ(events(bytes, random), expected);
  }
}

}  // namespace
}  // namespace tandem::bench
