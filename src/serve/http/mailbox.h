// What other threads hand to the server's thread. Includes Asio: for .cc files of serve/http only.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "serve/http/request.h"

namespace tandem::http {

class Connection;
class Mailbox;

// One answer. Written by any thread under its mutex, emptied by the server's thread. Lives as long as either
// cares.
struct ReplyState {
  enum class Form { kNone, kWhole, kStream };

  std::shared_ptr<Mailbox> mailbox;
  size_t max_unsent = 0;
  std::atomic<size_t> unsent{0};
  std::atomic<bool> closed{false};   // nothing more is taken: all has left, or the client has gone
  Connection* connection = nullptr;  // the server's thread only; null once closed

  std::mutex mutex;  // for what follows
  Form form = Form::kNone;
  int status = 0;
  Headers headers;
  std::string pending;
  bool ended = false;
  bool abandoned = false;  // a stream that nobody will end
  bool queued = false;     // in the mailbox
  bool gone = false;
  std::function<void()> on_gone;
};

class Mailbox {
 public:
  explicit Mailbox(std::function<void()> deliver) : deliver_(std::move(deliver)) {}

  void push(std::shared_ptr<ReplyState> reply);
  // On the server's thread: what has come since the last call. `into` is empty and lends its memory.
  void take(std::vector<std::shared_ptr<ReplyState>>& into);
  void hold();
  void release();
  void close();  // drops what is here and what comes

  boost::asio::io_context& io() { return io_; }

 private:
  void wake();

  boost::asio::io_context io_{1};
  std::function<void()> deliver_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<ReplyState>> full_;
  int holds_ = 0;
  bool woken_ = false, closed_ = false;
};

}  // namespace tandem::http
