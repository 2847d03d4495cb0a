// HTTP/1.1 for programs: one thread serves every connection. Knows requests, answers and streams; nothing of
// what they say.
//
// Answers itself, with the error body of the API, and closes: 400, 408, 411, 413, 414, 417, 431. Everything
// else is the handler's. Requests of a connection are handed over one at a time, in order; the next one when
// the answer has left.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "serve/http/reply.h"
#include "serve/http/request.h"
#include "serve/http/request_reader.h"

namespace tandem::http {

struct ServerOptions {
  std::string host = "127.0.0.1";  // an address, or a name that resolves to one
  int port = 8080;                 // 0: any that is free
  RequestLimits limits;
  // A request's head must be there this long after its first byte, its body must bring 4 KiB (or its rest) in
  // each such time: 408.
  std::chrono::milliseconds read_timeout{30'000};
  // A client must take 4 KiB (or the rest) in each such time, and a stream must not stay beyond output_buffer
  // for longer: on_gone, close.
  std::chrono::milliseconds write_timeout{30'000};
  std::chrono::milliseconds idle_timeout{300'000};  // between requests: close
  size_t output_buffer = size_t{1} << 20;           // see Reply::unsent
  // At the limit (or when file descriptors run out) the connection that has been idle longest makes room; if
  // none is idle, new clients wait in the kernel's queue.
  size_t max_connections = 8192;
  // A client that closes its sending side while its answer is computed: gone, unless it has sent another
  // request.
  bool half_close_is_gone = true;
};

// On the server's thread; must not block. What it throws becomes a 500.
using Handler = std::function<void(HttpRequest, std::shared_ptr<Reply>)>;

class Loop;

class Server {
 public:
  static Result<std::unique_ptr<Server>> start(ServerOptions options, Handler handler);
  ~Server();  // stop()

  int port() const;
  size_t connections() const;

  // Stops accepting, closes idle connections, lets running answers finish for at most `timeout`, then cuts
  // them (on_gone). Returns when no connection is left: how many answers were cut. Answering 503 for a while
  // before is the handler's business.
  size_t drain(std::chrono::milliseconds timeout);
  // Cuts everything, also a drain() that waits in another thread. Not from the handler or on_gone.
  void stop();

 private:
  friend class WriteBatch;
  explicit Server(std::shared_ptr<Loop> loop);
  std::shared_ptr<Loop> loop_;
  struct Running;
  std::unique_ptr<Running> running_;
};

// While one lives, replies are written without waking the server's thread; when the last one ends it is woken
// once. For a thread that writes to many replies in one go.
class WriteBatch {
 public:
  explicit WriteBatch(Server& server);
  ~WriteBatch();
  WriteBatch(const WriteBatch&) = delete;
  WriteBatch& operator=(const WriteBatch&) = delete;

 private:
  std::shared_ptr<Loop> loop_;
};

}  // namespace tandem::http
