#include "serve/http/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <iterator>

namespace tandem::http {

namespace {

std::string_view reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 301:
      return "Moved Permanently";
    case 302:
      return "Found";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 411:
      return "Length Required";
    case 413:
      return "Payload Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Entity";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 529:
      return "Overloaded";
    default:
      return status < 400 ? "OK" : "Error";
  }
}

bool is_token(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  });
}

bool is_value(std::string_view value) {
  return std::all_of(value.begin(), value.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte >= 0x20 && byte != 0x7f) || c == '\t';
  });
}

bool same_name(std::string_view a, std::string_view lower_case) {
  return std::equal(a.begin(), a.end(), lower_case.begin(), lower_case.end(),
                    [](char x, char y) { return (x >= 'A' && x <= 'Z' ? x + ('a' - 'A') : x) == y; });
}

std::string_view error_type(int status) {
  switch (status) {
    case 500:
      return "server_error";
    case 503:
      return "unavailable_error";
    default:
      return "invalid_request_error";
  }
}

}  // namespace

std::string_view refused_header(const Headers& headers) {
  for (const auto& [name, value] : headers) {
    if (!is_token(name) || !is_value(value))
      return name.empty() ? "(without a name)" : std::string_view(name);
    for (const std::string_view own : {"content-length", "transfer-encoding", "connection", "date"}) {
      if (same_name(name, own)) return name;
    }
  }
  return {};
}

void append_head(std::string& out, const AnswerHead& head, const Headers& headers) {
  auto to = std::back_inserter(out);
  fmt::format_to(to, "HTTP/1.1 {} {}\r\nDate: {}\r\n", head.status, reason(head.status), head.date);
  for (const auto& [name, value] : headers) {
    out.append(name).append(": ").append(value).append("\r\n");
  }
  switch (head.framing) {
    case Framing::kLength:
      fmt::format_to(to, "Content-Length: {}\r\n", head.length);
      break;
    case Framing::kChunked:
      out.append("Transfer-Encoding: chunked\r\n");
      break;
    case Framing::kClose:
    case Framing::kNone:
      break;
  }
  if (!head.keep_alive) {
    out.append("Connection: close\r\n");
  } else if (head.http_1_0) {
    out.append("Connection: keep-alive\r\n");
  }
  out.append("\r\n");
}

std::string error_body(int status, std::string_view code, std::string_view message) {
  const auto quoted = [](std::string_view text) {
    std::string out = "\"";
    for (const char c : text) {
      if (c == '"' || c == '\\') {
        out += '\\';
        out += c;
      } else {
        out += c >= 0x20 && c < 0x7f ? c : '?';
      }
    }
    return out + '"';
  };
  return fmt::format(R"({{"error":{{"message":{},"type":"{}","param":null,"code":{}}}}})", quoted(message),
                     error_type(status), quoted(code));
}

std::string http_date(long seconds_since_1970) {
  static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const time_t seconds = seconds_since_1970;
  tm t{};
  gmtime_r(&seconds, &t);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[t.tm_wday], t.tm_mday, kMonths[t.tm_mon],
                     t.tm_year + 1900, t.tm_hour, t.tm_min, t.tm_sec);
}

}  // namespace tandem::http
