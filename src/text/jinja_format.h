// "...{}...".format(...).
#pragma once

#include "text/jinja_interpreter.h"

namespace tandem::jinja {

// Fields {}, {0}, {name}, with .attribute and [index] behind them and !s or !r; no format specifications.
Text format_braces(Interpreter& interpreter, const Text& format, const Args& args);

}  // namespace tandem::jinja
