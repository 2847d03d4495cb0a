// What a request's tools say about the types of their arguments, for models that write arguments as bare
// text.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::serve {

enum class ValueType : uint8_t { integer, number, boolean, null, array, object, string };

class ToolSet {
 public:
  ToolSet() = default;
  // `tools`: a checked array of {"type": "function", "function": {"name", "parameters"?}}.
  explicit ToolSet(const nlohmann::ordered_json& tools);

  static const ToolSet& none();

  bool has_tool(std::string_view name) const { return tools_.find(name) != tools_.end(); }
  // The types a parameter may have, in the order in which they are tried, string last; empty when nothing is
  // known of it.
  const std::vector<ValueType>& types(std::string_view tool, std::string_view parameter) const;

 private:
  using Parameters = std::map<std::string, std::vector<ValueType>, std::less<>>;
  std::map<std::string, Parameters, std::less<>> tools_;
};

// The JSON text of a value that was written as bare text: the first type that it fits. What fits none is a
// string, and so is, without types, what is no JSON or a bare word (true, false, null).
std::string typed_value(std::string_view text, const std::vector<ValueType>& types);

}  // namespace tandem::serve
