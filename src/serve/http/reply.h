// The answer to one request, given from any thread. Every call returns at once: bytes are handed to the
// server's thread, and what several calls hand over between two of its turns leaves as one write.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "serve/http/request.h"

namespace tandem::http {

struct ReplyState;

class Reply {
 public:
  explicit Reply(std::shared_ptr<ReplyState> state);
  // An answer that was never begun becomes a 500; a stream without end() is cut, so that the client sees it
  // as broken.
  ~Reply();
  Reply(const Reply&) = delete;
  Reply& operator=(const Reply&) = delete;

  // The whole answer; or the beginning of one whose bytes come by write() and are over with end(). The server
  // adds Date, Connection and the framing (Content-Length, Transfer-Encoding). A header that could not be
  // sent as it is (a name that is no token, a value with CR, LF or another control character) or that is the
  // server's own turns the answer into a 500 that names it.
  void send(int status, Headers headers, std::string body);
  void begin_stream(int status, Headers headers);
  void write(std::string_view bytes);
  void end();

  // Bytes that the kernel has not taken yet. Whoever writes a stream should pause while it is beyond
  // ServerOptions::output_buffer; at 8 times that the client counts as gone.
  size_t unsent() const;

  // Called at most once: the client has gone, or reads too slowly, before it had the whole answer; from then
  // on everything written is dropped. On the server's thread; at once, on this one, if it has happened
  // already. Must not block. A callback given later replaces the earlier one.
  void on_gone(std::function<void()> callback);
  bool gone() const;

 private:
  std::shared_ptr<ReplyState> state_;
};

}  // namespace tandem::http
