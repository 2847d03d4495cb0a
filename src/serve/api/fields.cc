#include "serve/api/fields.h"

#include <fmt/format.h>

#include <cmath>

namespace tandem::serve {

std::optional<int64_t> as_integer(const Json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t(INT64_MAX)) return std::nullopt;
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double x = value.get<double>();
  if (x != std::floor(x) || std::abs(x) >= 9007199254740992.0) return std::nullopt;
  return int64_t(x);
}

const Json* Fields::any(std::string_view key) {
  known_.insert(std::string(key));
  const auto it = object_->find(std::string(key));
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

void Fields::wrong(std::string_view key, std::string code, std::string_view want, const Json& found) {
  fail(key, std::move(code), fmt::format("expected {}, found {}", want, shown(found)));
}

void Fields::fail(std::string_view key, std::string code, std::string_view message) {
  if (*error_) return;
  const std::string param = prefix_ + std::string(key);
  *error_ = invalid_field(param, std::move(code), fmt::format("{}: {}", param, message));
}

std::optional<double> Fields::number(std::string_view key, double low, double high, std::string_view want) {
  const Json* value = any(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) return wrong(key, "invalid_type", want, *value), std::nullopt;
  const double x = value->get<double>();
  if (!(x >= low && x <= high)) return wrong(key, "out_of_range", want, *value), std::nullopt;
  return x;
}

std::optional<int64_t> Fields::integer(std::string_view key, int64_t low, int64_t high) {
  const Json* value = any(key);
  if (value == nullptr) return std::nullopt;
  const std::string want = high == INT64_MAX || high == INT32_MAX
                               ? fmt::format("an integer >= {}", low)
                               : fmt::format("an integer in [{}, {}]", low, high);
  const auto x = as_integer(*value);
  if (!x) return wrong(key, value->is_number() ? "out_of_range" : "invalid_type", want, *value), std::nullopt;
  if (*x < low || *x > high) return wrong(key, "out_of_range", want, *value), std::nullopt;
  return x;
}

std::optional<bool> Fields::boolean(std::string_view key) {
  const Json* value = any(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) return wrong(key, "invalid_type", "true or false", *value), std::nullopt;
  return value->get<bool>();
}

std::optional<std::string> Fields::string(std::string_view key) {
  const Json* value = any(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) return wrong(key, "invalid_type", "a string", *value), std::nullopt;
  return value->get<std::string>();
}

const Json* Fields::object(std::string_view key) {
  const Json* value = any(key);
  if (value == nullptr || value->is_object()) return value;
  return wrong(key, "invalid_type", "an object", *value), nullptr;
}

const Json* Fields::array(std::string_view key) {
  const Json* value = any(key);
  if (value == nullptr || value->is_array()) return value;
  return wrong(key, "invalid_type", "an array", *value), nullptr;
}

std::vector<std::string> Fields::unknown() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object_->items()) {
    if (known_.find(key) == known_.end()) keys.push_back(key);
  }
  return keys;
}

}  // namespace tandem::serve
