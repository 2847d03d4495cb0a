#include "cli/table.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(Table, NumbersStandAtTheRightAndWordsAtTheLeft) {
  Table table;
  table.add({"name", "ms"});
  table.add({"a", "1.5"});
  table.add({"longer", "120.25"});
  EXPECT_EQ(table.text(), "name        ms\na          1.5\nlonger  120.25\n");
}

TEST(Table, AMissingNumberIsADash) {
  Table table;
  table.add({"ms"});
  table.add({"-"});
  table.add({"12"});
  EXPECT_EQ(table.text(), "ms\n -\n12\n");
}

}  // namespace
}  // namespace tandem
