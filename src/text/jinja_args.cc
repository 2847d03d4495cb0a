#include "text/jinja_args.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::jinja {

Bound::Bound(std::string_view what, const Args& args, std::initializer_list<std::string_view> names)
    : what_(what), names_(names), values_(names.size(), nullptr) {
  if (args.positional.size() > names.size()) {
    fail(fmt::format("{} takes at most {} arguments, {} given", what, names.size(), args.positional.size()));
  }
  for (std::size_t i = 0; i < args.positional.size(); ++i) values_[i] = &args.positional[i];
  for (const auto& [name, value] : args.keyword) {
    const auto it = std::find(names_.begin(), names_.end(), name);
    if (it == names_.end()) fail(fmt::format("{} has no argument '{}'", what, name));
    const Value*& slot = values_[static_cast<std::size_t>(it - names_.begin())];
    if (slot != nullptr) fail(fmt::format("{} got two values for '{}'", what, name));
    slot = &value;
  }
}

const Value& Bound::required(std::size_t i) const {
  if (values_[i] == nullptr) fail(fmt::format("{} needs the argument '{}'", what_, names_[i]));
  return *values_[i];
}

bool Bound::flag(std::size_t i, bool otherwise) const { return has(i) ? truthy(*values_[i]) : otherwise; }

Int Bound::integer(std::size_t i, Int otherwise) const {
  if (!has(i)) return otherwise;
  if (!values_[i]->is_integral()) {
    fail(fmt::format("{}: '{}' must be an integer, not {}", what_, names_[i], type_name(*values_[i])));
  }
  return values_[i]->integral();
}

const Text& Bound::text(std::size_t i) const {
  const Value& value = required(i);
  if (!value.is_string()) {
    fail(fmt::format("{}: '{}' must be a string, not {}", what_, names_[i], type_name(value)));
  }
  return value.text();
}

const Value* Bound::get(std::size_t i) const {
  return values_[i] == nullptr || values_[i]->is_none() ? nullptr : values_[i];
}

}  // namespace tandem::jinja
