// What one render may spend. A template is a program from the outside and its input is too, so every loop,
// copy and recursion of the interpreter charges here first; a charge beyond the limit is a Failure that names
// the limit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::jinja {

struct Limits {
  // Nodes evaluated, items visited, elements compared.
  std::size_t steps = 20'000'000;
  // Bytes of all strings built on the way, the printed ones included.
  std::size_t built_bytes = std::size_t{256} << 20;
  // Bytes of the finished text.
  std::size_t output_bytes = std::size_t{64} << 20;
  // Nesting of blocks, calls and expressions at run time.
  int depth = 400;
};

class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}

  void charge_steps(std::size_t n);
  void charge_bytes(std::size_t n);
  // n copies of something of `size` bytes, without overflow.
  void charge_bytes(std::size_t n, std::size_t size);
  void check_output(std::size_t size) const;

  // One level deeper while it lives.
  class Level {
   public:
    explicit Level(Budget& budget);
    ~Level() { --budget_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Budget& budget_;
  };

 private:
  Limits limits_;
  std::size_t steps_ = 0;
  std::size_t bytes_ = 0;
  int depth_ = 0;
};

}  // namespace tandem::jinja
