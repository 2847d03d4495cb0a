#include "format/safetensors_writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <string>
#include <vector>

#include "base/temp_folder.h"
#include "format/safetensors.h"

namespace tandem {
namespace {

std::vector<HostTensor> three_tensors() {
  return {
      {.name = "w", .dtype = DType::bf16, .shape = {2, 3}, .bytes = as_byte_span("abcdefghijkl")},
      {.name = "odd \"name\" \\ \xC3\xA9\n", .dtype = DType::u8, .shape = {3}, .bytes = as_byte_span("xyz")},
      {.name = "none", .dtype = DType::f32, .shape = {0, 7}, .bytes = {}}};
}

TEST(SafetensorsWriter, WhatIsWrittenIsReadBack) {
  const TempFolder folder;
  const std::string path = folder / "m.safetensors";
  const auto tensors = three_tensors();
  const Status status = write_safetensors(path, tensors, {{"format", "mlx"}, {"made by", "a \"test\""}});
  ASSERT_TRUE(status.ok()) << status.error().message;
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->metadata().at("made by"), "a \"test\"");
  ASSERT_EQ(file->tensors().size(), tensors.size());
  for (const HostTensor& t : tensors) {
    const HostTensor* back = file->find(t.name);
    ASSERT_NE(back, nullptr) << t.name;
    EXPECT_EQ(back->dtype, t.dtype);
    EXPECT_EQ(back->shape, t.shape);
    ASSERT_EQ(back->bytes.size(), t.bytes.size());
    EXPECT_TRUE(std::equal(back->bytes.begin(), back->bytes.end(), t.bytes.begin()));
  }
  EXPECT_EQ(folder.names(), std::vector<std::string>{"m.safetensors"});
}

TEST(SafetensorsWriter, TheHeaderIsPaddedToEightBytes) {
  const TempFolder folder;
  for (const char* name : {"a", "ab", "abc", "abcd", "abcde", "abcdef", "abcdefg", "abcdefgh"}) {
    const HostTensor t{.name = name, .dtype = DType::u8, .shape = {1}, .bytes = as_byte_span("x")};
    ASSERT_TRUE(write_safetensors(folder / "m.safetensors", {&t, 1}, {}).ok());
    const std::string file = read_file(folder / "m.safetensors");
    EXPECT_EQ(uint8_t(file[0]) % 8, 0) << name;
    EXPECT_EQ(file[file.size() - 1], 'x');
  }
}

TEST(SafetensorsWriter, BytesMayComeInAnyPieces) {
  const TempFolder folder;
  const std::string path = folder / "m.safetensors";
  const std::vector<TensorSpec> specs{{.name = "a", .dtype = DType::u8, .shape = {3}},
                                      {.name = "b", .dtype = DType::u8, .shape = {4}}};
  auto writer = SafetensorsWriter::create(path, specs, {});
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  for (const char* piece : {"a", "aab", "", "bbb"}) ASSERT_TRUE(writer->write(as_byte_span(piece)).ok());
  EXPECT_FALSE(std::filesystem::exists(path)) << "a file that is not finished must not have its name";
  ASSERT_TRUE(writer->finish().ok());
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(std::memcmp(file->find("b")->bytes.data(), "bbbb", 4), 0);
}

TEST(SafetensorsWriter, AnUnfinishedFileLeavesTheOldOneAlone) {
  const TempFolder folder;
  const std::string path = folder.write("m.safetensors", "old");
  {
    const std::vector<TensorSpec> specs{{.name = "a", .dtype = DType::u8, .shape = {3}}};
    auto writer = SafetensorsWriter::create(path, specs, {});
    ASSERT_TRUE(writer.ok());
    SafetensorsWriter moved = *std::move(writer);
    ASSERT_TRUE(moved.write(as_byte_span("a")).ok());
  }
  EXPECT_EQ(read_file(path), "old");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"m.safetensors"});
}

TEST(SafetensorsWriter, AFolderThatCannotBeWrittenIsAnErrorWithThePath) {
  const TempFolder folder;
  const auto tensors = three_tensors();
  for (const std::string& path :
       {folder / "absent/m.safetensors", folder.write("file", "") + "/m.safetensors"}) {
    const Status status = write_safetensors(path, tensors, {});
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().message.find(path + ": cannot create the file: "), 0u) << status.error().message;
  }
}

// Runs `body` in a world where files end at `bytes`, as on a full disk.
template <class Body>
void with_file_size_limit(rlim_t bytes, Body body) {
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit low{.rlim_cur = bytes, .rlim_max = old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  body();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, old_handler);
}

TEST(SafetensorsWriter, NoRoomIsAnErrorThatSaysHowMuchIsNeededAndLeavesNothing) {
  const TempFolder folder;
  const std::string path = folder / "m.safetensors", data(5000, 'x');
  const HostTensor t{.name = "big", .dtype = DType::u8, .shape = {5000}, .bytes = as_byte_span(data)};
  Status status, small;
  with_file_size_limit(1000, [&] {
    status = write_safetensors(path, {&t, 1}, {});
    small = write_file_atomically(folder / "notes", as_byte_span(data));
  });
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, path + ": cannot reserve 5072 bytes: File too large");
  ASSERT_FALSE(small.ok());
  EXPECT_EQ(small.error().message, folder / "notes" + ": cannot write: File too large");
  EXPECT_TRUE(folder.names().empty());
}

// Say, a message to a standard error that was closed when the file was opened.
TEST(SafetensorsWriter, ForeignBytesInTheFileAreFoundBeforeItGetsItsName) {
  const TempFolder folder;
  const std::string path = folder / "m.safetensors", data(50, 'x');
  const TensorSpec spec{.name = "t", .dtype = DType::u8, .shape = {50}};
  {
    Result<SafetensorsWriter> writer = SafetensorsWriter::create(path, {&spec, 1}, {});
    ASSERT_TRUE(writer.ok()) << writer.error().message;
    ASSERT_TRUE(writer->write(as_byte_span(data)).ok());
    std::ofstream(folder / folder.names().front(), std::ios::app) << "warning: foreign";
    const Status status = writer->finish();
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find("something else wrote into the file"), std::string::npos);
  }
  EXPECT_TRUE(folder.names().empty());
}

TEST(WriteFileAtomically, ReplacesAFile) {
  const TempFolder folder;
  const std::string path = folder.write("a", "old and longer");
  ASSERT_TRUE(write_file_atomically(path, as_byte_span("new")).ok());
  EXPECT_EQ(read_file(path), "new");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"a"});
}

}  // namespace
}  // namespace tandem
