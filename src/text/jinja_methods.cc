#include <fmt/format.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <unordered_map>

#include "text/jinja_args.h"
#include "text/jinja_builtins.h"
#include "text/jinja_format.h"
#include "text/jinja_operators.h"
#include "text/jinja_print.h"

namespace tandem::jinja {

namespace {

using MethodFunction = Value (*)(Interpreter&, const Value& object, const Args&);
using MethodTable = std::unordered_map<std::string_view, MethodFunction>;

constexpr std::size_t kNowhere = std::string_view::npos;

// --- str

template <Side kSide>
Value str_strip(Interpreter& in, const Value& s, const Args& args) {
  return strip(in, s.text(), kSide, Bound("strip()", args, {"chars"}).get(0));
}

template <Case kCase>
Value str_case(Interpreter& in, const Value& s, const Args& args) {
  const Bound none("the method", args, {});
  return change_case(in, s.text(), kCase);
}

Value str_title(Interpreter& in, const Value& s, const Args& args) {
  const Bound none("title()", args, {});
  const std::string& bytes = s.bytes();
  in.budget().charge_bytes(3 * bytes.size());
  const auto is_cased = [&](std::size_t at) {
    return u_hasBinaryProperty(static_cast<UChar32>(code_point_at(bytes, at)), UCHAR_CASED) != 0;
  };
  std::string out;
  for (std::size_t i = 0; i < bytes.size();) {
    std::size_t end = i + code_point_size(bytes, i);
    if (!is_cased(i)) {
      out.append(bytes, i, end - i);
    } else {
      while (end < bytes.size() && is_cased(end)) end += code_point_size(bytes, end);
      out += to_capitalized(std::string_view(bytes).substr(i, end - i));
    }
    i = end;
  }
  return Value(Text(std::move(out), s.text().origin()));
}

Value piece(const Text& text, std::size_t begin, std::size_t end) { return Value(text.slice(begin, end)); }

// str.split() without a separator: runs of whitespace separate, none at the ends (but what a limit leaves
// over keeps its blanks).
Values split_blanks(const Text& text, Int limit) {
  const std::string& bytes = text.bytes();
  Values parts;
  std::size_t i = strip_range(bytes, Side::left).begin;
  while (i < bytes.size()) {
    if (limit >= 0 && static_cast<Int>(parts.size()) == limit) {
      parts.push_back(piece(text, i, bytes.size()));
      break;
    }
    const std::size_t begin = i;
    while (i < bytes.size() && !is_space(code_point_at(bytes, i))) i += code_point_size(bytes, i);
    parts.push_back(piece(text, begin, i));
    while (i < bytes.size() && is_space(code_point_at(bytes, i))) i += code_point_size(bytes, i);
  }
  return parts;
}

// Where to cut: non-overlapping places of `separator`, from the left.
std::vector<std::size_t> places(const std::string& bytes, const std::string& separator, Int limit) {
  std::vector<std::size_t> found;
  for (std::size_t at = 0; (limit < 0 || static_cast<Int>(found.size()) < limit) &&
                           (at = find_bytes(bytes, separator, at)) != kNowhere;) {
    found.push_back(at);
    at += separator.size();
  }
  return found;
}

// The same from the right; found by reversing both.
std::vector<std::size_t> places_from_right(const std::string& bytes, const std::string& separator,
                                           Int limit) {
  const std::string text(bytes.rbegin(), bytes.rend()), needle(separator.rbegin(), separator.rend());
  std::vector<std::size_t> found = places(text, needle, limit);
  for (std::size_t& at : found) at = bytes.size() - at - separator.size();
  std::reverse(found.begin(), found.end());
  return found;
}

enum class From : bool { left, right };

template <From kFrom>
Value str_split(Interpreter& in, const Value& s, const Args& args) {
  const Bound bound("split()", args, {"sep", "maxsplit"});
  const Text& text = s.text();
  in.budget().charge_bytes(text.size());
  const Int limit = bound.integer(1, -1);
  Values parts;
  if (bound.get(0) == nullptr) {
    if (kFrom == From::right && limit >= 0) fail("rsplit() with a limit needs a separator");
    parts = split_blanks(text, limit);
  } else {
    const std::string& separator = bound.text(0).bytes();
    if (separator.empty()) fail("split(): the separator is empty");
    std::size_t begin = 0;
    for (const std::size_t at : kFrom == From::left ? places(text.bytes(), separator, limit)
                                                    : places_from_right(text.bytes(), separator, limit)) {
      parts.push_back(piece(text, begin, at));
      begin = at + separator.size();
    }
    parts.push_back(piece(text, begin, text.size()));
  }
  in.budget().charge_steps(parts.size());
  return make_list(std::move(parts));
}

template <From kFrom>
Value str_partition(Interpreter& in, const Value& s, const Args& args) {
  const Bound bound("partition()", args, {"sep"});
  const Text& text = s.text();
  const Text& separator = bound.text(0);
  if (separator.empty()) fail("partition(): the separator is empty");
  in.budget().charge_bytes(text.size());
  const auto found = kFrom == From::left ? places(text.bytes(), separator.bytes(), 1)
                                         : places_from_right(text.bytes(), separator.bytes(), 1);
  if (found.empty()) {
    return kFrom == From::left ? make_tuple({s, Value(Text()), Value(Text())})
                               : make_tuple({Value(Text()), Value(Text()), s});
  }
  const std::size_t end = found[0] + separator.size();
  return make_tuple({piece(text, 0, found[0]), piece(text, found[0], end), piece(text, end, text.size())});
}

Value str_splitlines(Interpreter& in, const Value& s, const Args& args) {
  const Bound bound("splitlines()", args, {"keepends"});
  Values lines;
  for (Text& line : split_lines(s.text(), bound.flag(0, false))) lines.emplace_back(std::move(line));
  in.budget().charge_bytes(s.text().size());
  in.budget().charge_steps(lines.size());
  return make_list(std::move(lines));
}

// s[start:end] of the optional arguments 1 and 2, as byte offsets into s. false if start is beyond the end.
bool byte_range(const std::string& bytes, const Bound& bound, Range& range) {
  range = {0, bytes.size()};
  if (bound.get(1) == nullptr && bound.get(2) == nullptr) return true;
  const auto offsets = code_point_offsets(bytes);
  const auto size = static_cast<Int>(offsets.size() - 1);
  const auto resolve = [&](std::size_t i, Int otherwise) {
    const Int value = bound.get(i) == nullptr ? otherwise : bound.integer(i, otherwise);
    return std::max<Int>(value < 0 ? value + size : value, 0);
  };
  const Int start = resolve(1, 0), end = std::min(resolve(2, size), size);
  if (start > end) return false;
  range = {offsets[static_cast<std::size_t>(start)], offsets[static_cast<std::size_t>(end)]};
  return true;
}

enum class Edge : bool { start, end };

template <Edge kEdge>
Value str_edge(Interpreter&, const Value& s, const Args& args) {
  const Bound bound("startswith() or endswith()", args, {"affix", "start", "end"});
  Range range{};
  if (!byte_range(s.bytes(), bound, range)) return Value(false);
  const std::string_view text = std::string_view(s.bytes()).substr(range.begin, range.end - range.begin);
  const Value& affixes = bound.required(0);
  const bool several = affixes.is_sequence() && affixes.sequence().type == Sequence::Type::tuple;
  for (const Value& affix : several ? affixes.sequence().items : Values{affixes}) {
    if (!affix.is_string()) {
      fail(fmt::format("startswith() and endswith() need a string or a tuple of strings, not {}",
                       type_name(affix)));
    }
    if (kEdge == Edge::start ? text.starts_with(affix.bytes()) : text.ends_with(affix.bytes()))
      return Value(true);
  }
  return Value(false);
}

template <From kFrom>
Value str_find(Interpreter& in, const Value& s, const Args& args) {
  const Bound bound("find()", args, {"sub", "start", "end"});
  const std::string& bytes = s.bytes();
  in.budget().charge_steps(bytes.size() / 16);
  Range range{};
  if (!byte_range(bytes, bound, range)) return Value::integer(-1);
  const std::string_view text = std::string_view(bytes).substr(0, range.end);
  const std::string& needle = bound.text(0).bytes();
  std::size_t at = kNowhere;
  if (kFrom == From::left) {
    at = find_bytes(text, needle, range.begin);
  } else if (needle.empty()) {
    at = range.end;
  } else {
    const auto found = places_from_right(std::string(text.substr(range.begin)), needle, 1);
    if (!found.empty()) at = range.begin + found[0];
  }
  return at == kNowhere ? Value::integer(-1)
                        : Value::size(count_code_points(std::string_view(bytes).substr(0, at)));
}

template <From kFrom>
Value str_index(Interpreter& in, const Value& s, const Args& args) {
  const Value at = str_find<kFrom>(in, s, args);
  if (at.integral() < 0) fail("index(): substring not found");
  return at;
}

Value str_count(Interpreter& in, const Value& s, const Args& args) {
  const Bound bound("count()", args, {"sub", "start", "end"});
  in.budget().charge_steps(s.text().size() / 16);
  Range range{};
  if (!byte_range(s.bytes(), bound, range)) return Value::integer(0);
  const std::string text = s.bytes().substr(range.begin, range.end - range.begin);
  const std::string& needle = bound.text(0).bytes();
  return Value::size(needle.empty() ? count_code_points(text) + 1 : places(text, needle, -1).size());
}

Value str_replace(Interpreter& in, const Value& s, const Args& args) {
  const Bound bound("replace()", args, {"old", "new", "count"});
  return replace(in, s.text(), bound.text(0), bound.text(1), bound.integer(2, -1));
}

Value str_join(Interpreter& in, const Value& s, const Args& args) {
  const Values items = iterate(Bound("join()", args, {"iterable"}).required(0));
  for (const Value& item : items) {
    if (!item.is_string()) fail(fmt::format("join() needs strings, found {}", type_name(item)));
  }
  return join(in, s.text(), items);
}

Value str_format(Interpreter& in, const Value& s, const Args& args) {
  return Value(format_braces(in, s.text(), args));
}

Value str_remove_prefix(Interpreter& in, const Value& s, const Args& args) {
  const Bound bound("removeprefix()", args, {"prefix"});
  in.budget().charge_bytes(s.text().size());
  const std::size_t cut = s.bytes().starts_with(bound.text(0).bytes()) ? bound.text(0).size() : 0;
  return piece(s.text(), cut, s.text().size());
}

Value str_remove_suffix(Interpreter& in, const Value& s, const Args& args) {
  const Bound bound("removesuffix()", args, {"suffix"});
  in.budget().charge_bytes(s.text().size());
  const std::size_t cut = s.bytes().ends_with(bound.text(0).bytes()) ? bound.text(0).size() : 0;
  return piece(s.text(), 0, s.text().size() - cut);
}

template <bool (*kIs)(char32_t)>
Value str_all(Interpreter&, const Value& s, const Args& args) {
  const Bound none("the method", args, {});
  const std::string& bytes = s.bytes();
  for (std::size_t i = 0; i < bytes.size(); i += code_point_size(bytes, i)) {
    if (!kIs(code_point_at(bytes, i))) return Value(false);
  }
  return Value(!bytes.empty());
}

bool is_digit_char(char32_t c) { return u_isdigit(static_cast<UChar32>(c)) != 0; }
bool is_letter(char32_t c) { return u_isalpha(static_cast<UChar32>(c)) != 0; }
bool is_letter_or_digit(char32_t c) { return is_letter(c) || is_digit_char(c); }

template <bool kUpper>
Value str_is_case(Interpreter& in, const Value& s, const Args& args) {
  return Value(in.apply_test(kUpper ? "upper" : "lower", s, args));
}

// --- dict, list, loop

template <Sequence::Type kType>
Value dict_view(Interpreter& in, const Value& d, const Args& args) {
  const Bound none("the method", args, {});
  in.budget().charge_steps(d.dict().entries.size());
  Values items;
  for (const auto& [key, value] : d.dict().entries) {
    items.push_back(kType == Sequence::Type::keys     ? key
                    : kType == Sequence::Type::values ? value
                                                      : make_tuple({key, value}));
  }
  return make_sequence(kType, std::move(items));
}

Value dict_get(Interpreter&, const Value& d, const Args& args) {
  const Bound bound("get()", args, {"key", "default"});
  require_hashable(bound.required(0));
  if (const Value* found = d.dict().find(bound.required(0))) return *found;
  return bound.has(1) ? bound.required(1) : Value();
}

Value copy_of(Interpreter&, const Value& object, const Args& args) {
  const Bound none("copy()", args, {});
  return object;
}

Value list_index(Interpreter& in, const Value& l, const Args& args) {
  const Bound bound("index()", args, {"value"});
  in.budget().charge_steps(extent_of(l).weight);
  const Values& items = l.sequence().items;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (equal(items[i], bound.required(0))) return Value::size(i);
  }
  fail("index(): the value is not in the list");
}

Value list_count(Interpreter& in, const Value& l, const Args& args) {
  const Bound bound("count()", args, {"value"});
  in.budget().charge_steps(extent_of(l).weight);
  const Values& items = l.sequence().items;
  return Value::size(static_cast<std::size_t>(std::count_if(
      items.begin(), items.end(), [&](const Value& item) { return equal(item, bound.required(0)); })));
}

Value loop_cycle(Interpreter&, const Value& l, const Args& args) {
  if (args.positional.empty()) fail("loop.cycle() needs at least one value");
  const Loop& loop = **l.get_if<std::shared_ptr<Loop>>();
  return args.positional[loop.index0 % args.positional.size()];
}

const MethodTable& string_methods() {
  static const MethodTable kMethods = {
      {"capitalize", str_case<Case::capitalize>},
      {"count", str_count},
      {"endswith", str_edge<Edge::end>},
      {"find", str_find<From::left>},
      {"format", str_format},
      {"index", str_index<From::left>},
      {"isalnum", str_all<is_letter_or_digit>},
      {"isalpha", str_all<is_letter>},
      {"isdigit", str_all<is_digit_char>},
      {"islower", str_is_case<false>},
      {"isspace", str_all<is_space>},
      {"isupper", str_is_case<true>},
      {"join", str_join},
      {"lower", str_case<Case::lower>},
      {"lstrip", str_strip<Side::left>},
      {"partition", str_partition<From::left>},
      {"removeprefix", str_remove_prefix},
      {"removesuffix", str_remove_suffix},
      {"replace", str_replace},
      {"rfind", str_find<From::right>},
      {"rindex", str_index<From::right>},
      {"rpartition", str_partition<From::right>},
      {"rsplit", str_split<From::right>},
      {"rstrip", str_strip<Side::right>},
      {"split", str_split<From::left>},
      {"splitlines", str_splitlines},
      {"startswith", str_edge<Edge::start>},
      {"strip", str_strip<Side::both>},
      {"title", str_title},
      {"upper", str_case<Case::upper>},
  };
  return kMethods;
}

const MethodTable& methods_of(const Value& object) {
  static const MethodTable kNone;
  static const MethodTable kDict = {
      {"copy", copy_of},
      {"get", dict_get},
      {"items", dict_view<Sequence::Type::items>},
      {"keys", dict_view<Sequence::Type::keys>},
      {"values", dict_view<Sequence::Type::values>},
  };
  static const MethodTable kList = {{"copy", copy_of}, {"count", list_count}, {"index", list_index}};
  static const MethodTable kTuple = {{"count", list_count}, {"index", list_index}};
  static const MethodTable kLoop = {{"cycle", loop_cycle}};
  if (object.is_string()) return string_methods();
  if (object.is_dict()) return kDict;
  if (object.get_if<std::shared_ptr<Loop>>()) return kLoop;
  if (object.is_sequence()) {
    const Sequence::Type type = object.sequence().type;
    if (type == Sequence::Type::list) return kList;
    if (type == Sequence::Type::tuple || type == Sequence::Type::range) return kTuple;
  }
  return kNone;
}

}  // namespace

MethodAccess find_method(const Value& object, std::string_view name) {
  static constexpr std::string_view kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};
  static constexpr std::string_view kListChanges[] = {"append", "clear",  "extend",  "insert",
                                                      "pop",    "remove", "reverse", "sort"};
  if (methods_of(object).contains(name)) return MethodAccess::allowed;
  const auto is_in = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  if (object.is_dict() && is_in(kDictChanges)) return MethodAccess::forbidden;
  if (object.is_sequence() && object.sequence().type == Sequence::Type::list && is_in(kListChanges)) {
    return MethodAccess::forbidden;
  }
  return name.starts_with("__") ? MethodAccess::forbidden : MethodAccess::none;
}

Value call_method(Interpreter& interpreter, const Method& method, const Args& args) {
  return methods_of(method.object).at(method.name)(interpreter, method.object, args);
}

std::optional<Value> loop_attribute(const Loop& loop, std::string_view name) {
  const std::size_t i = loop.index0, n = loop.items.size();
  if (name == "index") return Value::size(i + 1);
  if (name == "index0") return Value::size(i);
  if (name == "revindex") return Value::size(n - i);
  if (name == "revindex0") return Value::size(n - i - 1);
  if (name == "first") return Value(i == 0);
  if (name == "last") return Value(i + 1 == n);
  if (name == "length") return Value::size(n);
  if (name == "depth") return Value::integer(1);
  if (name == "depth0") return Value::integer(0);
  if (name == "previtem") return i > 0 ? loop.items[i - 1] : Value::undefined("there is no previous item");
  if (name == "nextitem") return i + 1 < n ? loop.items[i + 1] : Value::undefined("there is no next item");
  return std::nullopt;
}

}  // namespace tandem::jinja
