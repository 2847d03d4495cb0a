#include "serve/http/request_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/parser.hpp>
#include <charconv>
#include <cstdint>
#include <limits>

namespace tandem::http {

namespace {

namespace beast_http = boost::beast::http;
using boost::beast::error_code;

constexpr size_t kSmall = size_t{4} << 10;          // capacity that an idle connection may keep
constexpr size_t kFirstReserve = size_t{1} << 20;   // a promised length is no reason to take memory for it
constexpr size_t kMaxChunkExtra = size_t{8} << 10;  // extensions and trailer of one body, which nobody reads
constexpr size_t kMaxSizeDigits = 16;

char lower(char c) { return c >= 'A' && c <= 'Z' ? char(c + ('a' - 'A')) : c; }

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = lower(c);
  return out;
}

bool is_token_char(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

bool all_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// A field that does not pretend to frame or route the request after the fact.
bool is_trailer(std::string_view line) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  const std::string name = lower(line.substr(0, colon));
  return std::all_of(name.begin(), name.end(), is_token_char) && name != "content-length" &&
         name != "transfer-encoding" && name != "host";
}

}  // namespace

struct RequestReader::Parse {
  enum class Part { kBytes, kChunkSize, kChunkBytes, kChunkEnd, kTrailer, kDone };

  Parse() {
    parser.header_limit(std::numeric_limits<uint32_t>::max());  // measured before the parser sees it
    parser.body_limit(boost::none);
    parser.eager(false);  // stop after the head: the body is ours
  }
  int count(std::string_view name, std::string_view* value) const {
    int n = 0;
    for (const auto& [header, v] : request.headers) {
      if (header == name) {
        ++n;
        *value = v;
      }
    }
    return n;
  }

  // Beast's parser reads the head only: its chunk reader asserts on bytes that a client chooses.
  beast_http::request_parser<beast_http::empty_body> parser;
  HttpRequest request;
  bool expects_continue = false;
  Part part = Part::kDone;
  uint64_t missing = 0;    // bytes of the body or chunk that is being read
  size_t chunk_extra = 0;  // seen so far
};

RequestReader::RequestReader(const RequestLimits& limits) : limits_(limits) {}
RequestReader::~RequestReader() = default;

void RequestReader::append(std::string_view bytes) {
  if (!refusal_) buffer_.append(bytes);
}

void RequestReader::consume(size_t n) {
  start_ += n;
  if (start_ == buffer_.size()) {
    if (buffer_.capacity() > kSmall) {
      std::string().swap(buffer_);
    } else {
      buffer_.clear();
    }
    start_ = 0;
  } else if (start_ >= (size_t{64} << 10)) {
    buffer_.erase(0, start_);
    start_ = 0;
  }
}

RequestReader::Step RequestReader::refuse(int status, std::string code, std::string message) {
  refusal_ = Refusal{status, std::move(code), std::move(message)};
  parse_.reset();
  std::string().swap(buffer_);
  start_ = 0;
  return Step::kRefused;
}

RequestReader::Step RequestReader::next() {
  if (refusal_) return Step::kRefused;
  if (!parse_) {
    if (const Step step = read_head(); step != Step::kRequest) return step;
  }
  return read_body();
}

// kRequest: the head is there and sound, the body may follow.
RequestReader::Step RequestReader::read_head() {
  // Empty lines before a request: some clients end the body of the one before with one.
  while (scanned_ == 0 && rest().starts_with("\r\n")) consume(2);
  const std::string_view bytes = rest();
  if (bytes.empty() || bytes == "\r") return Step::kNeedMore;
  if (!is_token_char(bytes[0])) {  // a TLS handshake, say: it would never end
    return refuse(400, "invalid_request", "this is not an HTTP/1.1 request (is the client speaking https?)");
  }
  const size_t from = scanned_ > 3 ? scanned_ - 3 : 0;
  const size_t blank = bytes.find("\r\n\r\n", from);
  const size_t head_bytes = blank == std::string_view::npos ? bytes.size() : blank + 4;
  const size_t line_end = bytes.substr(0, limits_.request_line + 2).find("\r\n");
  if (line_end == std::string_view::npos && head_bytes > limits_.request_line + 1) {
    return refuse(414, "request_line_too_long",
                  fmt::format("the request line is longer than {} bytes", limits_.request_line));
  }
  if (head_bytes > limits_.head) {
    return refuse(431, "headers_too_large",
                  fmt::format("the request line and headers are longer than {} bytes", limits_.head));
  }
  if (blank == std::string_view::npos) {
    scanned_ = bytes.size();
    return Step::kNeedMore;
  }
  scanned_ = 0;
  const std::string_view head = bytes.substr(0, head_bytes);
  if (head.find("\r\n ") != std::string_view::npos || head.find("\r\n\t") != std::string_view::npos) {
    return refuse(400, "invalid_request", "a header is folded over two lines");
  }
  parse_ = std::make_unique<Parse>();
  error_code ec;
  size_t taken = 0;
  while (!ec && !parse_->parser.is_header_done() && taken < head.size()) {
    const size_t n = parse_->parser.put(boost::asio::buffer(head.data() + taken, head.size() - taken), ec);
    taken += n;
    if (n == 0) break;
  }
  if (ec || !parse_->parser.is_header_done()) {
    return refuse(
        400, "invalid_request",
        "this is not an HTTP/1.1 request: " + (ec ? ec.message() : std::string("its head has no end")));
  }
  if (!check_head()) return Step::kRefused;
  consume(head_bytes);
  if (parse_->expects_continue && parse_->part != Parse::Part::kDone && buffered() == 0)
    return Step::kContinue;
  return Step::kRequest;
}

bool RequestReader::check_head() {
  const auto& message = parse_->parser.get();
  HttpRequest& request = parse_->request;
  const auto view = [](auto text) { return std::string_view(text.data(), text.size()); };
  request.method = std::string(view(message.method_string()));
  for (const auto& field : message) {
    request.headers.emplace_back(lower(view(field.name_string())), std::string(view(field.value())));
  }
  http_1_0_ = message.version() == 10;
  keep_alive_ = parse_->parser.keep_alive();

  std::string_view value;
  const int hosts = parse_->count("host", &value);
  if (hosts > 1 || (hosts == 0 && !http_1_0_)) {
    refuse(400, "invalid_request",
           hosts == 0 ? "the header Host is missing" : "the header Host appears more than once");
    return false;
  }
  if (!check_target(view(message.target())) || !check_framing()) return false;
  if (parse_->count("expect", &value) > 0 && !http_1_0_) {
    if (lower(value) != "100-continue") {
      refuse(417, "expectation_failed", "the only expectation that can be met is 100-continue");
      return false;
    }
    parse_->expects_continue = true;
  }
  return true;
}

bool RequestReader::check_target(std::string_view target) {
  HttpRequest& request = parse_->request;
  const std::string scheme = lower(target.substr(0, 8));
  if (scheme.starts_with("http://") || scheme == "https://") {  // as sent to a proxy: ours all the same
    const size_t host = scheme[4] == 's' ? 8 : 7;
    const size_t slash = target.find_first_of("/?", host);
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  target = target.substr(0, target.find('#'));
  const size_t mark = target.find('?');
  request.path = std::string(target.substr(0, mark));
  if (mark != std::string_view::npos) request.query = std::string(target.substr(mark + 1));
  if (request.path.empty() && mark == 0) request.path = "/";
  if (!request.path.starts_with('/') && request.path != "*") {
    refuse(400, "invalid_request", "the request target must be a path that starts with '/'");
    return false;
  }
  return true;
}

// How long the body is. Beast has settled its own view by now; what stands here is stricter.
bool RequestReader::check_framing() {
  std::string_view length, coding;
  const int lengths = parse_->count("content-length", &length);
  const int codings = parse_->count("transfer-encoding", &coding);
  const std::string& method = parse_->request.method;
  const char* wrong = nullptr;
  if (lengths > 0 && codings > 0) {
    wrong = "Content-Length and Transfer-Encoding exclude each other";
  } else if (lengths > 1) {
    wrong = "the header Content-Length appears more than once";
  } else if (lengths == 1 && (!all_digits(length) || length.size() > 18)) {
    wrong = "Content-Length must be one number of bytes";
  } else if (codings > 0 && (codings > 1 || lower(coding) != "chunked")) {
    wrong = "the only Transfer-Encoding understood is chunked";
  } else if (codings > 0 && http_1_0_) {
    wrong = "HTTP/1.0 has no Transfer-Encoding";
  }
  if (wrong) {
    refuse(400, "invalid_request", wrong);
    return false;
  }
  if (lengths == 0 && codings == 0 && (method == "POST" || method == "PUT" || method == "PATCH")) {
    refuse(411, "length_required", method + " needs a Content-Length or Transfer-Encoding: chunked");
    return false;
  }
  if (codings > 0) {
    parse_->part = Parse::Part::kChunkSize;
  } else if (lengths > 0) {
    parse_->missing = std::stoull(std::string(length));
    if (parse_->missing > limits_.body) {
      refuse(413, "body_too_large",
             fmt::format("the body has {} bytes, the limit is {}", length, limits_.body));
      return false;
    }
    if (parse_->missing > 0) parse_->part = Parse::Part::kBytes;
    parse_->request.body.reserve(std::min<size_t>(parse_->missing, kFirstReserve));
  }
  return true;
}

RequestReader::Step RequestReader::read_body() {
  using Part = Parse::Part;
  while (parse_->part != Part::kDone) {
    const std::string_view bytes = rest();
    if (bytes.empty()) return Step::kNeedMore;
    switch (parse_->part) {
      case Part::kBytes:
      case Part::kChunkBytes: {
        const size_t n = size_t(std::min<uint64_t>(parse_->missing, bytes.size()));
        parse_->request.body.append(bytes.substr(0, n));
        parse_->missing -= n;
        if (parse_->missing == 0) parse_->part = parse_->part == Part::kBytes ? Part::kDone : Part::kChunkEnd;
        consume(n);
        break;
      }
      case Part::kChunkEnd:
        if (bytes[0] != '\r' || (bytes.size() > 1 && bytes[1] != '\n')) {
          return refuse_chunk("a chunk is longer than its size says");
        }
        if (bytes.size() < 2) return Step::kNeedMore;
        consume(2);
        parse_->part = Part::kChunkSize;
        break;
      case Part::kChunkSize:
      case Part::kTrailer:
        if (const Step step = read_chunk_line(); step != Step::kRequest) return step;
        break;
      case Part::kDone:
        break;
    }
  }
  return Step::kRequest;
}

RequestReader::Step RequestReader::refuse_chunk(std::string_view why) {
  return refuse(400, "invalid_request", fmt::format("the chunks of the body are malformed: {}", why));
}

// A line that says how long the next chunk is, or one of the trailer. kRequest: it was sound and is consumed.
RequestReader::Step RequestReader::read_chunk_line() {
  Parse& parse = *parse_;
  const std::string_view bytes = rest();
  // Up to the first byte that a line cannot hold, so that the verdict does not wait for an end that never
  // comes.
  const size_t from = scanned_;
  const auto* stop = std::find_if(bytes.begin() + from, bytes.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 ? c != '\t' : c == 0x7f;
  });
  const size_t end = size_t(stop - bytes.begin());
  if (parse.chunk_extra + end > kMaxChunkExtra) {
    return refuse_chunk(fmt::format("extensions and trailer are longer than {} bytes", kMaxChunkExtra));
  }
  if (end < bytes.size() && (bytes[end] != '\r' || (end + 1 < bytes.size() && bytes[end + 1] != '\n'))) {
    return refuse_chunk("a control character in a line");
  }
  if (end + 1 >= bytes.size()) {
    scanned_ = end;
    return Step::kNeedMore;
  }
  scanned_ = 0;
  const std::string_view line = bytes.substr(0, end);
  if (parse.part == Parse::Part::kTrailer) {
    if (!line.empty() && !is_trailer(line)) return refuse_chunk("a line of the trailer");
    if (line.empty()) parse.part = Parse::Part::kDone;
    parse.chunk_extra += line.size();
  } else {
    const size_t digits = std::min(line.find_first_not_of("0123456789abcdefABCDEF"), line.size());
    if (digits == 0 || digits > kMaxSizeDigits || (digits < line.size() && line[digits] != ';')) {
      return refuse_chunk("a chunk's size is not a hexadecimal number");
    }
    parse.chunk_extra += line.size() - digits;
    parse.missing = 0;
    std::from_chars(line.data(), line.data() + digits, parse.missing, 16);
    if (parse.missing > limits_.body - parse.request.body.size()) {
      return refuse(413, "body_too_large", fmt::format("the body is longer than {} bytes", limits_.body));
    }
    parse.part = parse.missing > 0 ? Parse::Part::kChunkBytes : Parse::Part::kTrailer;
  }
  consume(end + 2);
  return Step::kRequest;
}

HttpRequest RequestReader::take() {
  HttpRequest request = std::move(parse_->request);
  parse_.reset();
  return request;
}

}  // namespace tandem::http
