// Which bytes are which requests, and which are refused before anybody acts on them.
#include "serve/http/request_reader.h"

#include <gtest/gtest.h>

#include <random>

namespace tandem::http {
namespace {

using Step = RequestReader::Step;

RequestLimits small_limits() { return {.request_line = 64, .head = 256, .body = 32}; }

struct Read {
  std::vector<HttpRequest> requests;
  int status = 0;  // of the refusal
  std::string message;
};

// All of `bytes`, cut after every `piece`-th byte.
Read read_all(std::string_view bytes, size_t piece = 1 << 20, RequestLimits limits = small_limits()) {
  RequestReader reader(limits);
  Read out;
  while (true) {
    const Step step = reader.next();
    if (step == Step::kRequest) out.requests.push_back(reader.take());
    if (step == Step::kRefused) {
      out.status = reader.refusal().status;
      out.message = reader.refusal().message;
      return out;
    }
    if (step != Step::kNeedMore) continue;
    if (bytes.empty()) return out;
    reader.append(bytes.substr(0, piece));
    bytes.remove_prefix(std::min(piece, bytes.size()));
  }
}

const std::string kHost = "Host: x\r\n";

TEST(RequestReader, finds_method_target_headers_and_body) {
  const Read read = read_all(
      "POST /v1/chat?a=1&b=%20 HTTP/1.1\r\nHOST: x\r\nX-Thing:  two words \r\nContent-Length: "
      "5\r\n\r\nhello");
  ASSERT_EQ(read.requests.size(), 1u) << read.message;
  const HttpRequest& request = read.requests[0];
  EXPECT_EQ(request.method, "POST");
  EXPECT_EQ(request.path, "/v1/chat");
  EXPECT_EQ(request.query, "a=1&b=%20");
  EXPECT_EQ(request.header("x-thing"), "two words");
  EXPECT_EQ(request.header("absent"), "");
  EXPECT_EQ(request.body, "hello");
}

TEST(RequestReader, the_cut_of_the_bytes_does_not_matter) {
  const std::string bytes =
      "GET /a HTTP/1.1\r\n" + kHost + "\r\n\r\nPOST /b HTTP/1.1\r\n" + kHost +
      "Transfer-Encoding: chunked\r\n\r\n3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: t\r\n\r\n" +
      "PUT /c HTTP/1.1\r\n" + kHost + "Content-Length: 0\r\n\r\n";
  for (size_t piece = 1; piece < bytes.size(); ++piece) {
    const Read read = read_all(bytes, piece);
    ASSERT_EQ(read.requests.size(), 3u) << piece << ' ' << read.message;
    EXPECT_EQ(read.requests[1].body, "abcde");
    EXPECT_EQ(read.requests[1].header("trailer"), "") << "trailers are not headers";
    EXPECT_EQ(read.requests[2].path, "/c");
  }
}

TEST(RequestReader, absolute_targets_are_paths) {
  EXPECT_EQ(read_all("GET http://x:80/a?b HTTP/1.1\r\n" + kHost + "\r\n").requests.at(0).path, "/a");
  EXPECT_EQ(read_all("GET http://x HTTP/1.1\r\n" + kHost + "\r\n").requests.at(0).path, "/");
  EXPECT_EQ(read_all("OPTIONS * HTTP/1.1\r\n" + kHost + "\r\n").requests.at(0).path, "*");
  EXPECT_EQ(read_all("GET a HTTP/1.1\r\n" + kHost + "\r\n").status, 400);
}

TEST(RequestReader, what_two_readers_could_take_differently_is_refused) {
  const std::string start = "POST / HTTP/1.1\r\n" + kHost;
  const std::string heads[] = {
      "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
      "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
      "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
      "Content-Length: 3, 3\r\n\r\nabc",
      "Content-Length: -1\r\n\r\n",
      "Content-Length: +3\r\n\r\nabc",
      "Content-Length: 0x3\r\n\r\nabc",
      "Content-Length: 3 3\r\n\r\nabc",
      "Content-Length:\r\n\r\nabc",
      "Content-Length: 18446744073709551619\r\n\r\nabc",
      "Content-Length: 00000000000000000000003\r\n\r\nabc",
      "Content-Length : 3\r\n\r\nabc",
      "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
      "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
      "Transfer-Encoding: identity\r\n\r\n",
      "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
      "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
      "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
      " Content-Length: 3\r\n\r\nabc",
      "Transfer-Encoding: chunked\r\n\r\n-1\r\nabc\r\n0\r\n\r\n",
      "Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
      "Transfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n",
      "Transfer-Encoding: chunked\r\n\r\nx\r\nabc\r\n0\r\n\r\n",
      "Transfer-Encoding: chunked\r\n\r\n\r\nabc\r\n0\r\n\r\n",
      "Transfer-Encoding: chunked\r\n\r\n00000000000000003\r\nabc\r\n0\r\n\r\n",
      "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
      "Transfer-Encoding: chunked\r\n\r\n3\nabc\n0\n\n\r\n\r\n",
      "Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 3\r\n\r\n",
      "Host: y\r\nContent-Length: 0\r\n\r\n",
      "A\x01: b\r\nContent-Length: 0\r\n\r\n",
      "A: b\rc\r\nContent-Length: 0\r\n\r\n",
      "A: b\nContent-Length: 0\r\n\r\n",
      "no colon\r\nContent-Length: 0\r\n\r\n",
  };
  for (const std::string& head : heads) {
    const Read read = read_all(start + head);
    EXPECT_TRUE(read.requests.empty()) << head;
    EXPECT_EQ(read.status, 400) << head;
    EXPECT_EQ(read_all(start + head, 1).status, 400) << head;
  }
}

TEST(RequestReader, what_is_not_http_1_is_refused_at_once) {
  EXPECT_EQ(read_all("\x16\x03\x01").status, 400) << "a TLS handshake";
  EXPECT_EQ(read_all("GET / HTTP/1.1\r\n\r\n").status, 400) << "no Host";
  EXPECT_EQ(read_all("GET / HTTP/2.0\r\n" + kHost + "\r\n").status, 400);
  EXPECT_EQ(read_all("GET /\r\n" + kHost + "\r\n").status, 400);
  EXPECT_EQ(read_all("GET  / HTTP/1.1\r\n" + kHost + "\r\n").status, 400);
  EXPECT_EQ(read_all("GE(T / HTTP/1.1\r\n" + kHost + "\r\n").status, 400);
  EXPECT_EQ(read_all("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n").status, 400);
}

TEST(RequestReader, limits_have_their_own_answers) {
  const std::string post = "POST / HTTP/1.1\r\n" + kHost;
  EXPECT_EQ(read_all(post + "\r\n").status, 411);
  EXPECT_EQ(read_all("DELETE / HTTP/1.1\r\n" + kHost + "\r\n").requests.size(), 1u);
  EXPECT_EQ(read_all("GET /" + std::string(70, 'a')).status, 414);
  EXPECT_EQ(read_all("GET /" + std::string(70, 'a') + " HTTP/1.1\r\n" + kHost + "\r\n").status, 414);
  EXPECT_EQ(read_all("GET / HTTP/1.1\r\nA: " + std::string(250, 'a')).status, 431);
  EXPECT_EQ(read_all("GET / HTTP/1.1\r\n" + kHost + "A: " + std::string(250, 'a') + "\r\n\r\n").status, 431);
  EXPECT_EQ(read_all(post + "Content-Length: 33\r\n\r\n").status, 413) << "before a byte of it";
  EXPECT_EQ(read_all(post + "Content-Length: 32\r\n\r\n" + std::string(32, 'a')).requests.size(), 1u);
  EXPECT_EQ(read_all(post + "Transfer-Encoding: chunked\r\n\r\n20\r\n" + std::string(32, 'a') + "\r\n1\r\na")
                .status,
            413);
  EXPECT_EQ(read_all(post + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nabc").status, 413);
  EXPECT_EQ(read_all(post + "Transfer-Encoding: chunked\r\n\r\n1;" + std::string(20'000, 'a')).status, 400);
}

TEST(RequestReader, a_client_that_waits_is_told_to_continue_once) {
  RequestReader reader(small_limits());
  reader.append("POST / HTTP/1.1\r\n" + kHost + "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(reader.next(), Step::kContinue);
  EXPECT_EQ(reader.next(), Step::kNeedMore);
  reader.append("ok");
  EXPECT_EQ(reader.next(), Step::kRequest);
  EXPECT_EQ(reader.take().body, "ok");
  EXPECT_TRUE(reader.idle());

  reader.append("POST / HTTP/1.1\r\n" + kHost + "Expect: 100-continue\r\nContent-Length: 2\r\n\r\nok");
  EXPECT_EQ(reader.next(), Step::kRequest) << "it did not wait";
  EXPECT_EQ(
      read_all("POST / HTTP/1.1\r\n" + kHost + "Expect: 100-continue\r\nContent-Length: 33\r\n\r\n").status,
      413);
  EXPECT_EQ(read_all("POST / HTTP/1.1\r\n" + kHost + "Expect: cake\r\nContent-Length: 2\r\n\r\n").status,
            417);
}

TEST(RequestReader, keep_alive_is_the_rule_of_the_version) {
  const auto keeps = [](std::string_view bytes) {
    RequestReader reader(small_limits());
    reader.append(bytes);
    EXPECT_EQ(reader.next(), Step::kRequest);
    return reader.keep_alive();
  };
  EXPECT_TRUE(keeps("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_FALSE(keeps("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
  EXPECT_FALSE(keeps("GET / HTTP/1.0\r\n\r\n"));
  EXPECT_TRUE(keeps("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
}

}  // namespace
}  // namespace tandem::http
