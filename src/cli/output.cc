#include "cli/output.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "cli/command.h"

namespace tandem {
namespace {

constexpr size_t kBufferBytes = 1 << 16;

// All of `text` to a file descriptor; errno, or 0.
int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    text.remove_prefix(size_t(n));
  }
  return 0;
}

void message(std::string_view command, std::string_view kind, std::string_view text) {
  const std::string program = command.empty() ? "tandem" : fmt::format("tandem {}", command);
  // Nothing can be done when standard error fails too.
  (void)write_all(STDERR_FILENO, fmt::format("{}: {}{}\n", program, kind, text));
}

}  // namespace

Output::~Output() { (void)flush(); }

void Output::write(std::string_view text) {
  if (error_ != 0) return;
  buffer_ += text;
  if (buffer_.size() >= kBufferBytes) (void)flush();
}

Status Output::flush() {
  if (error_ == 0) error_ = write_all(STDOUT_FILENO, buffer_);
  buffer_.clear();
  if (error_ != 0) return Error{fmt::format("standard output could not be written: {}", strerror(error_))};
  return {};
}

int Output::finish(std::string_view command, int code) {
  if (const Status status = flush(); !status.ok()) return fail(command, status.error().message);
  return code;
}

int fail(std::string_view command, std::string_view text) {
  message(command, "", text);
  return kFailed;
}

int misuse(std::string_view command, std::string_view text) {
  message(command, "", text);
  return kWrongUsage;
}

void warn(std::string_view command, std::string_view text) { message(command, "warning: ", text); }

bool is_terminal(int fd) { return ::isatty(fd) == 1; }

int terminal_columns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace tandem
