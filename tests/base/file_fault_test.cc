// A mapped file that loses its pages ends the process with a message, and takes unfinished output with it.
#include "base/file_fault.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/mapped_file.h"
#include "base/temp_folder.h"

namespace tandem {
namespace {

// Maps three files, cuts the second short and reads it: as a weights file that is fetched anew while in use.
void read_a_file_cut_short(const TempFolder& folder) {
  explain_file_faults();
  const auto other = MappedFile::open(folder / "other");
  auto file = MappedFile::open(folder / "weights");
  const auto moved = *std::move(file);  // the name stays known when the mapping changes hands
  if (!other.ok() || ::truncate(moved.path().c_str(), 10) != 0) ::_exit(3);
  const volatile std::byte last = moved.bytes()[9999];
  ::_exit(last == std::byte{'x'} ? 4 : 5);
}

TEST(FileFault, AMappedFileCutShortEndsTheProcessByName) {
  const TempFolder folder;
  folder.write("other", std::string(10000, 'y'));
  const std::string path = folder.write("weights", std::string(10000, 'x'));
  EXPECT_EXIT(read_a_file_cut_short(folder), ::testing::ExitedWithCode(1), "weights: could not be read");
}

TEST(FileFault, UnfinishedOutputGoesWithIt) {
  const TempFolder folder;
  folder.write("other", "y");
  folder.write("weights", std::string(10000, 'x'));
  std::filesystem::create_directory(folder / "out.part");
  folder.write("out.part/half", "z");
  EXPECT_EXIT(
      {
        remove_on_file_fault(folder / "out.part");
        read_a_file_cut_short(folder);
      },
      ::testing::ExitedWithCode(1), "weights");
  EXPECT_FALSE(std::filesystem::exists(folder / "out.part"));
  EXPECT_TRUE(std::filesystem::exists(folder / "other"));
}

}  // namespace
}  // namespace tandem
