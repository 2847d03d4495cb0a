// What a streamed event costs the server: one thread writes an event to each of n streams, pauses as long as
// a decode step takes, and so on; the clients, in a process of their own, read. The loop's thread and the
// writer are counted apart from each other and from the clients.
//
//   study_http_events [--streams 16] [--step-us 300] [--events 1] [--bytes 220] [--seconds 3] [--idle 0]
//   [--separately]
//
// --events: events of one step and stream (a round of speculation); --idle: keep-alive connections beside the
// streams; --separately: without WriteBatch, so that every write may wake the loop. --step-us 0: as fast as
// it goes.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "serve/http/server.h"

using namespace tandem::http;
using SteadyClock = std::chrono::steady_clock;

namespace {

int connect_to(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(uint16_t(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) {
    std::perror("connect");
    std::_Exit(1);
  }
  return fd;
}

// Reads all streams until they are closed, after `n_idle` connections that have had one answer each.
void be_the_clients(int port, int n_streams, int n_idle) {
  const std::string hello = "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n",
                    stream = "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n";
  std::vector<char> bytes(1 << 16);
  for (int i = 0; i < n_idle; ++i) {
    const int fd = connect_to(port);
    if (send(fd, hello.data(), hello.size(), 0) < 0 || recv(fd, bytes.data(), bytes.size(), 0) <= 0)
      std::_Exit(1);
  }
  std::vector<pollfd> fds;
  for (int i = 0; i < n_streams; ++i) {
    fds.push_back({connect_to(port), POLLIN, 0});
    if (send(fds.back().fd, stream.data(), stream.size(), 0) < 0) std::_Exit(1);
  }
  for (size_t open = fds.size(); open > 0;) {
    poll(fds.data(), fds.size(), -1);
    for (pollfd& p : fds) {
      if (!p.revents) continue;
      if (recv(p.fd, bytes.data(), bytes.size(), 0) > 0) continue;
      close(p.fd);
      p.fd = -1;
      --open;
    }
  }
  std::_Exit(0);
}

double seconds_of(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"CPU of streamed events"};
  int streams = 16, step_us = 300, events = 1, bytes = 220, idle = 0;
  double seconds = 3;
  bool separately = false;
  app.add_option("--streams", streams);
  app.add_option("--step-us", step_us);
  app.add_option("--events", events);
  app.add_option("--bytes", bytes);
  app.add_option("--idle", idle);
  app.add_option("--seconds", seconds);
  app.add_flag("--separately", separately);
  CLI11_PARSE(app, argc, argv);
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);

  int ready[2];
  if (pipe(ready) != 0) return 1;
  const pid_t clients = fork();  // before there is a thread
  if (clients == 0) {
    int port = 0;
    if (read(ready[0], &port, sizeof port) != sizeof port) std::_Exit(1);
    be_the_clients(port, streams, idle);
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::shared_ptr<Reply>> replies;
  clockid_t loop_clock{};
  ServerOptions options;
  options.port = 0;
  auto server = Server::start(options, [&](HttpRequest request, std::shared_ptr<Reply> reply) {
    if (request.path == "/hello") return reply->send(200, {}, "hello");
    reply->begin_stream(200, {{"Content-Type", "text/event-stream"}});
    const std::lock_guard lock(mutex);
    pthread_getcpuclockid(pthread_self(), &loop_clock);
    replies.push_back(std::move(reply));
    changed.notify_all();
  });
  if (!server.ok()) {
    fmt::print(stderr, "{}\n", server.error().message);
    return 1;
  }
  const int port = (*server)->port();
  if (write(ready[1], &port, sizeof port) != sizeof port) return 1;
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return int(replies.size()) == streams; });
  }
  const std::string event = "data: " + std::string(size_t(std::max(8, bytes) - 8), 'x') + "\n\n";
  const auto start = SteadyClock::now();
  const double loop_start = seconds_of(loop_clock), writer_start = seconds_of(CLOCK_THREAD_CPUTIME_ID);
  auto next = start;
  size_t n_events = 0;
  while (SteadyClock::now() - start < std::chrono::duration<double>(seconds)) {
    {
      std::optional<WriteBatch> batch;
      if (!separately) batch.emplace(**server);
      for (const auto& reply : replies) {
        while (reply->unsent() > (1 << 20)) std::this_thread::yield();
        for (int i = 0; i < events; ++i) reply->write(event);
      }
    }
    n_events += size_t(events) * replies.size();
    next += std::chrono::microseconds(step_us);
    if (step_us > 0) std::this_thread::sleep_until(next);
  }
  const double wall = std::chrono::duration<double>(SteadyClock::now() - start).count();
  const double writer = seconds_of(CLOCK_THREAD_CPUTIME_ID) - writer_start,
               loop = seconds_of(loop_clock) - loop_start;
  for (const auto& reply : replies) reply->end();
  (*server)->stop();
  int status = 0;
  rusage usage{};
  wait4(clients, &status, 0, &usage);
  const double client = double(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                        1e-6 * double(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  fmt::print(
      "{} streams, {} idle: {:.0f} events/s; per event: loop {:.2f} us, writer {:.2f} us, clients {:.2f} us; "
      "{:.0f} "
      "events per CPU second of loop and writer\n",
      streams, idle, double(n_events) / wall, 1e6 * loop / double(n_events), 1e6 * writer / double(n_events),
      1e6 * client / double(n_events), double(n_events) / (loop + writer));
  return status == 0 ? 0 : 1;
}
