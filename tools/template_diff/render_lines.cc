// Renders templates for template_diff.py. Each line on stdin is {"template": text, "variables": object}; each
// line on stdout is {"text": text, "pieces": [[text, from_template], ...]} or {"error": message}.
#include <ctime>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "text/jinja_json.h"
#include "text/jinja_template.h"

namespace {

using Json = nlohmann::ordered_json;
using namespace tandem;

// The same moment as in template_diff.py: Sunday, 2 January 2022, 03:04:05.
std::tm fixed_time() {
  std::tm time{};
  time.tm_year = 122;
  time.tm_mday = 2;
  time.tm_hour = 3;
  time.tm_min = 4;
  time.tm_sec = 5;
  time.tm_wday = 0;
  time.tm_yday = 1;
  return time;
}

Json render(const std::string& source, const Json& variables) {
  static std::map<std::string, Result<jinja::Template>> parsed;
  auto it = parsed.find(source);
  if (it == parsed.end()) it = parsed.emplace(source, jinja::Template::parse("template", source)).first;
  if (!it->second.ok()) return {{"error", it->second.error().message}};
  jinja::Dict dict;
  for (const auto& [name, value] : variables.items()) {
    const bool is_token = name.ends_with("_token");
    jinja::Value converted = jinja::from_json(value);
    if (is_token) converted = jinja::Value(jinja::Text(value.get<std::string>(), jinja::Origin::templated));
    dict.set(jinja::Value(jinja::Text(name, jinja::Origin::templated)), std::move(converted));
  }
  const Result<jinja::Text> text = it->second->render(dict, {}, fixed_time());
  if (!text.ok()) return {{"error", text.error().message}};
  Json pieces = Json::array();
  std::size_t begin = 0;
  for (const jinja::Text::Run& run : text->runs()) {
    pieces.push_back({text->bytes().substr(begin, run.end - begin), run.origin == jinja::Origin::templated});
    begin = run.end;
  }
  return {{"text", text->bytes()}, {"pieces", std::move(pieces)}};
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    const Json request = Json::parse(line);
    std::cout << render(request["template"].get<std::string>(), request["variables"]).dump() << '\n';
  }
}
