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

// Text for a person on standard error, as it is. What cannot be written there is dropped: an answer must not
// fail because nobody reads the remarks beside it.
void say(std::string_view text);

// A name or a text from outside made fit for a terminal: control characters, and bytes that are not UTF-8,
// become \xHH (newlines and tabs stay); of more than max_bytes the middle is left out.
std::string terminal_safe(std::string_view text, size_t max_bytes = std::string_view::npos);

// Opens /dev/null on those of the descriptors 0, 1 and 2 that are closed, so that no file of ours ever gets
// one of these numbers. Standard input and output stay unusable: who needs them is told.
void fill_standard_descriptors();

bool is_terminal(int fd);
// Columns of the terminal on standard error, 80 if unknown.
int terminal_columns();

}  // namespace tandem
