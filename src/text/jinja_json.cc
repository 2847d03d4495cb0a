#include "text/jinja_json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace tandem::jinja {

namespace {

Value text(const std::string& bytes) {
  if (!is_valid_utf8(bytes)) fail("a string of the input is not valid UTF-8");
  return Value(Text(bytes, Origin::content));
}

Value convert(const nlohmann::ordered_json& json, int levels_left) {
  if (levels_left < 0) fail(fmt::format("the input nests deeper than {} levels", kMaxNesting));
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::null:
      return Value();
    case nlohmann::ordered_json::value_t::boolean:
      return Value(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_integer:
      return Value(Int{json.get<std::int64_t>()});
    case nlohmann::ordered_json::value_t::number_unsigned:
      return Value(Int{json.get<std::uint64_t>()});
    case nlohmann::ordered_json::value_t::number_float:
      return Value(json.get<double>());
    case nlohmann::ordered_json::value_t::string:
      return text(json.get_ref<const std::string&>());
    case nlohmann::ordered_json::value_t::array: {
      Values items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(convert(item, levels_left - 1));
      return make_list(std::move(items));
    }
    case nlohmann::ordered_json::value_t::object: {
      Dict dict;
      for (const auto& [key, item] : json.items()) dict.set(text(key), convert(item, levels_left - 1));
      return make_dict(std::move(dict));
    }
    default:
      fail("the input holds binary data");
  }
}

}  // namespace

Value from_json(const nlohmann::ordered_json& json) { return convert(json, kMaxNesting); }

}  // namespace tandem::jinja
