// Bytes of one connection -> requests, however the bytes are cut. No sockets, no clocks; fuzzed.
//
// What two readers could understand differently is refused rather than interpreted, since a proxy in front
// may have understood it the other way: both lengths, a length that is repeated or not digits, transfer
// codings other than one "chunked", folded headers, a missing or repeated Host.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "serve/http/request.h"

namespace tandem::http {

struct RequestLimits {
  size_t request_line = size_t{8} << 10;  // beyond: 414
  size_t head = size_t{32} << 10;         // request line and headers; beyond: 431
  size_t body = size_t{32} << 20;         // beyond: 413
};

// Why a request is answered here and the connection closed.
struct Refusal {
  int status = 0;
  std::string code;
  std::string message;
};

class RequestReader {
 public:
  enum class Step {
    kNeedMore,  // nothing to do until append()
    kContinue,  // the client waits for "100 Continue" before it sends the body; once per request
    kRequest,   // take() it
    kRefused,   // refusal(); nothing that follows can be trusted
  };

  explicit RequestReader(const RequestLimits& limits);
  ~RequestReader();

  void append(std::string_view bytes);
  Step next();

  HttpRequest take();
  // Of the request that next() found last.
  bool keep_alive() const { return keep_alive_; }
  bool http_1_0() const { return http_1_0_; }

  const Refusal& refusal() const { return *refusal_; }
  // Bytes appended and not yet part of a request that was found.
  size_t buffered() const { return buffer_.size() - start_; }
  // The head is here, the body is not.
  bool in_body() const { return parse_ != nullptr; }
  // Between requests: not one byte of the next one is here.
  bool idle() const { return !parse_ && buffered() == 0; }

 private:
  struct Parse;  // the parser and what it has found; only while a request arrives

  Step read_head();
  Step read_body();
  Step read_chunk_line();
  Step refuse_chunk(std::string_view why);
  Step refuse(int status, std::string code, std::string message);
  bool check_head();
  bool check_framing();
  bool check_target(std::string_view target);
  std::string_view rest() const { return std::string_view(buffer_).substr(start_); }
  void consume(size_t n);

  RequestLimits limits_;
  std::string buffer_;
  size_t start_ = 0;    // buffer_ before it is consumed
  size_t scanned_ = 0;  // of rest(): no end of the head or line in it
  std::unique_ptr<Parse> parse_;
  std::optional<Refusal> refusal_;
  bool keep_alive_ = false, http_1_0_ = false;
};

}  // namespace tandem::http
