// Tokens -> tree, by Jinja's grammar (precedence included). Statements: if, for, set, macro, call, filter,
// with, print, generation, break, continue; what loads other templates (include, import, extends, block) is
// refused.
#pragma once

#include <string_view>

#include "text/jinja_ast.h"

namespace tandem::jinja {

// `source` is valid UTF-8. Failure with line for anything that is not a template.
Body parse(std::string_view source);

}  // namespace tandem::jinja
