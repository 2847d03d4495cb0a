// What comes back over a connection, in pieces of any size: HTTP/1.1 answers, and the server-sent events in
// their bodies.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::bench {

// One answer. Bodies that are sized, chunked, or end with the connection.
class ResponseReader {
 public:
  // Appends to `body` what `bytes` brings of it. False: this is not HTTP/1.1, and nothing more is read.
  bool feed(std::string_view bytes, std::string& body);
  // The server has closed. False: in the middle of the answer.
  bool feed_end();

  bool done() const { return state_ == State::done; }
  bool begun() const { return begun_; }
  int status() const { return status_; }
  // Whether the connection takes another request after this answer.
  bool keeps_alive() const { return keeps_alive_; }

 private:
  enum class State : uint8_t {
    status,
    headers,
    sized,
    chunk_size,
    chunk,
    chunk_end,
    trailer,
    rest,
    done,
    bad
  };

  bool line(std::string_view line);
  bool header(std::string_view name, std::string_view value);
  bool end_of_head();

  State state_ = State::status;
  std::string line_;  // begun and not ended
  uint64_t left_ = 0;
  std::optional<uint64_t> length_;
  bool chunked_ = false, begun_ = false, keeps_alive_ = true;
  int status_ = 0;
};

// Lines of a text/event-stream, as its specification reads them.
class SseReader {
 public:
  enum class Kind : uint8_t { data, comment };
  // `sink`: a comment's text, or the data of an event when its empty line has come.
  using Sink = std::function<void(Kind, std::string_view)>;
  void feed(std::string_view bytes, const Sink& sink);

 private:
  void line(std::string_view line, const Sink& sink);
  std::string line_, data_;
  bool has_data_ = false, after_return_ = false;
};

}  // namespace tandem::bench
