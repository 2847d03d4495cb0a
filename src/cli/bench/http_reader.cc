#include "cli/bench/http_reader.h"

#include <algorithm>
#include <charconv>
#include <cstring>

namespace tandem::bench {
namespace {

constexpr size_t kMaxLine = size_t{1} << 16;

char lower(char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; }

bool same_word(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::optional<uint64_t> number(std::string_view text, int base) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

bool ResponseReader::feed(std::string_view bytes, std::string& body) {
  begun_ = begun_ || !bytes.empty();
  while (!bytes.empty() && state_ != State::done && state_ != State::bad) {
    if (state_ == State::sized || state_ == State::chunk || state_ == State::rest) {
      const size_t n = state_ == State::rest ? bytes.size() : size_t(std::min<uint64_t>(left_, bytes.size()));
      body.append(bytes.substr(0, n));
      bytes.remove_prefix(n);
      if (state_ == State::rest) continue;
      left_ -= n;
      if (left_ == 0) state_ = state_ == State::chunk ? State::chunk_end : State::done;
      continue;
    }
    const size_t end = bytes.find('\n');
    line_.append(bytes.substr(0, end));
    bytes.remove_prefix(std::min(bytes.size(), end == std::string_view::npos ? end : end + 1));
    if (line_.size() > kMaxLine) state_ = State::bad;
    if (end == std::string_view::npos) break;
    if (line_.ends_with('\r')) line_.pop_back();
    if (!line(line_)) state_ = State::bad;
    line_.clear();
  }
  return state_ != State::bad;
}

bool ResponseReader::feed_end() {
  keeps_alive_ = false;
  if (state_ == State::rest) state_ = State::done;
  return state_ == State::done;
}

bool ResponseReader::line(std::string_view line) {
  switch (state_) {
    case State::status: {
      // HTTP/1.1 200 OK
      if (!line.starts_with("HTTP/1.") || line.size() < 12 || line[8] != ' ') return false;
      const std::optional<uint64_t> status = number(line.substr(9, 3), 10);
      if (!status) return false;
      status_ = int(*status);
      keeps_alive_ = line[7] != '0';
      state_ = State::headers;
      return true;
    }
    case State::headers: {
      if (line.empty()) return end_of_head();
      const size_t colon = line.find(':');
      return colon != std::string_view::npos &&
             header(line.substr(0, colon), trimmed(line.substr(colon + 1)));
    }
    case State::chunk_size: {
      const std::optional<uint64_t> size = number(trimmed(line.substr(0, line.find(';'))), 16);
      if (!size) return false;
      left_ = *size;
      state_ = left_ > 0 ? State::chunk : State::trailer;
      return true;
    }
    case State::chunk_end:
      state_ = State::chunk_size;
      return line.empty();
    case State::trailer:
      if (line.empty()) state_ = State::done;
      return true;
    default:
      return false;
  }
}

bool ResponseReader::header(std::string_view name, std::string_view value) {
  if (same_word(name, "content-length")) {
    length_ = number(value, 10);
    return length_.has_value();
  }
  if (same_word(name, "transfer-encoding")) {
    chunked_ = same_word(value, "chunked");
    return chunked_;
  }
  if (same_word(name, "connection")) keeps_alive_ = !same_word(value, "close");
  return true;
}

bool ResponseReader::end_of_head() {
  if (status_ >= 100 && status_ < 200) {  // another answer follows
    state_ = State::status;
    return true;
  }
  if (status_ == 204 || status_ == 304) {
    state_ = State::done;
  } else if (chunked_) {
    state_ = State::chunk_size;
  } else if (length_) {
    left_ = *length_;
    state_ = left_ > 0 ? State::sized : State::done;
  } else {
    keeps_alive_ = false;
    state_ = State::rest;
  }
  return true;
}

void SseReader::feed(std::string_view bytes, const Sink& sink) {
  size_t start = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const char c = bytes[i];
    if (c != '\n' && c != '\r') continue;
    const std::string_view piece = bytes.substr(start, i - start);
    start = i + 1;
    if (c == '\n' && std::exchange(after_return_, false) && piece.empty() && line_.empty()) continue;
    after_return_ = c == '\r';
    if (line_.empty()) {
      line(piece, sink);
    } else {
      line_.append(piece);
      line(line_, sink);
      line_.clear();
    }
  }
  if (start < bytes.size()) {
    after_return_ = false;
    line_.append(bytes.substr(start));
  }
}

void SseReader::line(std::string_view line, const Sink& sink) {
  if (line.empty()) {
    if (has_data_) sink(Kind::data, data_);
    data_.clear();
    has_data_ = false;
    return;
  }
  const auto value_behind = [&](size_t colon) {
    const std::string_view value = line.substr(colon + 1);
    return value.starts_with(' ') ? value.substr(1) : value;
  };
  if (line[0] == ':') return sink(Kind::comment, value_behind(0));
  if (!line.starts_with("data") || (line.size() > 4 && line[4] != ':')) return;  // event:, id:, retry:
  if (has_data_) data_ += '\n';
  if (line.size() > 4) data_.append(value_behind(4));
  has_data_ = true;
}

}  // namespace tandem::bench
