// The values of the template interpreter: what Python would hand to Jinja, and no more. Integers, floats and
// booleans stay apart, dictionaries keep their order, strings carry their origin (jinja_text.h). Values are
// immutable except for namespaces, so copies are cheap and share.
//
// Containers know how deep they nest and how much they hold, and refuse more than kMaxNesting levels or
// kMaxWeight elements, which bounds every walk over a value (printing, comparing, destroying). Namespaces,
// the one way to a cycle, are owned by the interpreter and referred to by pointer; they and macros are valid
// until the render ends.
//
// Failure is the interpreter's internal error: thrown anywhere below, caught in jinja_template.cc and nowhere
// else, where it becomes a Result error with template name and line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "text/jinja_text.h"

namespace tandem::jinja {

struct Failure {
  std::string message;
  int line = 0;  // 0: the line that the interpreter is at
};

[[noreturn]] void fail(std::string message);

inline constexpr int kMaxNesting = 100;
inline constexpr std::size_t kMaxWeight = 20'000'000;

// How deep a value nests (0: no container) and how much a walk over all of it costs: its elements, shared
// ones counted every time, plus the size of its strings in units of 64 bytes.
struct Extent {
  int nesting = 0;
  std::size_t weight = 1;

  void add(Extent child);  // Failure beyond the limits
};

// Wide enough for every integer that JSON hands over (64 bits, signed and unsigned) and sums of them.
__extension__ typedef __int128 Int;

class Value;
struct Sequence;
struct Dict;
struct Namespace;
struct Macro;
struct Method;
struct Loop;

struct None {};
// Prints as nothing, is false and empty; most other uses raise `hint`.
struct Undefined {
  std::shared_ptr<const std::string> hint;
};
// A function that every template sees.
enum class Global : std::uint8_t { range, dict, namespace_, raise_exception, strftime_now };

class Value {
 public:
  using Variant = std::variant<Undefined, None, bool, Int, double, std::shared_ptr<const Text>,
                               std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>, Namespace*,
                               std::shared_ptr<const Macro>, std::shared_ptr<const Method>,
                               std::shared_ptr<Loop>, Global>;

  Value() : data_(None{}) {}
  Value(bool b) : data_(b) {}
  Value(Int i) : data_(i) {}
  Value(double d) : data_(d) {}
  Value(Text text) : data_(std::make_shared<const Text>(std::move(text))) {}
  Value(std::shared_ptr<const Sequence> sequence) : data_(std::move(sequence)) {}
  Value(std::shared_ptr<const Dict> dict) : data_(std::move(dict)) {}
  Value(Namespace* ns) : data_(ns) {}
  Value(std::shared_ptr<const Macro> macro) : data_(std::move(macro)) {}
  Value(std::shared_ptr<const Method> method) : data_(std::move(method)) {}
  Value(std::shared_ptr<Loop> loop) : data_(std::move(loop)) {}
  Value(Global global) : data_(global) {}
  Value(const char*) = delete;
  Value(int) = delete;

  static Value undefined(std::string hint);
  static Value integer(std::int64_t i) { return Value(Int{i}); }
  static Value size(std::size_t n) { return Value(static_cast<Int>(n)); }

  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  bool is_bool() const { return is<bool>(); }
  bool is_int() const { return is<Int>(); }
  bool is_float() const { return is<double>(); }
  bool is_string() const { return is<std::shared_ptr<const Text>>(); }
  bool is_sequence() const { return is<std::shared_ptr<const Sequence>>(); }
  bool is_dict() const { return is<std::shared_ptr<const Dict>>(); }
  // bool or int: what Python lets stand for an integer.
  bool is_integral() const { return is_bool() || is_int(); }
  bool is_number() const { return is_integral() || is_float(); }

  // Each needs the matching is_...().
  bool boolean() const { return std::get<bool>(data_); }
  Int integral() const { return is_bool() ? Int{boolean()} : std::get<Int>(data_); }
  double number() const { return is_float() ? std::get<double>(data_) : static_cast<double>(integral()); }
  const Text& text() const { return *std::get<std::shared_ptr<const Text>>(data_); }
  const std::string& bytes() const { return text().bytes(); }
  const Sequence& sequence() const { return *std::get<std::shared_ptr<const Sequence>>(data_); }
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  // The hint of an undefined value, thrown.
  [[noreturn]] void fail_undefined() const;

  // The pointer or scalar of that type, or nullptr.
  template <class T>
  const T* get_if() const {
    return std::get_if<T>(&data_);
  }

 private:
  template <class T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }

  Variant data_;
};

using Values = std::vector<Value>;

// Lists and everything else that is iterated in order. Generators (results of map, select, items, ...) are
// computed at once but keep Python's manners: always true, without length, and empty after having been read
// once.
struct Sequence {
  enum class Type : std::uint8_t { list, tuple, range, keys, values, items, generator };
  Type type = Type::list;
  Values items;
  Extent extent{1, 1};
  mutable bool consumed = false;  // generators only
};

Value make_sequence(Sequence::Type type, Values items);
inline Value make_list(Values items) { return make_sequence(Sequence::Type::list, std::move(items)); }
inline Value make_tuple(Values items) { return make_sequence(Sequence::Type::tuple, std::move(items)); }

// Python's dict: insertion order, later values win, keys compare by value (1 == 1.0 == True). Only keys that
// are strings are found without a search.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  Extent extent{1, 1};

  const Value* find(const Value& key) const;
  const Value* find(const std::string& key) const;
  void set(const Value& key, Value value);

 private:
  std::size_t index_of(const Value& key) const;  // entries.size() if absent

  std::unordered_map<std::string, std::size_t> string_keys_;
};

inline Value make_dict(Dict dict) { return Value(std::make_shared<const Dict>(std::move(dict))); }

struct Namespace {
  Dict attributes;
};

// A method bound to its object: "abc".upper
struct Method {
  Value object;
  std::string name;
};

// The `loop` variable.
struct Loop {
  Values items;
  std::size_t index0 = 0;
  int depth0 = 0;
};

// --- Python's view of a value

Extent extent_of(const Value& value);
// "str", "int", "list", ...: for messages.
std::string type_name(const Value& value);
bool truthy(const Value& value);
bool equal(const Value& a, const Value& b);
// a < b where Python allows it (numbers, strings, lists, tuples), else a Failure.
bool less(const Value& a, const Value& b);
// Items of anything iterable (characters of a string, keys of a dict); reads a generator empty. Failure
// otherwise.
Values iterate(const Value& value);
bool is_iterable(const Value& value);
// Failure for what Python refuses as a key: lists, dicts, and tuples that hold one.
void require_hashable(const Value& value);
bool has_length(const Value& value);
std::size_t length(const Value& value);

}  // namespace tandem::jinja
