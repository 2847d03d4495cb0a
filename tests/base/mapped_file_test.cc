#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>

#include "base/temp_folder.h"

namespace tandem {
namespace {

std::string text_of(const MappedFile& file) {
  const auto bytes = file.bytes();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(MappedFile, GivesTheBytesOfTheFile) {
  const TempFolder folder;
  const std::string path = folder.write("a", std::string("one\0two", 7));
  const auto file = MappedFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(text_of(*file), std::string("one\0two", 7));
  EXPECT_EQ(file->path(), path);
}

TEST(MappedFile, AnEmptyFileIsAnEmptySpan) {
  const TempFolder folder;
  const auto file = MappedFile::open(folder.write("empty", ""));
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_TRUE(file->bytes().empty());
  file->drop_pages(file->bytes());
}

// Opened like any file, a pipe would wait for ever.
TEST(MappedFile, ANamedPipeIsRefusedAtOnce) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  const auto file = MappedFile::open(folder / "pipe");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().message, folder / "pipe" + ": not a regular file");
}

TEST(MappedFile, OnlyWhatHasNoNameIsAbsent) {
  const TempFolder folder;
  EXPECT_TRUE(is_absent(folder / "none"));
  EXPECT_FALSE(is_absent(folder.path()));
  ASSERT_EQ(::symlink("nowhere", (folder / "dangling").c_str()), 0);
  ASSERT_EQ(::symlink("loop", (folder / "loop").c_str()), 0);
  EXPECT_FALSE(is_absent(folder / "dangling"));
  EXPECT_FALSE(is_absent(folder / "loop"));
  const auto file = MappedFile::open(folder / "dangling");
  ASSERT_FALSE(file.ok());
  EXPECT_NE(file.error().message.find("symbolic link to nothing"), std::string::npos) << file.error().message;
}

TEST(MappedFile, AMissingFileIsAnErrorWithPathAndReason) {
  const TempFolder folder;
  const auto file = MappedFile::open(folder / "absent");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().message, folder / "absent" + ": cannot open: No such file or directory");
}

TEST(MappedFile, AFolderIsAnError) {
  const TempFolder folder;
  const auto file = MappedFile::open(folder.path());
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().message, folder.path() + ": not a regular file");
}

TEST(MappedFile, MovingKeepsTheBytesWhereTheyAre) {
  const TempFolder folder;
  auto first = MappedFile::open(folder.write("a", "aaa"));
  auto second = MappedFile::open(folder.write("b", "bb"));
  ASSERT_TRUE(first.ok() && second.ok());
  const auto* where = first->bytes().data();
  MappedFile moved = *std::move(first);
  EXPECT_EQ(moved.bytes().data(), where);
  moved = *std::move(second);
  EXPECT_EQ(text_of(moved), "bb");
}

TEST(MappedFile, DroppedPagesAreReadAgain) {
  const TempFolder folder;
  std::string text(3 * 4096 + 100, 'x');
  for (size_t i = 0; i < text.size(); ++i) text[i] = char('a' + i % 26);
  const auto file = MappedFile::open(folder.write("pages", text));
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(text_of(*file), text);
  file->drop_pages(file->bytes().subspan(10, 9000));
  file->drop_pages(file->bytes());
  EXPECT_EQ(text_of(*file), text);
}

}  // namespace
}  // namespace tandem
