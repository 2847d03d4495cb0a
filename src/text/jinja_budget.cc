#include "text/jinja_budget.h"

#include <fmt/format.h>

#include "text/jinja_value.h"

namespace tandem::jinja {

void Budget::charge_steps(std::size_t n) {
  if (n > limits_.steps - steps_) fail(fmt::format("the template ran more than {} steps", limits_.steps));
  steps_ += n;
}

void Budget::charge_bytes(std::size_t n) {
  if (n > limits_.built_bytes - bytes_) {
    fail(fmt::format("the template built more than {} bytes of strings", limits_.built_bytes));
  }
  bytes_ += n;
}

void Budget::charge_bytes(std::size_t n, std::size_t size) {
  charge_bytes(size != 0 && n > limits_.built_bytes / size ? limits_.built_bytes + 1 : n * size);
}

void Budget::check_output(std::size_t size) const {
  if (size > limits_.output_bytes)
    fail(fmt::format("the rendered text is longer than {} bytes", limits_.output_bytes));
}

Budget::Level::Level(Budget& budget) : budget_(budget) {
  if (budget.depth_ >= budget.limits_.depth) {
    fail(fmt::format("the template nests deeper than {} levels at run time", budget.limits_.depth));
  }
  ++budget.depth_;
}

}  // namespace tandem::jinja
