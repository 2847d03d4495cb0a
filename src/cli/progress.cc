#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "cli/output.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;
constexpr auto kQuiet = 300ms;  // before the first sign
constexpr auto kRedraw = 100ms;
constexpr auto kLogLine = 5s;

}  // namespace

Progress::Progress(std::string title)
    : title_(std::move(title)),
      terminal_(is_terminal(STDERR_FILENO)),
      start_(Clock::now()),
      next_(start_ + kQuiet) {}

Progress::~Progress() {
  if (drawn_ && terminal_) say("\r\033[K");
}

void Progress::update(uint64_t done, uint64_t total, std::string_view what) {
  const Clock::time_point now = Clock::now();
  if (now < next_ || total == 0) return;
  const double share = std::min(1.0, double(done) / double(total));
  drawn_ = true;
  if (!terminal_) {
    say(fmt::format("{}: {:.0f}% ({})\n", title_, 100 * share, terminal_safe(what)));
    next_ = now + kLogLine;
    return;
  }
  next_ = now + kRedraw;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const std::string left = share > 0 ? fmt::format(" {:.0f} s left", elapsed / share * (1 - share)) : "";
  const int columns = terminal_columns();
  const int width = std::clamp(columns - int(title_.size()) - 50, 5, 40);
  const int filled = int(share * width);
  std::string line =
      fmt::format("{} [{}{}] {:3.0f}%{}  {}", title_, std::string(size_t(filled), '#'),
                  std::string(size_t(width - filled), '.'), 100 * share, left, terminal_safe(what));
  if (int(line.size()) >= columns) line.resize(size_t(std::max(columns - 1, 0)));
  say(fmt::format("\r{}\033[K", line));
}

}  // namespace tandem
