#include "cli/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "cli/command.h"

namespace tandem {
namespace {

constexpr size_t kBufferBytes = 1 << 16;
constexpr size_t kMaxMessage = 4000;

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
  say(fmt::format("{}: {}{}\n", program, kind, terminal_safe(text, kMaxMessage)));
}

// Bytes of the valid UTF-8 sequence at the start of `text` that may reach a terminal, 0 if there is none.
size_t safe_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned b = byte(0);
  if (b < 0x80) return (b >= 0x20 && b != 0x7f) || b == '\n' || b == '\t' ? 1 : 0;
  const size_t n = b >= 0xf0 && b < 0xf5 ? 4 : b >= 0xe0 && b < 0xf0 ? 3 : b >= 0xc2 && b < 0xe0 ? 2 : 0;
  for (size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool control = b == 0xc2 && byte(1) < 0xa0;  // U+0080 to U+009F drive terminals too
  return control ? 0 : n;
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

void say(std::string_view text) { (void)write_all(STDERR_FILENO, text); }

std::string terminal_safe(std::string_view text, size_t max_bytes) {
  std::string out;
  while (!text.empty()) {
    const size_t n = safe_bytes(text);
    if (n == 0) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    out += text.substr(0, n);
    text.remove_prefix(std::max<size_t>(n, 1));
  }
  if (out.size() <= max_bytes) return out;
  return out.substr(0, max_bytes / 2) + " ... " + out.substr(out.size() - max_bytes / 2);
}

void fill_standard_descriptors() {
  // The wrong way round for 0 and 1: reading and writing them still fails, as from closed ones.
  constexpr int kModes[] = {O_WRONLY, O_RDONLY, O_RDWR};
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number is this one: those below are open by now.
    (void)::open("/dev/null", kModes[fd]);
  }
}

bool is_terminal(int fd) { return ::isatty(fd) == 1; }

int terminal_columns() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace tandem
