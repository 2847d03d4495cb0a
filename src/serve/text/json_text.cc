#include "serve/text/json_text.h"

#include <cstring>

namespace tandem::serve {
namespace {

bool is_white(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Whether nothing in the word asks for care: no control character, quote, backslash, and no byte 0xE2 (with
// which U+2028 begins).
bool all_plain(uint64_t w) {
  constexpr uint64_t kOnes = 0x0101010101010101u, kHigh = 0x8080808080808080u;
  const auto has_zero = [](uint64_t v) { return (v - kOnes) & ~v & kHigh; };
  const uint64_t low = (w - kOnes * 0x20) & ~w & kHigh;
  return (low | has_zero(w ^ (kOnes * '"')) | has_zero(w ^ (kOnes * '\\')) | has_zero(w ^ (kOnes * 0xE2))) ==
         0;
}

}  // namespace

void append_json_escaped(std::string_view text, std::string& out) {
  constexpr char kHex[] = "0123456789abcdef";
  size_t from = 0, i = 0;
  const auto flush = [&](size_t next) {
    out.append(text, from, i - from);
    from = next;
  };
  while (i < text.size()) {
    if (i + 8 <= text.size()) {
      uint64_t w;
      std::memcpy(&w, text.data() + i, 8);
      if (all_plain(w)) {
        i += 8;
        continue;
      }
    }
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == '"' || c == '\\') {
      flush(i + 1);
      out += '\\';
      out += char(c);
    } else if (c < 0x20) {
      flush(i + 1);
      switch (c) {
        case '\n':
          out += "\\n";
          break;
        case '\r':
          out += "\\r";
          break;
        case '\t':
          out += "\\t";
          break;
        case '\b':
          out += "\\b";
          break;
        case '\f':
          out += "\\f";
          break;
        default:
          out += "\\u00";
          out += kHex[c >> 4];
          out += kHex[c & 15];
      }
    } else if (c == 0xE2 && i + 2 < text.size() && text[i + 1] == '\x80' &&
               (text[i + 2] == '\xA8' || text[i + 2] == '\xA9')) {
      flush(i + 3);
      out += text[i + 2] == '\xA8' ? "\\u2028" : "\\u2029";
      i += 2;
    }
    ++i;
  }
  flush(i);
}

void append_json_string(std::string_view text, std::string& out) {
  out += '"';
  append_json_escaped(text, out);
  out += '"';
}

void JsonCursor::value_done() { state_ = depth_ == 0 ? State::done : State::after; }

// Bytes of a number; false: the number ended before this byte.
bool JsonCursor::take_number(char c) {
  switch (num_) {
    case Num::sign:
      if (!is_digit(c)) break;
      num_ = c == '0' ? Num::zero : Num::whole;
      return true;
    case Num::whole:
      if (is_digit(c)) return true;
      [[fallthrough]];
    case Num::zero:
      if (c == '.') return num_ = Num::point, true;
      if (c == 'e' || c == 'E') return num_ = Num::exponent, true;
      return false;
    case Num::point:
      if (!is_digit(c)) break;
      return num_ = Num::fraction, true;
    case Num::fraction:
      if (is_digit(c)) return true;
      if (c == 'e' || c == 'E') return num_ = Num::exponent, true;
      return false;
    case Num::exponent:
      if (c == '+' || c == '-') return num_ = Num::exponent_sign, true;
      [[fallthrough]];
    case Num::exponent_sign:
      if (!is_digit(c)) break;
      return num_ = Num::power, true;
    case Num::power:
      return is_digit(c);
  }
  fail();
  return true;
}

bool JsonCursor::fail() {
  before_ = state_;
  state_ = State::failed;
  return false;
}

bool JsonCursor::take(char c) {
  const auto open = [&](bool object) {
    if (depth_ == kMaxDepth) return fail();
    containers_[depth_++] = object;
    state_ = object ? State::first_key : State::first_item;
    return true;
  };
  const auto close = [&](bool object) {
    if (depth_ == 0 || containers_[depth_ - 1] != object) return fail();
    --depth_;
    value_done();
    return true;
  };
  switch (state_) {
    case State::string:
      if (n_hex_ > 0) {
        const bool hex = is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
        if (!hex) return fail();
        hex_ = uint16_t(hex_ << 4 | (is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10));
        if (--n_hex_ == 0) half_pair_ = hex_ >= 0xD800 && hex_ < 0xDC00;
        return true;
      }
      if (static_cast<unsigned char>(c) < 0x20) return fail();
      if (c == '\\') {
        state_ = State::escape;
        return true;
      }
      half_pair_ = false;
      if (c == '"') {
        if (string_is_key_) {
          state_ = State::colon;
        } else {
          value_done();
        }
      }
      return true;
    case State::escape:
      if (c == 'u') {
        n_hex_ = 4;
      } else if (std::string_view("\"\\/bfnrt").find(c) == std::string_view::npos) {
        return fail();
      }
      state_ = State::string;
      return true;
    case State::number:
      if (take_number(c)) return state_ != State::failed;
      value_done();
      return state_ == State::done ? false : take(c);
    case State::word:
      if (c != word_[word_at_]) return fail();
      if (++word_at_ == word_.size()) value_done();
      return true;
    default:
      break;
  }
  if (is_white(c)) return true;
  switch (state_) {
    case State::first_item:
      if (c == ']') return close(false);
      [[fallthrough]];
    case State::value:
      if (c == '{') return open(true);
      if (c == '[') return open(false);
      if (c == '"') {
        string_is_key_ = false;
        state_ = State::string;
        return true;
      }
      if (c == '-' || is_digit(c)) {
        num_ = c == '-' ? Num::sign : c == '0' ? Num::zero : Num::whole;
        state_ = State::number;
        return true;
      }
      word_ = c == 't' ? "true" : c == 'f' ? "false" : c == 'n' ? "null" : "";
      if (word_.empty()) return fail();
      word_at_ = 1;
      state_ = State::word;
      return true;
    case State::first_key:
      if (c == '}') return close(true);
      [[fallthrough]];
    case State::key:
      if (c != '"') return fail();
      string_is_key_ = true;
      state_ = State::string;
      return true;
    case State::colon:
      if (c != ':') return fail();
      state_ = State::value;
      return true;
    case State::after:
      if (c == ',') {
        state_ = containers_[depth_ - 1] ? State::key : State::value;
        return true;
      }
      return close(c == '}' ? true : c == ']' ? false : !containers_[depth_ - 1]);
    default:
      return false;
  }
}

size_t JsonCursor::feed(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (complete() || failed()) return i;
    const bool was_number = state_ == State::number;
    if (!take(text[i])) return i;
    // Inside a string every byte that is no escape may be the last, and so may a closed value.
    const bool safe = state_ == State::first_item || state_ == State::first_key || state_ == State::after ||
                      state_ == State::done ||
                      (state_ == State::string && !string_is_key_ && n_hex_ == 0 && !half_pair_);
    const bool number_ended = was_number && state_ != State::number;  // by a comma or white space
    since_ = safe ? 0 : number_ended ? 1 : since_ + 1;
  }
  return text.size();
}

void JsonCursor::end() {
  if (state_ != State::number || depth_ > 0) return;
  if (num_ == Num::zero || num_ == Num::whole || num_ == Num::fraction || num_ == Num::power) {
    state_ = State::done;
  }
}

JsonCursor::Closing JsonCursor::closing() const {
  const State state = failed() ? before_ : state_;
  Closing out;
  out.cut = since_;
  if ((state == State::string || state == State::escape) && !string_is_key_) out.text += '"';
  for (int d = depth_; d-- > 0;) out.text += containers_[d] ? '}' : ']';
  if (depth_ == 0 && out.text.empty() && state != State::done) out.text = "null";
  return out;
}

bool is_json(std::string_view text) {
  while (!text.empty() && is_white(text.back())) text.remove_suffix(1);
  JsonCursor cursor;
  if (cursor.feed(text) != text.size()) return false;
  cursor.end();
  return cursor.complete();
}

}  // namespace tandem::serve
