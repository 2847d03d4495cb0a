// Requests and answers on the wire: order, framing, what the server answers itself.
#include "serve/http/server.h"

#include <thread>

#include "serve/http/client.h"

namespace tandem::http {
namespace {

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

TEST(HttpServer, keep_alive_serves_one_request_after_the_other) {
  TestServer server;
  Client client = server.client();
  for (int i = 0; i < 3; ++i) {
    client.get("/hello");
    const std::string answer = client.answer();
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\nDate: ")) << answer;
    EXPECT_TRUE(answer.ends_with("Content-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello")) << answer;
  }
  client.send("GET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(has(client.rest(), "Connection: close\r\n"));
}

TEST(HttpServer, pipelined_requests_are_answered_in_order) {
  TestServer server;
  Client client = server.client();
  std::string bytes;
  for (int i = 0; i < 50; ++i) {
    const std::string body = "number " + std::to_string(i);
    bytes += "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
             body;
  }
  client.send(bytes);
  client.get("/slow");
  client.get("/hello");
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(client.answer().ends_with("number " + std::to_string(i)));
  Call slow = server.next_call();
  EXPECT_EQ(slow.request.path, "/slow");
  slow.reply->send(200, {}, "slow");
  EXPECT_TRUE(client.answer().ends_with("slow"));
  EXPECT_TRUE(client.answer().ends_with("hello"));
}

TEST(HttpServer, bodies_come_whole_however_they_are_sent) {
  TestServer server;
  Client client = server.client();
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabc");
  usleep(2000);
  client.send("d\r\n3\r\nefg\r\n0\r\n\r\n");
  EXPECT_TRUE(client.answer().ends_with("\r\n\r\nabcdefg"));

  const std::string large(3 << 20, 'x');
  std::thread sender([&] {
    client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(large.size()) +
                "\r\n\r\n" + large);
  });
  const std::string answer = client.answer();
  sender.join();
  EXPECT_TRUE(answer.ends_with(large));
}

TEST(HttpServer, tells_a_waiting_client_to_continue) {
  TestServer server;
  Client client = server.client();
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("ok");
  EXPECT_TRUE(client.answer().ends_with("\r\n\r\nok"));
}

TEST(HttpServer, head_has_the_head_of_get_alone) {
  TestServer server;
  Client client = server.client();
  client.send("HEAD /hello HTTP/1.1\r\nHost: x\r\n\r\n");
  client.get("/hello");
  EXPECT_TRUE(client.until("\r\n\r\n").ends_with("Content-Length: 5\r\n\r\n"));
  EXPECT_TRUE(client.answer().ends_with("\r\n\r\nhello"));
  client.send("HEAD /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  Call call = server.next_call();
  call.reply->begin_stream(200, {});
  call.reply->write("not for HEAD");
  call.reply->end();
  EXPECT_TRUE(has(client.until("\r\n\r\n"), "Transfer-Encoding: chunked"));
  client.get("/hello");
  EXPECT_TRUE(client.answer().ends_with("\r\n\r\nhello"));
}

TEST(HttpServer, streams_are_chunked_and_the_connection_goes_on) {
  TestServer server;
  Client client = server.client();
  client.get("/stream");
  Call call = server.next_call();
  call.reply->begin_stream(200, {{"Content-Type", "text/event-stream"}});
  EXPECT_TRUE(has(client.until("\r\n\r\n"), "Transfer-Encoding: chunked\r\n"))
      << "the head does not wait for bytes";
  call.reply->write("data: 1\n\n");
  EXPECT_EQ(client.until("1\n\n\r\n"), "9\r\ndata: 1\n\n\r\n");
  call.reply->write(std::string(1000, 'y'));
  call.reply->end();
  EXPECT_EQ(client.until("0\r\n\r\n"), "3e8\r\n" + std::string(1000, 'y') + "\r\n0\r\n\r\n");
  client.get("/hello");
  EXPECT_TRUE(client.answer().ends_with("\r\n\r\nhello"));
}

TEST(HttpServer, writes_between_two_turns_of_the_loop_leave_as_one) {
  TestServer server;
  Client client = server.client();
  client.get("/stream");
  Call call = server.next_call();
  {
    const WriteBatch batch(*server);
    call.reply->begin_stream(200, {});
    for (int i = 0; i < 8; ++i) call.reply->write("data: x\n\n");
    call.reply->end();
  }
  const std::string events = "data: x\n\ndata: x\n\ndata: x\n\ndata: x\n\n";
  EXPECT_TRUE(client.until("0\r\n\r\n").ends_with("\r\n\r\n48\r\n" + events + events + "\r\n0\r\n\r\n"));
}

TEST(HttpServer, http_1_0_streams_until_the_end_of_the_connection) {
  TestServer server;
  Client client = server.client();
  client.send("GET /stream HTTP/1.0\r\n\r\n");
  Call call = server.next_call();
  call.reply->begin_stream(200, {});
  call.reply->write("plain ");
  call.reply->write("bytes");
  call.reply->end();
  const std::string all = client.rest();
  EXPECT_TRUE(has(all, "Connection: close\r\n"));
  EXPECT_TRUE(all.ends_with("\r\n\r\nplain bytes")) << all;
}

TEST(HttpServer, an_answer_without_a_body_has_none) {
  TestServer server;
  Client client = server.client();
  client.get("/options");
  server.next_call().reply->send(204, {{"Allow", "GET"}}, "");
  const std::string head = client.until("\r\n\r\n");
  EXPECT_TRUE(has(head, "HTTP/1.1 204 No Content\r\n") && !has(head, "Content-Length")) << head;
  client.get("/hello");
  EXPECT_TRUE(client.answer().ends_with("\r\n\r\nhello"));
}

TEST(HttpServer, refusals_carry_the_error_body_and_close) {
  const struct {
    std::string bytes, status, code;
  } cases[] = {
      {"nonsense\r\n\r\n", "400 Bad Request", "invalid_request"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\n\r\n", "411 Length Required", "length_required"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n", "413 Payload Too Large",
       "body_too_large"},
      {"GET /" + std::string(9000, 'a'), "414 URI Too Long", "request_line_too_long"},
      {"GET / HTTP/1.1\r\nA: " + std::string(40'000, 'a'), "431 Request Header Fields Too Large",
       "headers_too_large"},
      {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET "
       "/hello "
       "HTTP/1.1\r\nHost: x\r\n\r\n",
       "400 Bad Request", "invalid_request"},
  };
  ServerOptions options;
  options.limits.body = 10;
  TestServer server(options);
  for (const auto& c : cases) {
    Client client = server.client();
    client.send(c.bytes);
    const std::string all = client.rest();
    EXPECT_TRUE(all.starts_with("HTTP/1.1 " + c.status + "\r\n")) << all;
    EXPECT_TRUE(has(all, "Connection: close\r\n")) << all;
    EXPECT_TRUE(has(all, R"("type":"invalid_request_error","param":null,"code":")" + c.code + "\"}}")) << all;
    EXPECT_FALSE(has(all, "hello")) << "what follows is not a request";
  }
}

TEST(HttpServer, a_body_beyond_the_limit_is_answered_before_it_is_read) {
  ServerOptions options;
  options.limits.body = 1000;
  TestServer server(options);
  Client client = server.client();
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n");
  EXPECT_TRUE(client.answer().starts_with("HTTP/1.1 413 "));
  // The client may be in the midst of it: what it sends is dropped, not answered with a reset that eats the
  // 413.
  Client busy = server.client();
  std::thread sender([&] {
    busy.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n" +
              std::string(8'000'000, 'x'));
  });
  EXPECT_TRUE(busy.answer().starts_with("HTTP/1.1 413 "));
  sender.join();
}

TEST(HttpServer, a_header_that_would_split_the_answer_is_not_sent) {
  TestServer server;
  const Headers bad[] = {{{"X-Ignored", "a\r\nSet-Cookie: b"}},
                         {{"X\r\nY", "a"}},
                         {{"X", std::string("a\0b", 3)}},
                         {{"", "a"}},
                         {{"X Y", "a"}},
                         {{"content-length", "3"}},
                         {{"Transfer-Encoding", "chunked"}}};
  for (const Headers& headers : bad) {
    for (const bool stream : {false, true}) {
      Client client = server.client();
      client.get("/x");
      Call call = server.next_call();
      if (stream) {
        call.reply->begin_stream(200, headers);
        call.reply->write("secret");
      } else {
        call.reply->send(200, headers, "secret");
      }
      const std::string all = client.rest();
      EXPECT_TRUE(all.starts_with("HTTP/1.1 500 ")) << all;
      EXPECT_TRUE(has(all, "\"internal_error\"") && !has(all, "Set-Cookie: b") && !has(all, "secret")) << all;
    }
  }
}

TEST(HttpServer, a_reply_that_is_dropped_answers_all_the_same) {
  TestServer server;
  Client client = server.client();
  client.get("/x");
  server.next_call();
  EXPECT_TRUE(client.answer().starts_with("HTTP/1.1 500 "));
  client.get("/x");
  server.next_call().reply->begin_stream(200, {});
  const std::string cut = client.rest();
  EXPECT_TRUE(cut.ends_with("\r\n\r\n")) << "no last chunk: the client sees a broken stream: " << cut;
  EXPECT_FALSE(has(cut, "0\r\n\r\n"));
}

TEST(HttpServer, what_a_handler_throws_is_a_500) {
  ServerOptions options;
  options.port = 0;
  auto server =
      Server::start(options, [](HttpRequest, std::shared_ptr<Reply>) { throw std::runtime_error("x"); });
  ASSERT_TRUE(server.ok());
  Client client((*server)->port());
  client.get("/x");
  EXPECT_TRUE(client.answer().starts_with("HTTP/1.1 500 "));
}

TEST(HttpServer, a_port_in_use_is_an_error_that_names_it) {
  TestServer server;
  ServerOptions options;
  options.port = server->port();
  const auto second = Server::start(options, [](HttpRequest, std::shared_ptr<Reply>) {});
  ASSERT_FALSE(second.ok());
  EXPECT_TRUE(has(second.error().message, std::to_string(options.port))) << second.error().message;
}

TEST(HttpServer, many_writers_and_clients_at_once) {
  TestServer server;
  constexpr int kClients = 8, kEvents = 200;
  std::vector<Client> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.push_back(server.client());
    clients.back().get("/stream");
  }
  std::vector<std::thread> writers;
  for (int c = 0; c < kClients; ++c) {
    writers.emplace_back([call = server.next_call()] {
      call.reply->begin_stream(200, {});
      for (int i = 0; i < kEvents; ++i) call.reply->write("<" + std::to_string(i) + ">");
      call.reply->end();
    });
  }
  for (Client& client : clients) {
    const std::string head = client.until("\r\n\r\n");
    std::string text;  // without the chunks' sizes
    while (true) {
      const std::string size = client.until("\r\n");
      const size_t n = std::stoull(size, nullptr, 16);
      std::string chunk;
      while (chunk.size() < n + 2) chunk += client.until("\r\n");
      if (n == 0) break;
      text += chunk.substr(0, n);
    }
    std::string expected;
    for (int i = 0; i < kEvents; ++i) expected += "<" + std::to_string(i) + ">";
    EXPECT_EQ(text, expected);
  }
  for (std::thread& writer : writers) writer.join();
}

}  // namespace
}  // namespace tandem::http
