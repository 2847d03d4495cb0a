#include "text/jinja_template.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "text/jinja_interpreter.h"
#include "text/jinja_parser.h"

namespace tandem::jinja {

namespace {

// Messages can quote content; a person should still be able to read them.
Error located(const std::string& name, int line, std::string message) {
  constexpr std::size_t kMaxMessage = 4000;
  if (message.size() > kMaxMessage) {
    std::size_t cut = kMaxMessage;
    while ((static_cast<unsigned char>(message[cut]) & 0xC0) == 0x80) --cut;
    message.resize(cut);
    message += "...";
  }
  return Error{fmt::format("{}:{}: {}", name, line, message)};
}

// Runs `body` and turns what it throws into an error. `line` is asked when the failure does not know its own.
template <class T, class Body, class Line>
Result<T> guarded(const std::string& name, Body body, Line line) {
  try {
    return body();
  } catch (Failure& failure) {
    return located(name, failure.line != 0 ? failure.line : line(), std::move(failure.message));
  } catch (const std::exception& error) {  // out of memory
    return located(name, line(), error.what());
  }
}

}  // namespace

Result<Template> Template::parse(std::string name, std::string_view source) {
  constexpr std::size_t kMaxSource = std::size_t{4} << 20;
  if (source.size() > kMaxSource) {
    return Error{
        fmt::format("{}: the template has {} bytes, expected at most {}", name, source.size(), kMaxSource)};
  }
  if (!is_valid_utf8(source)) return Error{fmt::format("{}: the template is not valid UTF-8", name)};
  return guarded<Template>(
      name,
      [&] {
        Template result;
        result.body_ = std::make_shared<const Body>(jinja::parse(source));
        result.name_ = name;
        return result;
      },
      [] { return 1; });
}

Result<Text> Template::render(const Dict& variables, const Limits& limits, std::optional<std::tm> now) const {
  Interpreter interpreter(limits, now);
  return guarded<Text>(
      name_, [&] { return interpreter.run(*body_, variables); }, [&] { return interpreter.line(); });
}

}  // namespace tandem::jinja
