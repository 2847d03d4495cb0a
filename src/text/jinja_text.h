// Text: a UTF-8 string that remembers which of its bytes were written in the template and which came from the
// conversation. Every string of the template interpreter is a Text, so that the finished prompt can be
// tokenised with special tokens recognised in template text only (a user who types "<|im_end|>" gets those
// ten characters).
//
// Rules of origin: literals and text between tags are `templated`; everything from the outside (messages,
// tools, extra variables) is `content`. Concatenation, slicing, trimming, splitting, joining and case
// conversion of single characters keep origins byte by byte; an operation that rewrites its input (replace,
// tojson, upper, ...) gives `templated` only if all its text inputs are wholly templated, else `content`.
// Numbers, booleans and None print as templated: they cannot spell a token.
//
// Also here: the UTF-8 helpers that Python's string semantics need (lengths and indices count code points).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::jinja {

enum class Origin : std::uint8_t { content, templated };

class Text {
 public:
  // Consecutive bytes of one origin, up to byte offset `end`; neighbours differ and none is empty.
  struct Run {
    std::size_t end;
    Origin origin;
  };

  Text() = default;
  Text(std::string bytes, Origin origin);

  const std::string& bytes() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  const std::vector<Run>& runs() const { return runs_; }

  // templated if no byte is content (so for the empty text too).
  Origin origin() const;

  void append(const Text& other);
  void append(std::string_view bytes, Origin origin);
  // Bytes [begin, end), begin <= end <= size().
  Text slice(std::size_t begin, std::size_t end) const;

 private:
  void append_run(std::size_t size, Origin origin);

  std::string bytes_;
  std::vector<Run> runs_;
};

// Origin of a result made from both.
inline Origin mix(Origin a, Origin b) {
  return a == Origin::templated && b == Origin::templated ? Origin::templated : Origin::content;
}

bool is_valid_utf8(std::string_view text);

// Bytes of the code point that starts at text[pos] (text is valid UTF-8).
std::size_t code_point_size(std::string_view text, std::size_t pos);
char32_t code_point_at(std::string_view text, std::size_t pos);
void append_utf8(std::string& out, char32_t code_point);
std::size_t count_code_points(std::string_view text);
// Byte offset of every code point, and of the end.
std::vector<std::size_t> code_point_offsets(std::string_view text);

// Python's str.isspace() for one code point; also what \s matches in its regular expressions.
bool is_space(char32_t code_point);
// Byte range that str.strip() keeps; the second form drops the code points of `chars` instead of whitespace.
struct Range {
  std::size_t begin, end;
};
enum class Side { left, right, both };
Range strip_range(std::string_view text, Side side);
Range strip_range(std::string_view text, Side side, std::string_view chars);

// Unicode case conversion as Python's str methods do it (full mappings, no locale).
std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
// First code point in title case, the rest in lower case.
std::string to_capitalized(std::string_view text);

}  // namespace tandem::jinja
