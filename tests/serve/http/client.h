// A client of plain sockets that shows what is on the wire, and a server whose handler the test scripts.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "serve/http/server.h"

namespace tandem::http {

using std::chrono::milliseconds;

// Long enough for a sanitized build on a busy machine; only a failing test waits for it.
constexpr milliseconds kPatience{20'000};

template <class Condition>
bool eventually(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    usleep(1000);
  }
  return true;
}

class Client {
 public:
  explicit Client(int port, int receive_buffer = 0) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(uint16_t(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = fd_ >= 0 && connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0;
  }
  ~Client() { close(); }
  Client(Client&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_), buffer_(std::move(other.buffer_)) {}

  bool connected() const { return connected_; }
  int fd() const { return fd_; }

  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(size_t(n));
    }
    return true;
  }
  void get(std::string_view path) { send("GET " + std::string(path) + " HTTP/1.1\r\nHost: x\r\n\r\n"); }

  // Reads until what has been read contains `mark`; returns all up to its end and keeps the rest.
  std::string until(std::string_view mark) {
    while (true) {
      if (const size_t at = buffer_.find(mark); at != std::string::npos) {
        std::string out = buffer_.substr(0, at + mark.size());
        buffer_.erase(0, at + mark.size());
        return out;
      }
      if (!more()) return std::exchange(buffer_, {}) + "(closed)";
    }
  }
  // All that comes until the server closes.
  std::string rest() {
    while (more()) {
    }
    return std::exchange(buffer_, {});
  }
  // One answer with a Content-Length: its head and its body.
  std::string answer() {
    std::string head = until("\r\n\r\n");
    const size_t at = head.find("Content-Length: ");
    if (at == std::string::npos) return head;
    size_t length = std::stoull(head.substr(at + 16));
    while (buffer_.size() < length && more()) {
    }
    head += buffer_.substr(0, length);
    buffer_.erase(0, length);
    return head;
  }
  bool closed_by_server() {
    const bool closed = !more() && !timed_out_;
    return closed;
  }
  bool timed_out() const { return timed_out_; }
  void shut() { shutdown(fd_, SHUT_WR); }
  void reset() {
    const linger now{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close();
  }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  bool more() {
    pollfd wait{fd_, POLLIN, 0};
    if (poll(&wait, 1, int(kPatience.count())) <= 0) {
      timed_out_ = true;
      return false;
    }
    char bytes[65536];
    const ssize_t n = recv(fd_, bytes, sizeof bytes, 0);
    if (n <= 0) return false;
    buffer_.append(bytes, size_t(n));
    return true;
  }

  int fd_;
  bool connected_ = false, timed_out_ = false;
  std::string buffer_;
};

struct Call {
  HttpRequest request;
  std::shared_ptr<Reply> reply;
};

// Keeps the requests for the test to answer from its own thread; "/hello" and "/echo" it answers itself.
class TestServer {
 public:
  explicit TestServer(ServerOptions options = {}) {
    options.port = 0;
    auto started = Server::start(options, [this](HttpRequest request, std::shared_ptr<Reply> reply) {
      if (request.path == "/hello") return reply->send(200, {{"Content-Type", "text/plain"}}, "hello");
      if (request.path == "/echo") return reply->send(200, {}, std::move(request.body));
      const std::lock_guard lock(mutex_);
      calls_.push_back({std::move(request), std::move(reply)});
      changed_.notify_all();
    });
    EXPECT_TRUE(started.ok()) << (started.ok() ? "" : started.error().message);
    server_ = *std::move(started);
  }
  ~TestServer() { server_->stop(); }

  Server& operator*() { return *server_; }
  Server* operator->() { return server_.get(); }
  Client client(int receive_buffer = 0) { return Client(server_->port(), receive_buffer); }

  Call next_call() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return !calls_.empty(); })) << "no request came";
    if (calls_.empty()) std::abort();
    Call call = std::move(calls_.front());
    calls_.pop_front();
    return call;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Call> calls_;
  std::unique_ptr<Server> server_;
};

// What happens to a reply's client.
struct Watch {
  explicit Watch(Reply& reply) {
    reply.on_gone([n = n_gone] { ++*n; });
  }
  std::shared_ptr<std::atomic<int>> n_gone = std::make_shared<std::atomic<int>>(0);
  bool seen() const {
    return eventually([&] { return *n_gone > 0; });
  }
};

}  // namespace tandem::http
