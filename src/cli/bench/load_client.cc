#include "cli/bench/load_client.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "cli/bench/http_reader.h"
#include "cli/json.h"

namespace tandem::bench {
namespace {

constexpr double kSilenceS = 300;  // an answer that brings nothing for so long has failed

double thread_cpu_s() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + double(t.tv_usec) * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

std::string system_error(const char* what, int error) {
  return fmt::format("{}: {}", what, std::strerror(error));
}

// Whether a string that is not empty stands under `key` ("\"text\":"). Quotes inside strings are escaped, so
// the key is found nowhere else.
bool has_text(std::string_view json, std::string_view key) {
  for (size_t at = json.find(key); at != std::string_view::npos; at = json.find(key, at + 1)) {
    size_t value = at + key.size();
    while (value < json.size() && json[value] == ' ') ++value;
    if (value + 1 < json.size() && json[value] == '"' && json[value + 1] != '"') return true;
  }
  return false;
}

// The message of OpenAI's error body, or its beginning.
std::string error_of(std::string_view body) {
  const Json json = Json::parse(body, nullptr, false);
  if (json.is_object() && json.contains("error")) {
    const Json& error = json["error"];
    if (error.is_string()) return error.get<std::string>();
    if (error.is_object() && error.contains("message") && error["message"].is_string())
      return error["message"].get<std::string>();
  }
  return std::string(body.substr(0, 200));
}

int int_of(const Json& object, const char* key, int otherwise) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number_integer() ? it->get<int>() : otherwise;
}

std::optional<double> number_of(const Json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number()) return std::nullopt;
  return it->get<double>();
}

void read_usage(const Json& json, Answer& answer) {
  if (!json.is_object() || !json.contains("usage") || !json["usage"].is_object()) return;
  const Json& usage = json["usage"];
  answer.tokens = int_of(usage, "completion_tokens", answer.tokens);
  answer.prompt_tokens = int_of(usage, "prompt_tokens", answer.prompt_tokens);
  if (usage.contains("prompt_tokens_details") && usage["prompt_tokens_details"].is_object())
    answer.cached_tokens = int_of(usage["prompt_tokens_details"], "cached_tokens", 0);
}

void read_stats(std::string_view text, Answer& answer) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return;
  answer.server_tokens_per_s = number_of(json, "generation_tps");
  answer.server_ttft_ms = number_of(json, "ttft_ms");
  answer.mean_accepted = number_of(json, "mean_accepted");
}

}  // namespace

Result<Endpoint> Endpoint::parse(const std::string& url) {
  const auto wrong = [&](const char* what) { return Error{fmt::format("--url {}: {}", url, what)}; };
  std::string rest = url;
  if (rest.starts_with("https://")) return wrong("https is not spoken here: expected http://HOST:PORT");
  if (rest.starts_with("http://")) rest.erase(0, 7);
  if (rest.find("://") != std::string::npos) return wrong("expected http://HOST:PORT");
  Endpoint e;
  const size_t slash = std::min(rest.find('/'), rest.size());
  e.prefix = rest.substr(slash);
  rest.resize(slash);
  while (e.prefix.ends_with('/')) e.prefix.pop_back();
  if (e.prefix.ends_with("/v1")) e.prefix.resize(e.prefix.size() - 3);
  const size_t colon = rest.rfind(':');
  if (colon != std::string::npos && rest.find(']', colon) == std::string::npos) {
    const std::string port = rest.substr(colon + 1);
    const bool digits =
        !port.empty() && port.size() <= 5 && port.find_first_not_of("0123456789") == port.npos;
    e.port = digits ? std::stoi(port) : 0;
    if (e.port < 1 || e.port > 65535) return wrong("the port is no number from 1 to 65535");
    rest.resize(colon);
  }
  if (rest.starts_with('[') && rest.ends_with(']')) rest = rest.substr(1, rest.size() - 2);
  e.host = rest;
  if (e.host.empty()) return wrong("expected http://HOST:PORT");
  return e;
}

// A request on its connection, and what has come of the answer.
class LoadClient::Exchange {
 public:
  Exchange(int fd, bool reused, std::string request, bool stream)
      : fd_(fd), reused_(reused), stream_(stream), request_(std::move(request)) {}

  int fd() const { return fd_; }
  bool wants_to_write() const { return sent_ < request_.size(); }
  bool over() const { return over_; }
  bool keeps_alive() const { return response_.done() && response_.keeps_alive(); }
  // A kept connection that the server closed before it saw the request.
  bool should_retry() const { return !answer.ok() && reused_ && !response_.begun(); }
  const std::string& request() const { return request_; }
  double heard() const { return heard_; }
  void silent_since(double t) { heard_ = t; }
  void fail(const std::string& error) {
    if (!over_) answer.error = error;
    over_ = true;
  }

  // The socket is ready for what it was polled for.
  void go_on() {
    if (wants_to_write()) return write();
    char bytes[size_t{1} << 16];
    const ssize_t n = recv(fd_, bytes, sizeof bytes, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n < 0) return fail(system_error("the connection broke", errno));
    const double t = heard_ = now_s();
    if (n == 0) {
      if (!response_.feed_end()) return fail("the connection was closed in the middle of the answer");
    } else {
      const size_t before = body.size();
      if (!response_.feed({bytes, size_t(n)}, body)) return fail("the answer is not HTTP/1.1");
      if (stream_ && response_.status() == 200) {
        events_.feed(std::string_view(body).substr(before),
                     [&](SseReader::Kind kind, std::string_view text) { event(kind, text, t); });
        body.clear();
      }
    }
    if (response_.done()) finish(t);
  }

  int status() const { return response_.status(); }
  Answer answer;
  std::string body;

 private:
  void write() {
    const ssize_t n = send(fd_, request_.data() + sent_, request_.size() - sent_, MSG_NOSIGNAL);
    if (n >= 0) {
      sent_ += size_t(n);
    } else if (errno != EAGAIN && errno != EINTR) {
      fail(system_error("no connection", errno));
    }
  }

  void event(SseReader::Kind kind, std::string_view text, double t) {
    if (kind == SseReader::Kind::comment) {
      constexpr std::string_view kStats = "generation_stats ";
      if (text.starts_with(kStats)) read_stats(text.substr(kStats.size()), answer);
      return;
    }
    if (has_text(text, "\"text\":") || has_text(text, "\"content\":")) answer.arrived.push_back(t);
    if (text.find("\"usage\":{") != text.npos || text.find("\"usage\": {") != text.npos)
      read_usage(Json::parse(text, nullptr, false), answer);
    if (text.starts_with("{\"error\"") && answer.ok()) answer.error = error_of(text);
  }

  void finish(double t) {
    over_ = true;
    answer.end = t;
    if (response_.status() != 200) {
      answer.error = fmt::format("{}: {}", response_.status(), error_of(body));
    } else if (!stream_) {
      read_usage(Json::parse(body, nullptr, false), answer);
    } else if (answer.tokens == 0) {
      answer.tokens = int(answer.arrived.size());
    }
  }

  const int fd_;
  const bool reused_, stream_;
  const std::string request_;
  size_t sent_ = 0;
  ResponseReader response_;
  SseReader events_;
  double heard_ = 0;
  bool over_ = false;
};

Result<std::unique_ptr<LoadClient>> LoadClient::create(const Endpoint& endpoint) {
  std::unique_ptr<LoadClient> client(new LoadClient(endpoint));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  if (code != 0 || found == nullptr)
    return Error{fmt::format("{}: {}", endpoint.host, code != 0 ? gai_strerror(code) : "no address")};
  client->address_.assign(reinterpret_cast<const char*>(found->ai_addr), found->ai_addrlen);
  freeaddrinfo(found);
  return client;
}

LoadClient::~LoadClient() {
  for (const int fd : idle_) close(fd);
}

std::string LoadClient::head(const char* method, const std::string& path, size_t n_body) const {
  std::string text = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\nAccept: */*\r\n", method,
                                 endpoint_.prefix, path, endpoint_.host, endpoint_.port);
  if (!endpoint_.api_key.empty()) text += fmt::format("Authorization: Bearer {}\r\n", endpoint_.api_key);
  if (n_body > 0) text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", n_body);
  return text + "\r\n";
}

Result<int> LoadClient::connection(bool& reused) {
  reused = !idle_.empty();
  if (reused) {
    const int fd = idle_.back();
    idle_.pop_back();
    return fd;
  }
  const auto* address = reinterpret_cast<const sockaddr*>(address_.data());
  const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return Error{system_error("no socket", errno)};
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (connect(fd, address, socklen_t(address_.size())) != 0 && errno != EINPROGRESS) {
    const int error = errno;
    close(fd);
    return Error{system_error("no connection", error)};
  }
  return fd;
}

Result<LoadClient::Reply> LoadClient::call(const std::string& path, const std::string& body) {
  const double start = now_s();
  for (bool again = true; again;) {
    bool reused = false;
    TD_ASSIGN_OR_RETURN(const int fd, connection(reused));
    Exchange exchange(fd, reused, head(body.empty() ? "GET" : "POST", path, body.size()) + body, false);
    while (!exchange.over()) {
      pollfd p{fd, short(exchange.wants_to_write() ? POLLOUT : POLLIN), 0};
      const int n = poll(&p, 1, int(kSilenceS * 1e3));
      if (n > 0) exchange.go_on();
      if (n == 0) exchange.fail("no answer");
    }
    if (exchange.keeps_alive()) {
      idle_.push_back(fd);
    } else {
      close(fd);
    }
    again = exchange.should_retry();
    if (again) continue;
    if (exchange.status() == 0 || !exchange.answer.end)
      return Error{fmt::format("http://{}:{}{}{}: {}", endpoint_.host, endpoint_.port, endpoint_.prefix, path,
                               exchange.answer.error)};
    return Reply{.status = exchange.status(), .body = std::move(exchange.body), .seconds = now_s() - start};
  }
  return Error{"not reached"};
}

LoadResult LoadClient::run(const Load& load, const RequestForm& form) {
  const size_t n = load.prompts.size();
  std::vector<std::string> requests;
  for (const Prompt& prompt : load.prompts) {
    Json body;
    if (!form.model.empty()) body["model"] = form.model;
    if (prompt.ids.empty()) {
      body["prompt"] = prompt.text;
    } else {
      body["prompt"] = prompt.ids;
    }
    body["max_tokens"] = load.max_tokens;
    body["temperature"] = 0;
    body["ignore_eos"] = true;
    body["stream"] = form.stream;
    if (form.stream) body["stream_options"] = {{"include_usage", true}};
    const std::string text = body.dump();
    requests.push_back(head("POST", "/v1/completions", text.size()) + text);
  }

  LoadResult result;
  result.answers.resize(n);
  std::vector<std::pair<size_t, std::unique_ptr<Exchange>>> running;
  std::vector<pollfd> polled;
  size_t next = 0, n_over = 0;
  const bool open = !load.arrivals.empty();
  const double start = now_s(), cpu = thread_cpu_s();
  const auto send = [&](size_t i, double since) {
    bool reused = false;
    const Result<int> fd = connection(reused);
    if (!fd.ok()) {
      Answer& answer = result.answers[i];
      answer.start = answer.end = since;
      answer.error = fd.error().message;
      ++n_over;
      return;
    }
    auto exchange = std::make_unique<Exchange>(*fd, reused, std::move(requests[i]), form.stream);
    exchange->answer.start = since;
    exchange->silent_since(now_s());
    if (reused) exchange->go_on();
    running.emplace_back(i, std::move(exchange));
  };
  while (n_over < n) {
    double t = now_s();
    const auto may_send = [&] {
      if (next == n) return false;
      return open ? start + load.arrivals[next] <= t : running.size() < size_t(load.concurrency);
    };
    while (may_send()) {
      // An open loop's request counts from when it should have been sent.
      send(next, open ? start + load.arrivals[next] : now_s());
      ++next;
    }
    result.max_in_flight = std::max(result.max_in_flight, int(running.size()));
    double wait = 1;
    if (open && next < n) wait = std::clamp(start + load.arrivals[next] - t, 0.0, 1.0);
    polled.clear();
    for (const auto& [i, exchange] : running)
      polled.push_back({exchange->fd(), short(exchange->wants_to_write() ? POLLOUT : POLLIN), 0});
    poll(polled.data(), polled.size(), int(std::ceil(wait * 1e3)));
    t = now_s();
    std::vector<size_t> again;
    for (size_t k = 0; k < running.size(); ++k) {
      Exchange& exchange = *running[k].second;
      if (polled[k].revents != 0) {
        exchange.go_on();
      } else if (t - exchange.heard() > kSilenceS) {
        exchange.fail(fmt::format("nothing came for {} s", kSilenceS));
      }
      if (!exchange.over()) continue;
      if (exchange.keeps_alive()) {
        idle_.push_back(exchange.fd());
      } else {
        close(exchange.fd());
      }
      if (exchange.should_retry()) {
        requests[running[k].first] = exchange.request();
        result.answers[running[k].first].start = exchange.answer.start;
        again.push_back(running[k].first);
      } else {
        if (exchange.answer.end == 0) exchange.answer.end = t;
        result.answers[running[k].first] = std::move(exchange.answer);
        ++n_over;
      }
    }
    std::erase_if(running, [](const auto& r) { return r.second->over(); });
    for (const size_t i : again) send(i, result.answers[i].start);
  }
  const double wall = now_s() - start;
  result.client_cpu_share = wall > 0 ? (thread_cpu_s() - cpu) / wall : 0;
  return result;
}

}  // namespace tandem::bench
