// TD_CHECK: an invariant of our own code. Always on; prints the values it is given and aborts.
// Never for input from outside: that is a Result.
#pragma once

namespace tandem {
[[noreturn]] [[gnu::format(printf, 4, 5)]] void check_failed(const char* file, int line,
                                                             const char* condition, const char* format, ...);
}

#define TD_CHECK(condition, ...)                                           \
  do {                                                                     \
    if (!(condition)) [[unlikely]] {                                       \
      ::tandem::check_failed(__FILE__, __LINE__, #condition, __VA_ARGS__); \
    }                                                                      \
  } while (0)

#ifdef NDEBUG
#define TD_DCHECK(condition, ...) \
  do {                            \
  } while (0)
#else
#define TD_DCHECK(condition, ...) TD_CHECK(condition, __VA_ARGS__)
#endif
