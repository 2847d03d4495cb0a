#include "cli/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>

#include "cli/output.h"

namespace tandem {
namespace {

std::string number_text(double x) {
  if (x == std::floor(x)) return fmt::format("{:.0f}", x);
  return std::abs(x) < 1e-3 ? fmt::format("{:f}", x) : fmt::format("{}", x);
}

// What `rule` allows. The limit of the type itself is named only to who went beyond it.
enum class TypeLimit { unsaid, said };
std::string range_text(const OptionRule& rule, const char* kind, TypeLimit limit) {
  const bool low = rule.min > std::numeric_limits<int>::min();
  const bool high = limit == TypeLimit::said || rule.max < std::numeric_limits<int>::max();
  if (low && high) return fmt::format("{} from {} to {}", kind, number_text(rule.min), number_text(rule.max));
  if (low) return fmt::format("{} from {} up", kind, number_text(rule.min));
  if (high) return fmt::format("{} up to {}", kind, number_text(rule.max));
  return kind;
}

// The option's text as a T, all of it. Throws what the parser reports as the option's error.
template <class T>
T number(const std::string& name, const std::string& text, const OptionRule& rule) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  bool good = error == std::errc() && end == text.data() + text.size();
  if constexpr (std::is_floating_point_v<T>) good = good && std::isfinite(value);
  if constexpr (!std::is_same_v<T, uint64_t>) {
    good = good && double(value) >= rule.min && double(value) <= rule.max;
  }
  if (!good) {
    const bool too_large = error == std::errc::result_out_of_range
                               ? !text.starts_with('-')
                               : error == std::errc() && double(value) > rule.max;
    const TypeLimit limit = too_large ? TypeLimit::said : TypeLimit::unsaid;
    const char* kind = std::is_floating_point_v<T> ? "a number" : "a whole number";
    const std::string expected =
        std::is_same_v<T, uint64_t> ? "a whole number from 0 to 2^64 - 1" : range_text(rule, kind, limit);
    throw CLI::ValidationError(name, fmt::format("expected {}, found '{}'", expected, text));
  }
  return value;
}

std::vector<int> number_list(const std::string& name, const std::string& text, const OptionRule& rule) {
  std::vector<int> values;
  size_t start = 0;
  while (true) {
    const size_t comma = std::min(text.find(',', start), text.size());
    values.push_back(number<int>(name, text.substr(start, comma - start), rule));
    if (comma == text.size()) return values;
    start = comma + 1;
  }
}

std::string word(const std::string& name, const std::string& text, const OptionRule& rule) {
  if (rule.required && text.empty()) throw CLI::ValidationError(name, "expected a name, found nothing");
  if (!rule.choices.empty() &&
      std::find(rule.choices.begin(), rule.choices.end(), text) == rule.choices.end()) {
    throw CLI::ValidationError(
        name, fmt::format("expected one of {}, found '{}'", fmt::join(rule.choices, ", "), text));
  }
  return text;
}

// Puts what was found on the command line where it belongs.
struct Store {
  const std::string& name;
  const CLI::results_t& found;
  const OptionRule& rule;

  void operator()(std::string* t) const { *t = word(name, found.back(), rule); }
  void operator()(std::optional<std::string>* t) const { *t = word(name, found.back(), rule); }
  void operator()(int* t) const { *t = number<int>(name, found.back(), rule); }
  void operator()(std::optional<int>* t) const { *t = number<int>(name, found.back(), rule); }
  void operator()(uint64_t* t) const { *t = number<uint64_t>(name, found.back(), rule); }
  void operator()(std::optional<double>* t) const { *t = number<double>(name, found.back(), rule); }
  void operator()(std::vector<int>* t) const { *t = number_list(name, found.back(), rule); }
  void operator()(std::optional<std::vector<int>>* t) const { *t = number_list(name, found.back(), rule); }
  void operator()(std::vector<std::string>* t) const {
    t->clear();
    for (const std::string& text : found) t->push_back(word(name, text, rule));
  }
};

constexpr size_t kHelpColumns = 100, kNameColumns = 34;

// Broken at spaces into lines of at most `columns`; a longer word stands alone.
std::string wrapped(const std::string& text, size_t columns) {
  std::string out;
  size_t width = 0;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find(' ', start), text.size());
    const bool breaks = width > 0 && width + 1 + end - start > columns;
    if (start > 0) out += breaks ? '\n' : ' ';
    width = (breaks || start == 0 ? 0 : width + 1) + end - start;
    out.append(text, start, end - start);
    start = end + 1;
  }
  return out;
}

std::string wrapped_help(const std::string& text) { return wrapped(text, kHelpColumns - kNameColumns); }

std::string indented(const std::string& lines) {
  std::string out = "Examples:\n";
  size_t start = 0;
  while (start < lines.size()) {
    const size_t end = std::min(lines.find('\n', start), lines.size());
    out += "  " + lines.substr(start, end - start) + "\n";
    start = end + 1;
  }
  out.pop_back();
  return out;
}

// The first argument that looks like an option and is none; "" if there is none. Values of options are
// passed over, whatever they look like.
std::string unknown_option(const CLI::App& app, Arguments args) {
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& a = args[i];
    if (a == "--") break;
    if (a.size() < 2 || a[0] != '-') continue;
    const bool is_long = a[1] == '-';
    const std::string name = is_long ? a.substr(0, a.find('=')) : a.substr(0, 2);
    const CLI::Option* option = app.get_option_no_throw(name);
    if (option == nullptr) return is_long ? name : a;
    const bool value_attached = is_long ? a.find('=') != a.npos : a.size() > 2;
    if (option->get_items_expected_min() > 0 && !value_attached) ++i;
  }
  return "";
}

// The library leaves two empty lines between headings.
std::string without_gaps(std::string text) {
  size_t at = 0;
  while ((at = text.find("\n\n\n", at)) != std::string::npos) text.erase(at, 1);
  return text;
}

}  // namespace

struct Options::Parser {
  CLI::App app;
  std::vector<std::pair<CLI::Option*, CLI::Option*>> opposites = {};
};

Options::Options(std::string command, const std::string& about, const std::string& examples)
    : command_(std::move(command)),
      parser_(new Parser{CLI::App(wrapped(about, kHelpColumns), "tandem " + command_)}) {
  CLI::App& app = parser_->app;
  app.set_help_flag("-h,--help", "Show this and end");
  app.get_formatter()->column_width(kNameColumns);
  app.get_formatter()->label("REQUIRED", "(required)");
  if (!examples.empty()) app.footer(indented(examples));
}

Options::~Options() = default;

void Options::section(const std::string& heading) { section_ = heading; }

void Options::add(const std::string& names, OptionTarget target, const std::string& value_name,
                  const std::string& help, OptionRule rule) {
  const bool repeated = std::holds_alternative<std::vector<std::string>*>(target);
  const std::string shown = names.starts_with("-") ? names.substr(names.rfind(',') + 1) : "argument";
  CLI::Option* option = parser_->app.add_option(
      names,
      [target, rule, shown, repeated](const CLI::results_t& found) {
        if (!repeated && found.size() > 1) {
          throw CLI::ValidationError(shown, fmt::format("given {} times, expected once", found.size()));
        }
        std::visit(Store{shown, found, rule}, target);
        return true;
      },
      wrapped_help(help));
  option->type_name(value_name)->group(section_)->required(rule.required);
  if (repeated) {
    option->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args(false);
  } else {
    option->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }
}

void Options::flag(const std::string& name, bool& on, const std::string& help) {
  parser_->app.add_flag(name, on, wrapped_help(help))->group(section_);
}

void Options::toggle(const std::string& name, std::optional<bool>& value, const std::string& help) {
  CLI::App& app = parser_->app;
  CLI::Option* on = app.add_flag_function(
      name, [&value](int64_t) { value = true; }, wrapped_help(help));
  CLI::Option* off = app.add_flag_function(
      "--no-" + name.substr(2), [&value](int64_t) { value = false; }, "The opposite");
  on->group(section_);
  off->group(section_);
  parser_->opposites.emplace_back(on, off);
}

std::optional<int> Options::parse(Arguments args) {
  CLI::App& app = parser_->app;
  // Before the library does: it may report what stands beside the unknown name instead.
  if (const std::string unknown = unknown_option(app, args); !unknown.empty())
    return misuse(command_, fmt::format("unknown argument '{}' (see tandem {} --help)", unknown, command_));
  // The library wants them reversed.
  std::vector<std::string> reversed(args.rbegin(), args.rend());
  const std::string see = fmt::format(" (see tandem {} --help)", command_);
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    Output out;
    out.write(without_gaps(app.help()));
    return out.finish(command_, kDone);
  } catch (const CLI::ExtrasError&) {
    const std::vector<std::string> extras = app.remaining();
    return misuse(command_,
                  fmt::format("unknown argument '{}'{}", extras.empty() ? "" : extras.front(), see));
  } catch (const CLI::ArgumentMismatch& error) {
    const std::string text = error.what();  // "--prompt: 1 required TEXT missing"
    return misuse(command_,
                  text.substr(0, text.find(':')) + ": expected a value behind it, found nothing" + see);
  } catch (const CLI::ConversionError& error) {
    const std::string text = error.what();  // "Could not convert: --json = maybe": only flags are converted
    const size_t at = std::min(text.find("--"), text.size());
    return misuse(command_, text.substr(at, text.find(' ', at) - at) + ": takes no value" + see);
  } catch (const CLI::ParseError& error) {
    return misuse(command_, error.what() + see);
  }
  for (const auto& [on, off] : parser_->opposites) {
    if (on->count() > 0 && off->count() > 0) {
      return misuse(command_,
                    fmt::format("{} and {} exclude each other{}", on->get_name(), off->get_name(), see));
    }
  }
  return std::nullopt;
}

}  // namespace tandem
