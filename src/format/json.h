// Strict JSON for files of unknown origin: size and depth are bounded before parsing, UTF-8 is checked, and
// what is asked for by name is checked for its type. Private to format/ (brings simdjson's header with it).
#pragma once

#include <simdjson.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tandem {

struct JsonLimits {
  size_t max_bytes = size_t{16} << 20;
  size_t max_depth = 32;
};

// One parsed text and the memory behind its elements.
class JsonDocument {
 public:
  // `where` names the text in errors (a path). Errors: too long, too deep, not JSON, not UTF-8.
  static Result<JsonDocument> parse(std::span<const std::byte> text, const std::string& where,
                                    JsonLimits limits = {});
  // Maps and parses a file.
  static Result<JsonDocument> load(const std::string& path, JsonLimits limits = {});

  simdjson::dom::element root() const { return root_; }

 private:
  std::unique_ptr<simdjson::dom::parser> parser_;  // elements point into it
  simdjson::dom::element root_;
};

// Fields of one object, read with errors such as
//   "models/x/config.json: text_config.hidden_size: expected an integer in [1, 131072], found -3".
// Borrows the JsonDocument. A field that is null counts as absent.
class JsonFields {
 public:
  // `prefix` is the path of the object inside the file ("" or "text_config.").
  JsonFields(simdjson::dom::object object, std::string file, std::string prefix)
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

  // The root of a document, or an error that it is not an object. Here and below object(): a repeated key is
  // an error.
  static Result<JsonFields> of_root(const JsonDocument& document, const std::string& file);

  bool has(std::string_view key) const { return element(key).has_value(); }
  std::optional<simdjson::dom::element> element(std::string_view key) const;

  // Absent fields give nullopt; a wrong type or a value outside [low, high] is an error.
  Result<std::optional<int64_t>> integer(std::string_view key, int64_t low, int64_t high) const;
  Result<std::optional<double>> number(std::string_view key, double low, double high) const;
  Result<std::optional<bool>> boolean(std::string_view key) const;
  Result<std::optional<std::string>> string(std::string_view key) const;
  Result<std::optional<JsonFields>> object(std::string_view key) const;
  // An integer or a list of integers, as token ids are given.
  Result<std::vector<int64_t>> integers(std::string_view key, int64_t low, int64_t high) const;
  Result<std::vector<std::string>> strings(std::string_view key) const;

  // The same, where an absent field is an error.
  Result<int64_t> require_integer(std::string_view key, int64_t low, int64_t high) const;
  Result<double> require_number(std::string_view key, double low, double high) const;

  // "file: prefix.key: " + text
  Error error(std::string_view key, std::string_view text) const;

  simdjson::dom::object raw() const { return object_; }
  const std::string& file() const { return file_; }
  const std::string& prefix() const { return prefix_; }

 private:
  simdjson::dom::object object_;
  std::string file_;
  std::string prefix_;
};

// An element as short text for an error message: "\"abc\"", "-3", "an object".
std::string describe(simdjson::dom::element element);

}  // namespace tandem
