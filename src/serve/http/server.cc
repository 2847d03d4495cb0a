#include "serve/http/server.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>

#include <exception>
#include <mutex>
#include <thread>

#include "serve/http/loop.h"

namespace tandem::http {

struct Server::Running {
  std::mutex mutex;
  std::thread thread;
};

Result<std::unique_ptr<Server>> Server::start(ServerOptions options, Handler handler) {
  try {
    auto loop = std::make_shared<Loop>(std::move(options), std::move(handler));
    TD_RETURN_IF_ERROR(loop->listen());
    std::unique_ptr<Server> server(new Server(loop));
    // Signals are for the threads that wait for them.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    server->running_->thread = std::thread([loop] { loop->run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return server;
  } catch (const std::exception& e) {
    return Error{fmt::format("cannot start the server: {}", e.what())};
  }
}

Server::Server(std::shared_ptr<Loop> loop) : loop_(std::move(loop)), running_(std::make_unique<Running>()) {}

Server::~Server() { stop(); }

int Server::port() const { return loop_->port(); }

size_t Server::connections() const { return loop_->connections(); }

size_t Server::drain(std::chrono::milliseconds timeout) { return loop_->drain(timeout); }

void Server::stop() {
  const std::lock_guard lock(running_->mutex);
  if (!running_->thread.joinable()) return;
  loop_->stop();
  running_->thread.join();
}

WriteBatch::WriteBatch(Server& server) : loop_(server.loop_) { loop_->mailbox()->hold(); }

WriteBatch::~WriteBatch() { loop_->mailbox()->release(); }

}  // namespace tandem::http
