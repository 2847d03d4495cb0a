// Text made fit for an error message, and for a JSON file.
#pragma once

#include <string>
#include <string_view>

namespace tandem {

// At most 160 bytes of `text`; control characters, quotes and bytes that are not ASCII text become \xHH, and
// a cut is marked with "...". Valid UTF-8 beyond ASCII is escaped too: a name in an error must never drive a
// terminal.
std::string printable(std::string_view text);

// `text`, which is valid UTF-8, as a JSON string with its quotes.
std::string json_string(std::string_view text);

}  // namespace tandem
