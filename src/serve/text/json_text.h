// JSON as text, byte by byte: what answers are written with, and what says whether a text that is still
// arriving is JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::serve {

// `text` (valid UTF-8) as the inside of a JSON string. Never writes a raw control character, U+2028 or
// U+2029, so that the result is one line for every reader.
void append_json_escaped(std::string_view text, std::string& out);
// The same with quotes around it.
void append_json_string(std::string_view text, std::string& out);

// Follows one JSON value that arrives in pieces, to a depth of 128.
class JsonCursor {
 public:
  // Takes bytes up to the end of the value or the first byte that cannot stand where it stands; returns how
  // many were taken. A number that stands alone ends at the byte behind it.
  size_t feed(std::string_view text);
  // No more bytes come: completes a number that stands alone.
  void end();

  bool complete() const { return state_ == State::done; }
  bool failed() const { return state_ == State::failed; }
  // Nothing but white space has been taken yet.
  bool empty() const { return state_ == State::value && depth_ == 0; }

  // For reading an object's fields as they come: where its next byte stands.
  int depth() const { return depth_; }
  bool in_key() const { return state_ == State::string && string_is_key_; }
  bool behind_key() const { return state_ == State::colon; }
  bool behind_value() const { return state_ == State::after; }
  bool wants_value() const { return state_ == State::value; }
  // The value that must come was followed by another cursor.
  void skip_value() { value_done(); }

  // What makes the text taken so far a complete value (with nothing, null); `cut` is how many of its last
  // bytes must go first, such as a comma or half an escape. Also after a failure, of the bytes taken.
  struct Closing {
    size_t cut = 0;
    std::string text;
  };
  Closing closing() const;

 private:
  enum class State : uint8_t {
    value,       // a value must come
    first_item,  // a value or ]
    first_key,   // a key or }
    key,         // a key must come
    colon,       // : must come
    after,       // , or the end of the container
    string,
    escape,  // behind a backslash
    number,
    word,  // inside true, false, null
    done,
    failed,
  };
  bool take(char c);
  bool fail();
  bool take_number(char c);
  void value_done();

  static constexpr int kMaxDepth = 128;
  State state_ = State::value;
  State before_ = State::value;  // of a failure
  bool containers_[kMaxDepth];   // true: object
  int depth_ = 0;
  bool string_is_key_ = false;
  int n_hex_ = 0;  // hex digits still to come
  uint16_t hex_ = 0;
  bool half_pair_ = false;  // behind the first half of a surrogate pair
  size_t since_ = 0;        // bytes since the last point where closing needs no cut
  enum class Num : uint8_t { sign, zero, whole, point, fraction, exponent, exponent_sign, power } num_{};
  std::string_view word_;
  size_t word_at_ = 0;
};

// Whether `text` is one JSON value, white space around it allowed.
bool is_json(std::string_view text);

}  // namespace tandem::serve
