// Progress of long work on standard error: a bar on a terminal, a plain line now and then in a log. Work that
// is done in a moment shows nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem {

class Progress {
 public:
  // title: "loading".
  explicit Progress(std::string title);
  ~Progress();  // takes the bar away

  void update(uint64_t done, uint64_t total, std::string_view what);

 private:
  using Clock = std::chrono::steady_clock;
  std::string title_;
  bool terminal_;
  Clock::time_point start_, next_;
  bool drawn_ = false;
};

}  // namespace tandem
