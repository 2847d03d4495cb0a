// Aligned columns for people: the first row is the heading; numbers stand at the right of their column.
#pragma once

#include <string>
#include <vector>

namespace tandem {

class Table {
 public:
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace tandem
