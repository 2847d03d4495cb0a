#include "serve/text/tool_set.h"

#include <algorithm>

#include "serve/text/json_text.h"

namespace tandem::serve {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::pair<std::string_view, ValueType> kTypeNames[] = {
    {"integer", ValueType::integer}, {"number", ValueType::number}, {"boolean", ValueType::boolean},
    {"null", ValueType::null},       {"array", ValueType::array},   {"object", ValueType::object},
    {"string", ValueType::string}};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kWhite = " \t\r\n";
  const size_t first = text.find_first_not_of(kWhite);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kWhite) - first + 1);
}

const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

// "#/$defs/Name" and its kind, below the tool's own schema.
const Json* referred(const Json& root, const std::string& reference) {
  if (!reference.starts_with("#/")) return nullptr;
  const Json* at = &root;
  for (size_t from = 2; from <= reference.size();) {
    const size_t to = std::min(reference.find('/', from), reference.size());
    at = member(*at, reference.substr(from, to - from).c_str());
    if (at == nullptr) return nullptr;
    from = to + 1;
  }
  return at;
}

void add(std::vector<ValueType>& types, ValueType type) {
  if (std::find(types.begin(), types.end(), type) == types.end()) types.push_back(type);
}

void add_type_of(const Json& value, std::vector<ValueType>& types) {
  switch (value.type()) {
    case Json::value_t::string:
      add(types, ValueType::string);
      break;
    case Json::value_t::boolean:
      add(types, ValueType::boolean);
      break;
    case Json::value_t::null:
      add(types, ValueType::null);
      break;
    case Json::value_t::array:
      add(types, ValueType::array);
      break;
    case Json::value_t::object:
      add(types, ValueType::object);
      break;
    case Json::value_t::number_float:
      add(types, ValueType::number);
      break;
    default:
      add(types, ValueType::integer);
      break;
  }
}

// `budget` bounds the schemas looked at: references may form circles, and alternatives may multiply.
void collect(const Json& schema, const Json& root, int& budget, std::vector<ValueType>& types) {
  if (--budget < 0 || !schema.is_object()) return;
  if (const Json* reference = member(schema, "$ref"); reference != nullptr && reference->is_string()) {
    if (const Json* target = referred(root, reference->get_ref<const std::string&>())) {
      collect(*target, root, budget, types);
    }
  }
  const auto add_named = [&](const Json& name) {
    if (!name.is_string()) return;
    for (const auto& [known, type] : kTypeNames) {
      if (name.get_ref<const std::string&>() == known) add(types, type);
    }
  };
  if (const Json* type = member(schema, "type")) {
    if (type->is_array()) {
      for (const Json& name : *type) add_named(name);
    } else {
      add_named(*type);
    }
  }
  for (const char* key : {"anyOf", "oneOf", "allOf"}) {
    if (const Json* parts = member(schema, key); parts != nullptr && parts->is_array()) {
      for (const Json& part : *parts) collect(part, root, budget, types);
    }
  }
  if (!types.empty()) return;
  if (const Json* values = member(schema, "enum"); values != nullptr && values->is_array()) {
    for (const Json& value : *values) add_type_of(value, types);
  } else if (const Json* value = member(schema, "const")) {
    add_type_of(*value, types);
  } else if (member(schema, "properties") != nullptr) {
    add(types, ValueType::object);
  } else if (member(schema, "items") != nullptr) {
    add(types, ValueType::array);
  }
}

bool is_integer(std::string_view text) {
  if (!is_json(text)) return false;
  return text.find_first_not_of("-0123456789") == std::string_view::npos;
}

// The JSON text of `text` as a value of this type; empty when it is none.
std::string_view as_type(std::string_view text, ValueType type) {
  const char first = text.empty() ? '\0' : text[0];
  switch (type) {
    case ValueType::integer: {
      if (is_integer(text)) return text;
      // 3.0 is an integer to JSON Schema.
      const size_t point = text.find('.');
      if (point == std::string_view::npos || point + 1 == text.size()) return {};
      const bool whole = text.substr(point + 1).find_first_not_of('0') == std::string_view::npos;
      return whole && is_integer(text.substr(0, point)) ? text.substr(0, point) : std::string_view{};
    }
    case ValueType::number:
      return (first == '-' || (first >= '0' && first <= '9')) && is_json(text) ? text : std::string_view{};
    case ValueType::boolean:
      if (text == "true" || text == "True") return "true";
      return text == "false" || text == "False" ? "false" : std::string_view{};
    case ValueType::null:
      return text == "null" || text == "None" ? "null" : std::string_view{};
    case ValueType::array:
      return first == '[' && is_json(text) ? text : std::string_view{};
    case ValueType::object:
      return first == '{' && is_json(text) ? text : std::string_view{};
    case ValueType::string:
      return {};
  }
  return {};
}

}  // namespace

ToolSet::ToolSet(const Json& tools) {
  for (const Json& tool : tools) {
    const Json& function = tool.at("function");
    Parameters& parameters = tools_[function.at("name").get<std::string>()];
    const Json* schema = member(function, "parameters");
    const Json* properties = schema == nullptr ? nullptr : member(*schema, "properties");
    if (properties == nullptr || !properties->is_object()) continue;
    for (const auto& [key, property] : properties->items()) {
      std::vector<ValueType> types;
      int budget = 64;
      collect(property, *schema, budget, types);
      const auto string = std::find(types.begin(), types.end(), ValueType::string);
      if (string != types.end()) std::rotate(string, string + 1, types.end());
      parameters[key] = std::move(types);
    }
  }
}

const ToolSet& ToolSet::none() {
  static const ToolSet empty;
  return empty;
}

const std::vector<ValueType>& ToolSet::types(std::string_view tool, std::string_view parameter) const {
  static const std::vector<ValueType> none;
  const auto t = tools_.find(tool);
  if (t == tools_.end()) return none;
  const auto p = t->second.find(parameter);
  return p == t->second.end() ? none : p->second;
}

std::string typed_value(std::string_view text, const std::vector<ValueType>& types) {
  const std::string_view bare = trimmed(text);
  for (const ValueType type : types) {
    if (const std::string_view json = as_type(bare, type); !json.empty()) return std::string(json);
  }
  if (types.empty() && bare != "true" && bare != "false" && bare != "null" && is_json(bare)) {
    return std::string(bare);
  }
  std::string out;
  append_json_string(text, out);
  return out;
}

}  // namespace tandem::serve
