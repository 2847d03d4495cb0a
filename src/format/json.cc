#include "format/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/mapped_file.h"
#include "format/printable.h"

namespace tandem {

namespace dom = simdjson::dom;

namespace {

// Readers disagree about which of two equal keys counts, so a text that has them means nothing certain.
std::optional<std::string_view> repeated_key(dom::object object) {
  std::vector<std::string_view> keys;
  for (const dom::key_value_pair field : object) keys.push_back(field.key);
  std::sort(keys.begin(), keys.end());
  const auto twin = std::adjacent_find(keys.begin(), keys.end());
  if (twin == keys.end()) return std::nullopt;
  return *twin;
}

}  // namespace

Result<JsonDocument> JsonDocument::parse(std::span<const std::byte> text, const std::string& where,
                                         JsonLimits limits) {
  if (text.size() > limits.max_bytes) {
    return Error{
        fmt::format("{}: {} bytes of JSON, expected at most {}", where, text.size(), limits.max_bytes)};
  }
  if (text.empty()) return Error{fmt::format("{}: the file is empty, expected JSON", where)};
  JsonDocument document;
  document.parser_ = std::make_unique<dom::parser>();
  simdjson::error_code code = document.parser_->allocate(std::max<size_t>(text.size(), 64), limits.max_depth);
  if (code == simdjson::SUCCESS) {
    code = document.parser_->parse(reinterpret_cast<const uint8_t*>(text.data()), text.size(), true)
               .get(document.root_);
  }
  if (code == simdjson::DEPTH_ERROR) {
    return Error{fmt::format("{}: JSON nested deeper than {} levels", where, limits.max_depth)};
  }
  if (code != simdjson::SUCCESS) {
    return Error{fmt::format("{}: not valid JSON: {}", where, simdjson::error_message(code))};
  }
  return document;
}

Result<JsonDocument> JsonDocument::load(const std::string& path, JsonLimits limits) {
  TD_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  return parse(file.bytes(), path, limits);
}

Result<JsonFields> JsonFields::of_root(const JsonDocument& document, const std::string& file) {
  dom::object object;
  if (document.root().get(object) != simdjson::SUCCESS) {
    return Error{fmt::format("{}: expected a JSON object, found {}", file, describe(document.root()))};
  }
  JsonFields fields(object, file, "");
  if (const auto key = repeated_key(object)) return fields.error(*key, "the key occurs more than once");
  return fields;
}

std::optional<dom::element> JsonFields::element(std::string_view key) const {
  dom::element value;
  if (object_.at_key(key).get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return value;
}

Error JsonFields::error(std::string_view key, std::string_view text) const {
  return Error{fmt::format("{}: {}{}: {}", file_, prefix_, printable(key), text)};
}

Result<std::optional<int64_t>> JsonFields::integer(std::string_view key, int64_t low, int64_t high) const {
  const auto value = element(key);
  if (!value) return std::optional<int64_t>();
  int64_t x = 0;
  if (value->get(x) != simdjson::SUCCESS) {
    // Some writers print whole numbers as 32.0.
    double d = 0;
    const bool whole = value->is_double() && value->get(d) == simdjson::SUCCESS && std::trunc(d) == d &&
                       std::abs(d) < 9007199254740992.0;
    if (!whole) {
      return error(key,
                   fmt::format("expected an integer in [{}, {}], found {}", low, high, describe(*value)));
    }
    x = int64_t(d);
  }
  if (x < low || x > high) {
    return error(key, fmt::format("expected an integer in [{}, {}], found {}", low, high, x));
  }
  return std::optional<int64_t>(x);
}

Result<std::optional<double>> JsonFields::number(std::string_view key, double low, double high) const {
  const auto value = element(key);
  if (!value) return std::optional<double>();
  double x = 0;
  if (!value->is_number() || value->get(x) != simdjson::SUCCESS || !(x >= low && x <= high)) {
    return error(key, fmt::format("expected a number in [{}, {}], found {}", low, high, describe(*value)));
  }
  return std::optional<double>(x);
}

Result<std::optional<bool>> JsonFields::boolean(std::string_view key) const {
  const auto value = element(key);
  if (!value) return std::optional<bool>();
  bool x = false;
  if (value->get(x) != simdjson::SUCCESS) {
    return error(key, fmt::format("expected true or false, found {}", describe(*value)));
  }
  return std::optional<bool>(x);
}

Result<std::optional<std::string>> JsonFields::string(std::string_view key) const {
  const auto value = element(key);
  if (!value) return std::optional<std::string>();
  std::string_view x;
  if (value->get(x) != simdjson::SUCCESS) {
    return error(key, fmt::format("expected a string, found {}", describe(*value)));
  }
  return std::optional<std::string>(std::string(x));
}

Result<std::optional<JsonFields>> JsonFields::object(std::string_view key) const {
  const auto value = element(key);
  if (!value) return std::optional<JsonFields>();
  dom::object x;
  if (value->get(x) != simdjson::SUCCESS) {
    return error(key, fmt::format("expected an object, found {}", describe(*value)));
  }
  JsonFields fields(x, file_, fmt::format("{}{}.", prefix_, printable(key)));
  if (const auto twin = repeated_key(x)) return fields.error(*twin, "the key occurs more than once");
  return std::optional<JsonFields>(std::move(fields));
}

Result<std::vector<int64_t>> JsonFields::integers(std::string_view key, int64_t low, int64_t high) const {
  std::vector<int64_t> list;
  const auto value = element(key);
  if (!value) return list;
  dom::array array;
  if (value->get(array) != simdjson::SUCCESS) {
    TD_ASSIGN_OR_RETURN(const std::optional<int64_t> one, integer(key, low, high));
    list.push_back(*one);
    return list;
  }
  for (const dom::element item : array) {
    int64_t x = 0;
    if (item.get(x) != simdjson::SUCCESS || x < low || x > high) {
      return error(key, fmt::format("expected integers in [{}, {}], found {}", low, high, describe(item)));
    }
    list.push_back(x);
  }
  return list;
}

Result<std::vector<std::string>> JsonFields::strings(std::string_view key) const {
  std::vector<std::string> list;
  const auto value = element(key);
  if (!value) return list;
  dom::array array;
  if (value->get(array) != simdjson::SUCCESS) {
    return error(key, fmt::format("expected a list of strings, found {}", describe(*value)));
  }
  for (const dom::element item : array) {
    std::string_view x;
    if (item.get(x) != simdjson::SUCCESS) {
      return error(key, fmt::format("expected a list of strings, found {} in it", describe(item)));
    }
    list.emplace_back(x);
  }
  return list;
}

Result<int64_t> JsonFields::require_integer(std::string_view key, int64_t low, int64_t high) const {
  TD_ASSIGN_OR_RETURN(const std::optional<int64_t> x, integer(key, low, high));
  if (!x) return error(key, fmt::format("expected an integer in [{}, {}], found nothing", low, high));
  return *x;
}

Result<double> JsonFields::require_number(std::string_view key, double low, double high) const {
  TD_ASSIGN_OR_RETURN(const std::optional<double> x, number(key, low, high));
  if (!x) return error(key, fmt::format("expected a number in [{}, {}], found nothing", low, high));
  return *x;
}

std::string describe(dom::element element) {
  switch (element.type()) {
    case dom::element_type::ARRAY:
      return "a list";
    case dom::element_type::OBJECT:
      return "an object";
    case dom::element_type::INT64:
      return fmt::format("{}", int64_t(element.get_int64().value_unsafe()));
    case dom::element_type::UINT64:
      return fmt::format("{}", uint64_t(element.get_uint64().value_unsafe()));
    case dom::element_type::DOUBLE:
      return fmt::format("{}", double(element.get_double().value_unsafe()));
    case dom::element_type::STRING:
      return fmt::format("\"{}\"", printable(element.get_string().value_unsafe()));
    case dom::element_type::BOOL:
      return element.get_bool().value_unsafe() ? "true" : "false";
    case dom::element_type::NULL_VALUE:
      return "null";
  }
  return "something unknown";
}

}  // namespace tandem
