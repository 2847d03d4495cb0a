// The thread of a server: accepts, delivers what other threads hand over, looks at the clock. Includes Asio:
// for .cc files of serve/http only.
#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "serve/http/connection.h"
#include "serve/http/mailbox.h"
#include "serve/http/server.h"

namespace tandem::http {

class Loop : public std::enable_shared_from_this<Loop> {
 public:
  Loop(ServerOptions options, Handler handler);

  Status listen();
  void run();  // until stop()

  // From any thread.
  size_t drain(std::chrono::milliseconds timeout);
  void stop();
  int port() const { return port_; }
  size_t connections() const { return n_connections_.load(std::memory_order_relaxed); }
  const std::shared_ptr<Mailbox>& mailbox() { return mailbox_; }

  // For the connections, on the loop's thread.
  const ServerOptions& options() const { return options_; }
  const Handler& handler() const { return handler_; }
  bool draining() const { return draining_; }
  std::array<char, size_t{64} << 10>& scratch() { return scratch_; }
  std::string& spare() { return spare_; }
  const std::string& date();
  void forget(Connection& connection);

 private:
  void deliver();
  void wait_for_clients();
  void accept_some();
  void pause_accepting();
  bool client_waits();
  bool evict_idle();
  void adopt(int fd);
  void schedule_tick();
  void tick();
  void begin_drain(std::chrono::milliseconds timeout);
  void cut_all();
  void check_drained();

  const ServerOptions options_;
  const Handler handler_;
  std::shared_ptr<Mailbox> mailbox_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer tick_timer_, accept_timer_, drain_timer_;
  std::chrono::milliseconds tick_period_;
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections_;
  std::vector<std::shared_ptr<ReplyState>> batch_;
  std::array<char, size_t{64} << 10> scratch_;
  std::string spare_;
  std::string date_;
  long date_second_ = 0;
  int port_ = 0;
  bool accepting_ = false, draining_ = false, stopping_ = false;
  size_t n_cut_ = 0;
  std::atomic<size_t> n_connections_{0};

  std::mutex mutex_;  // for what follows
  std::condition_variable changed_;
  bool drained_ = false, stopped_ = false;
};

}  // namespace tandem::http
