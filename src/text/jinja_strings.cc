// String operations that filters and methods share.
#include <algorithm>

#include "text/jinja_builtins.h"
#include "text/jinja_operators.h"

namespace tandem::jinja {

Value change_case(Interpreter& interpreter, const Text& text, Case to) {
  interpreter.budget().charge_bytes(3 * text.size());  // no mapping grows a string more
  const std::string& bytes = text.bytes();
  return Value(Text(to == Case::upper   ? to_upper(bytes)
                    : to == Case::lower ? to_lower(bytes)
                                        : to_capitalized(bytes),
                    text.origin()));
}

Value replace(Interpreter& interpreter, const Text& text, const Text& old, const Text& replacement,
              Int count) {
  const std::string& bytes = text.bytes();
  std::vector<std::size_t> found;
  const auto wanted = [&] { return count < 0 || static_cast<Int>(found.size()) < count; };
  if (old.empty()) {
    for (std::size_t at : code_point_offsets(bytes)) {
      if (wanted()) found.push_back(at);
    }
  } else {
    for (std::size_t at = 0; wanted() && (at = find_bytes(bytes, old.bytes(), at)) != std::string::npos;) {
      found.push_back(at);
      at += old.size();
    }
  }
  if (found.empty()) return Value(text);
  interpreter.budget().charge_steps(found.size());
  interpreter.budget().charge_bytes(bytes.size());
  interpreter.budget().charge_bytes(found.size(), replacement.size());
  std::string out;
  std::size_t copied = 0;
  for (const std::size_t at : found) {
    out.append(bytes, copied, at - copied);
    out += replacement.bytes();
    copied = at + old.size();
  }
  out.append(bytes, copied);
  return Value(Text(std::move(out), mix(text.origin(), replacement.origin())));
}

Value strip(Interpreter& interpreter, const Text& text, Side side, const Value* chars) {
  interpreter.budget().charge_bytes(text.size());
  if (chars != nullptr && !chars->is_string()) fail("strip characters must be a string");
  const Range range =
      chars == nullptr ? strip_range(text.bytes(), side) : strip_range(text.bytes(), side, chars->bytes());
  return Value(text.slice(range.begin, range.end));
}

Value join(Interpreter& interpreter, const Text& separator, const Values& items) {
  Budget& budget = interpreter.budget();
  budget.charge_steps(items.size());
  budget.charge_bytes(items.size(), separator.size());
  Text out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(separator);
    out.append(interpreter.text_of(items[i]));
  }
  return Value(std::move(out));
}

std::vector<Text> split_lines(const Text& text, bool keep_ends) {
  const std::string& bytes = text.bytes();
  std::vector<Text> lines;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < bytes.size();) {
    const char32_t c = code_point_at(bytes, i);
    const bool breaks =
        (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
    std::size_t end = i + code_point_size(bytes, i);
    if (breaks) {
      if (c == '\r' && end < bytes.size() && bytes[end] == '\n') ++end;
      lines.push_back(text.slice(begin, keep_ends ? end : i));
      begin = end;
    }
    i = end;
  }
  if (begin < bytes.size()) lines.push_back(text.slice(begin, bytes.size()));
  return lines;
}

}  // namespace tandem::jinja
