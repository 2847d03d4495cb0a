// Standard output with its errors kept: a full disk or a closed pipe is a failure that the user hears of.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace tandem {

class Output {
 public:
  ~Output();

  // Buffered. After an error everything more is dropped.
  void write(std::string_view text);
  // Hands everything to the system. Errors: the system's reason, now or earlier.
  Status flush();
  bool broken() const { return error_ != 0; }

  // Ends a subcommand: flushes; `code`, or kFailed with a message when the output could not be written.
  int finish(std::string_view command, int code);

 private:
  std::string buffer_;
  int error_ = 0;  // errno of the first failed write
};

bool is_terminal(int fd);
// Columns of the terminal on standard error, 80 if unknown.
int terminal_columns();

}  // namespace tandem
