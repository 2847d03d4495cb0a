#include "serve/http/loop.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <ctime>

#include "serve/http/answer.h"

namespace tandem::http {

namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

constexpr int kAcceptTurn = 64;
constexpr milliseconds kAcceptPause{50};

}  // namespace

Loop::Loop(ServerOptions options, Handler handler)
    : options_(std::move(options)),
      handler_(std::move(handler)),
      mailbox_(std::make_shared<Mailbox>([this] { deliver(); })),
      acceptor_(mailbox_->io()),
      tick_timer_(mailbox_->io()),
      accept_timer_(mailbox_->io()),
      drain_timer_(mailbox_->io()),
      tick_period_(
          std::clamp(std::min({options_.read_timeout, options_.write_timeout, options_.idle_timeout}) / 4,
                     milliseconds{10}, milliseconds{1000})) {}

Status Loop::listen() {
  const auto failed = [&](const error_code& ec) {
    return Error{fmt::format("cannot listen on {} port {}: {}", options_.host, options_.port, ec.message())};
  };
  error_code ec;
  auto address = boost::asio::ip::make_address(options_.host, ec);
  if (ec) {
    tcp::resolver resolver(mailbox_->io());
    const auto found = resolver.resolve(options_.host, "", tcp::resolver::passive, ec);
    if (ec || found.empty()) return failed(ec);
    address = found.begin()->endpoint().address();
  }
  if (options_.port < 0 || options_.port > 65535) {
    return Error{fmt::format("a port is a number from 0 to 65535, not {}", options_.port)};
  }
  const tcp::endpoint endpoint(address, static_cast<unsigned short>(options_.port));
  if (acceptor_.open(endpoint.protocol(), ec); ec) return failed(ec);
  if (acceptor_.set_option(tcp::acceptor::reuse_address(true), ec); ec) return failed(ec);
  if (acceptor_.bind(endpoint, ec); ec) return failed(ec);
  if (acceptor_.listen(4096, ec); ec) return failed(ec);
  port_ = acceptor_.local_endpoint(ec).port();
  wait_for_clients();
  schedule_tick();
  return {};
}

void Loop::run() {
  mailbox_->io().run();
  mailbox_->close();
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

const std::string& Loop::date() {
  if (const long now = time(nullptr); now != date_second_) {
    date_second_ = now;
    date_ = http_date(now);
  }
  return date_;
}

void Loop::deliver() {
  mailbox_->take(batch_);
  for (const auto& reply : batch_) {
    if (reply->connection) reply->connection->deliver();
  }
  batch_.clear();
}

void Loop::wait_for_clients() {
  if (accepting_ || !acceptor_.is_open()) return;
  accepting_ = true;
  acceptor_.async_wait(tcp::acceptor::wait_read, [this](const error_code& ec) {
    accepting_ = false;
    if (!ec) accept_some();
  });
}

void Loop::accept_some() {
  for (int i = 0; i < kAcceptTurn && acceptor_.is_open(); ++i) {
    if (connections_.size() >= options_.max_connections) {
      if (!client_waits()) break;
      if (!evict_idle()) return pause_accepting();
    }
    const int fd = accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      adopt(fd);
      continue;
    }
    switch (errno) {
      case EMFILE:
      case ENFILE:
      case ENOBUFS:
      case ENOMEM:
        // The client stays in the kernel's queue; asking again at once would spin.
        if (!client_waits()) return wait_for_clients();
        evict_idle();
        return pause_accepting();
      case EAGAIN:
        return wait_for_clients();
      default:  // this client has gone again
        break;
    }
  }
  wait_for_clients();
}

void Loop::pause_accepting() {
  accept_timer_.expires_after(kAcceptPause);
  accept_timer_.async_wait([this](const error_code& ec) {
    if (!ec) accept_some();
  });
}

// accept4 complains of missing descriptors before it looks whether there is anybody.
bool Loop::client_waits() {
  pollfd listening{acceptor_.native_handle(), POLLIN, 0};
  return poll(&listening, 1, 0) > 0;
}

bool Loop::evict_idle() {
  Connection* oldest = nullptr;
  for (const auto& [connection, owner] : connections_) {
    if (connection->idle() && (!oldest || connection->idle_since() < oldest->idle_since()))
      oldest = connection;
  }
  if (oldest) oldest->cut();
  return oldest != nullptr;
}

void Loop::adopt(int fd) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  tcp::endpoint remote;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 && size <= remote.capacity()) {
    std::copy_n(reinterpret_cast<const char*>(&peer), size, reinterpret_cast<char*>(remote.data()));
    remote.resize(size);
  }
  tcp::socket socket(mailbox_->io());
  error_code ec;
  socket.assign(remote.protocol(), fd, ec);
  if (ec) {
    ::close(fd);
    return;
  }
  auto connection = std::make_shared<Connection>(*this, std::move(socket), remote);
  connections_.emplace(connection.get(), connection);
  n_connections_.store(connections_.size(), std::memory_order_relaxed);
  connection->start();
}

void Loop::forget(Connection& connection) {
  connections_.erase(&connection);
  n_connections_.store(connections_.size(), std::memory_order_relaxed);
  check_drained();
}

void Loop::schedule_tick() {
  tick_timer_.expires_after(tick_period_);
  tick_timer_.async_wait([this](const error_code& ec) {
    if (!ec) tick();
  });
}

void Loop::tick() {
  const auto now = Clock::now();
  std::vector<std::shared_ptr<Connection>> all;
  all.reserve(connections_.size());
  for (const auto& [connection, owner] : connections_) all.push_back(owner);
  for (const auto& connection : all) connection->tick(now);
  if (!stopping_) schedule_tick();
}

void Loop::cut_all() {
  std::vector<std::shared_ptr<Connection>> all;
  for (const auto& [connection, owner] : connections_) all.push_back(owner);
  for (const auto& connection : all) {
    n_cut_ += connection->answering() ? 1 : 0;
    connection->cut();
  }
}

void Loop::begin_drain(milliseconds timeout) {
  draining_ = true;
  error_code ignored;
  acceptor_.close(ignored);
  accept_timer_.cancel();
  std::vector<std::shared_ptr<Connection>> all;
  for (const auto& [connection, owner] : connections_) all.push_back(owner);
  for (const auto& connection : all) {
    if (connection->idle()) connection->cut();
  }
  drain_timer_.expires_after(timeout);
  drain_timer_.async_wait([this](const error_code& ec) {
    if (!ec) cut_all();
  });
  check_drained();
}

void Loop::check_drained() {
  if (!draining_ || !connections_.empty()) return;
  drain_timer_.cancel();
  const std::lock_guard lock(mutex_);
  drained_ = true;
  changed_.notify_all();
}

size_t Loop::drain(milliseconds timeout) {
  boost::asio::post(mailbox_->io(), [this, timeout] { begin_drain(timeout); });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return drained_ || stopped_; });
  return n_cut_;
}

void Loop::stop() {
  boost::asio::post(mailbox_->io(), [this] {
    stopping_ = true;
    error_code ignored;
    acceptor_.close(ignored);
    tick_timer_.cancel();
    accept_timer_.cancel();
    drain_timer_.cancel();
    cut_all();
  });
}

}  // namespace tandem::http
