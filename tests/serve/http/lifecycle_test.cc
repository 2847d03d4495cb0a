// Clients that vanish, dawdle or come in thousands; servers that drain and stop.
#include <sys/resource.h>

#include <fstream>
#include <thread>
#include <vector>

#include "serve/http/client.h"
#include "serve/http/server.h"

namespace tandem::http {
namespace {

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

// --- clients that vanish (serving.md 7) ---

TEST(HttpClients, gone_is_noticed_while_nothing_is_written) {
  TestServer server;
  for (const bool reset : {false, true}) {
    Client client = server.client();
    client.get("/x");
    Call call = server.next_call();
    const Watch watch(*call.reply);
    EXPECT_FALSE(call.reply->gone());
    reset ? client.reset() : client.close();
    EXPECT_TRUE(watch.seen());
    EXPECT_TRUE(call.reply->gone());
    call.reply->send(200, {}, "too late");  // no harm
    EXPECT_EQ(call.reply->unsent(), 0u);
    const Watch late(*call.reply);  // called at once
    EXPECT_EQ(*late.n_gone, 1);
    EXPECT_EQ(*watch.n_gone, 1);
  }
}

TEST(HttpClients, gone_is_noticed_while_a_stream_is_written) {
  TestServer server;
  Client client = server.client();
  client.get("/x");
  Call call = server.next_call();
  const Watch watch(*call.reply);
  call.reply->begin_stream(200, {});
  call.reply->write("data");
  client.until("data");
  client.reset();
  EXPECT_TRUE(eventually([&] {
    call.reply->write("data");
    return *watch.n_gone == 1;
  }));
  call.reply->end();
  EXPECT_TRUE(eventually([&] { return server->connections() == 0; }));
}

TEST(HttpClients, gone_is_noticed_behind_pipelined_bytes) {
  TestServer server;
  Client client = server.client();
  client.get("/x");
  Call call = server.next_call();
  const Watch watch(*call.reply);
  const std::string more(300'000, 'x');  // more than is read ahead
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + more.substr(0, 200'000));
  client.reset();
  EXPECT_TRUE(watch.seen());
}

TEST(HttpClients, a_half_closed_client_with_another_request_is_answered) {
  TestServer server;
  Client client = server.client();
  client.get("/x");
  client.get("/hello");
  client.shut();
  Call call = server.next_call();
  call.reply->send(200, {}, "first");
  const std::string all = client.rest();
  EXPECT_TRUE(has(all, "first") && has(all, "hello")) << all;
}

TEST(HttpClients, a_half_closed_client_is_gone_or_not_as_asked) {
  for (const bool gone : {true, false}) {
    ServerOptions options;
    options.half_close_is_gone = gone;
    TestServer server(options);
    Client client = server.client();
    client.get("/x");
    client.shut();
    Call call = server.next_call();
    const Watch watch(*call.reply);
    if (gone) {
      EXPECT_TRUE(watch.seen());
    } else {
      call.reply->send(200, {}, "answered");
      EXPECT_TRUE(has(client.rest(), "answered"));
      EXPECT_EQ(*watch.n_gone, 0);
    }
  }
}

TEST(HttpClients, on_gone_is_not_called_for_a_client_that_has_it_all) {
  TestServer server;
  Client client = server.client();
  client.get("/x");
  Call call = server.next_call();
  const Watch watch(*call.reply);
  call.reply->send(200, {}, "all");
  client.answer();
  client.close();
  EXPECT_TRUE(eventually([&] { return server->connections() == 0; }));
  EXPECT_EQ(*watch.n_gone, 0);
}

// The server's socket of this client.
int server_side(const Client& client) {
  sockaddr_in mine{};
  socklen_t size = sizeof mine;
  getsockname(client.fd(), reinterpret_cast<sockaddr*>(&mine), &size);
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_in peer{};
    size = sizeof peer;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 && peer.sin_port == mine.sin_port)
      return fd;
  }
  return -1;
}

TEST(HttpClients, half_open_connections_are_probed_and_nothing_is_delayed) {
  TestServer server;
  Client client = server.client();
  client.get("/hello");
  client.answer();
  const int fd = server_side(client);
  ASSERT_GE(fd, 0);
  const auto option = [&](int level, int name) {
    int value = 0;
    socklen_t size = sizeof value;
    getsockopt(fd, level, name, &value, &size);
    return value;
  };
  EXPECT_EQ(option(IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPIDLE), 30);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_USER_TIMEOUT), 30'000);
}

// --- clients that dawdle ---

ServerOptions impatient() {
  ServerOptions options;
  options.read_timeout = milliseconds{150};
  options.write_timeout = milliseconds{150};
  return options;
}

TEST(HttpClients, a_head_that_comes_byte_by_byte_is_cut_off) {
  TestServer server(impatient());
  Client client = server.client();
  const std::string head = "GET /hello HTTP/1.1\r\nHost: x\r\nX: " + std::string(5000, 'a');
  for (const char c : head) {
    if (!client.send({&c, 1}) || recv(client.fd(), nullptr, 0, MSG_DONTWAIT | MSG_PEEK) == 0) break;
    pollfd readable{client.fd(), POLLIN, 0};
    if (poll(&readable, 1, 5) > 0) break;
  }
  const std::string all = client.rest();
  EXPECT_TRUE(all.starts_with("HTTP/1.1 408 Request Timeout\r\n")) << all;
  EXPECT_TRUE(has(all, "\"request_timeout\""));
}

TEST(HttpClients, a_body_that_stops_is_cut_off) {
  TestServer server(impatient());
  Client client = server.client();
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_TRUE(client.rest().starts_with("HTTP/1.1 408 "));
  EXPECT_TRUE(eventually([&] { return server->connections() == 0; }));
}

TEST(HttpClients, a_slow_answer_is_not_a_slow_client) {
  TestServer server(impatient());
  Client client = server.client();
  client.get("/x");
  Call call = server.next_call();
  usleep(500'000);
  call.reply->send(200, {}, "at last");
  EXPECT_TRUE(has(client.answer(), "at last"));
}

TEST(HttpClients, idle_connections_are_closed_in_the_end) {
  ServerOptions options;
  options.idle_timeout = milliseconds{100};
  TestServer server(options);
  Client silent = server.client();
  Client client = server.client();
  client.get("/hello");
  EXPECT_TRUE(has(client.answer(), "hello"));
  EXPECT_TRUE(client.closed_by_server());
  EXPECT_TRUE(silent.closed_by_server());
}

TEST(HttpClients, a_slow_reader_fills_its_buffer_and_is_cut_while_others_go_on) {
  TestServer server(impatient());
  Client slow = server.client(4096), quick = server.client();
  slow.get("/slow");
  Call to_slow = server.next_call();
  quick.get("/quick");
  Call to_quick = server.next_call();
  const Watch watch(*to_slow.reply), other(*to_quick.reply);
  const size_t limit = ServerOptions{}.output_buffer;
  to_slow.reply->begin_stream(200, {});
  to_quick.reply->begin_stream(200, {});
  const std::string event(16'384, 'x');
  // Whoever writes pauses at the limit, as the header of Reply says.
  EXPECT_TRUE(eventually([&] {
    if (to_slow.reply->unsent() < limit) to_slow.reply->write(event);
    return to_slow.reply->unsent() >= limit || *watch.n_gone > 0;
  }));
  EXPECT_LT(to_slow.reply->unsent(), limit + 2 * event.size());
  to_quick.reply->write("quick");
  EXPECT_TRUE(has(quick.until("quick"), "quick"));
  EXPECT_TRUE(watch.seen());
  to_quick.reply->write("still here");
  to_quick.reply->end();
  EXPECT_TRUE(has(quick.until("0\r\n\r\n"), "still here"));
  EXPECT_EQ(*other.n_gone, 0);
}

TEST(HttpClients, a_writer_that_never_pauses_cannot_fill_the_memory) {
  ServerOptions options;
  options.output_buffer = 100'000;
  TestServer server(options);
  Client client = server.client(4096);
  client.get("/x");
  Call call = server.next_call();
  const Watch watch(*call.reply);
  call.reply->begin_stream(200, {});
  size_t most = 0;
  EXPECT_TRUE(eventually([&] {
    for (int i = 0; i < 100; ++i) call.reply->write(std::string(10'000, 'x'));
    most = std::max(most, call.reply->unsent());
    return *watch.n_gone > 0;
  }));
  EXPECT_LE(most, 9 * options.output_buffer);
}

// --- thousands, and too many ---

size_t resident_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoull(line.substr(6));
  }
  return 0;
}

TEST(HttpClients, two_thousand_idle_connections_are_cheap_and_all_served) {
  constexpr size_t kConnections = 2000;
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 3 * kConnections);
  setrlimit(RLIMIT_NOFILE, &files);
  ASSERT_GE(files.rlim_cur, 2 * kConnections + 100)
      << "both sides of " << kConnections << " connections are open here: raise the hard limit (ulimit -Hn)";
  TestServer server;
  const size_t before = resident_kib();
  std::vector<Client> clients;
  clients.reserve(kConnections);
  for (size_t i = 0; i < kConnections; ++i) clients.push_back(server.client());
  for (int round = 0; round < 2; ++round) {
    for (Client& client : clients) client.get("/hello");
    size_t served = 0;
    for (Client& client : clients) served += client.answer().ends_with("\r\n\r\nhello") ? 1 : 0;
    EXPECT_EQ(served, kConnections);
  }
  EXPECT_EQ(server->connections(), kConnections);
  // The clients' side is in it too.
  EXPECT_LT(resident_kib() - before, 100u * 1024);
  RecordProperty("kib", int(resident_kib() - before));
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return double(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * double(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

TEST(HttpClients, running_out_of_file_descriptors_neither_spins_nor_ends_the_server) {
  TestServer server;
  Client before = server.client();
  before.get("/x");
  Call running = server.next_call();
  // Sockets that are not connected yet, then no descriptor is left for the server's side.
  std::vector<int> unconnected;
  for (int i = 0; i < 5; ++i) unconnected.push_back(socket(AF_INET, SOCK_STREAM, 0));
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  const rlimit all = files;
  const int next = dup(0);
  ::close(next);
  files.rlim_cur = rlim_t(next);
  setrlimit(RLIMIT_NOFILE, &files);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(uint16_t(server->port()));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (const int fd : unconnected) EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  const double start = cpu_seconds();
  usleep(400'000);
  EXPECT_LT(cpu_seconds() - start, 0.2) << "accepting pauses";
  running.reply->send(200, {}, "unaffected");
  EXPECT_TRUE(has(before.answer(), "unaffected"));
  setrlimit(RLIMIT_NOFILE, &all);
  const std::string get = "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n";
  for (const int fd : unconnected) {
    char bytes[1000];
    EXPECT_EQ(send(fd, get.data(), get.size(), MSG_NOSIGNAL), ssize_t(get.size()));
    EXPECT_GT(recv(fd, bytes, sizeof bytes, 0), 0) << "those that waited are served";
    ::close(fd);
  }
}

TEST(HttpClients, at_the_limit_the_longest_idle_connection_makes_room) {
  ServerOptions options;
  options.max_connections = 2;
  TestServer server(options);
  Client first = server.client(), second = server.client();
  for (Client* client : {&first, &second}) {
    client->get("/hello");
    client->answer();
  }
  Client third = server.client();
  third.get("/x");
  Call call = server.next_call();
  EXPECT_TRUE(first.closed_by_server());
  second.get("/x");
  Call other = server.next_call();
  Client fourth = server.client();  // both others are at work: it waits
  fourth.get("/hello");
  call.reply->send(200, {}, "done");
  third.answer();
  EXPECT_TRUE(has(fourth.answer(), "hello"));
}

// --- the end ---

TEST(HttpServerEnd, drain_lets_answers_finish_and_closes_the_idle) {
  TestServer server;
  Client idle = server.client(), busy = server.client();
  idle.get("/hello");
  idle.answer();
  busy.get("/x");
  Call call = server.next_call();
  size_t cut = 99;
  std::thread draining([&] { cut = server->drain(kPatience); });
  EXPECT_TRUE(idle.closed_by_server());
  EXPECT_FALSE(server.client().connected()) << "no new clients";
  call.reply->begin_stream(200, {});
  call.reply->write("last words");
  call.reply->end();
  const std::string all = busy.rest();
  EXPECT_TRUE(has(all, "Connection: close\r\n") && has(all, "last words") && all.ends_with("0\r\n\r\n"))
      << all;
  busy.close();
  draining.join();
  EXPECT_EQ(cut, 0u);
}

TEST(HttpServerEnd, drain_cuts_what_takes_too_long) {
  TestServer server;
  Client client = server.client();
  client.get("/x");
  Call call = server.next_call();
  const Watch watch(*call.reply);
  EXPECT_EQ(server->drain(milliseconds{50}), 1u);
  EXPECT_EQ(*watch.n_gone, 1);
  EXPECT_TRUE(client.closed_by_server());
}

TEST(HttpServerEnd, stop_cuts_at_once_even_a_drain) {
  TestServer server;
  Client client = server.client();
  client.get("/x");
  Call call = server.next_call();
  const Watch watch(*call.reply);
  std::thread draining([&] { server->drain(std::chrono::hours{1}); });
  server->stop();
  draining.join();
  EXPECT_EQ(*watch.n_gone, 1);
  EXPECT_TRUE(client.closed_by_server());
  call.reply->send(200, {}, "into the void");
}

TEST(HttpServerEnd, replies_may_outlive_their_server) {
  Call call;
  {
    TestServer server;
    Client client = server.client();
    client.get("/x");
    call = server.next_call();
    call.reply->begin_stream(200, {});
  }
  call.reply->write("nobody listens");
  call.reply->end();
  EXPECT_TRUE(call.reply->gone());
}

}  // namespace
}  // namespace tandem::http
