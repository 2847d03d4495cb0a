#include "format/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/temp_folder.h"
#include "format/safetensors_bytes.h"

namespace tandem {
namespace {

Result<SafetensorsContent> parse(const std::string& file) {
  return parse_safetensors(as_byte_span(file), "m.st");
}

TEST(Safetensors, ReadsTensorsOfSeveralTypesInFileOrder) {
  const std::string file =
      safetensors_bytes(R"({"__metadata__":{"format":"mlx","n":"1"},)"
                        R"("b":{"dtype":"U32","shape":[1,2],"data_offsets":[6,14]},)"
                        R"("a":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]},)"
                        R"("scalar":{"dtype":"F32","shape":[],"data_offsets":[14,18]},)"
                        R"("empty":{"dtype":"F32","shape":[4,0],"data_offsets":[18,18]}}   )",
                        "aaaaaabbbbbbbbffff");
  const auto content = parse(file);
  ASSERT_TRUE(content.ok()) << content.error().message;
  ASSERT_EQ(content->tensors.size(), 4u);
  const HostTensor& a = content->tensors[0];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.dtype, DType::bf16);
  EXPECT_EQ(a.shape, (std::vector<int64_t>{3}));
  EXPECT_EQ(std::memcmp(a.bytes.data(), "aaaaaa", 6), 0);
  EXPECT_EQ(content->tensors[1].name, "b");
  EXPECT_EQ(content->tensors[1].elements(), 2);
  EXPECT_EQ(content->tensors[2].bytes.size(), 4u);
  EXPECT_TRUE(content->tensors[2].shape.empty());
  EXPECT_TRUE(content->tensors[3].bytes.empty());
  EXPECT_EQ(content->metadata, (std::map<std::string, std::string>{{"format", "mlx"}, {"n", "1"}}));
}

TEST(Safetensors, ReadsEveryTypeOfTheFormat) {
  for (int i = 0; i <= int(DType::boolean); ++i) {
    const std::string name(dtype_name(DType(i)));
    const std::string size = std::to_string(dtype_bytes(DType(i)));
    const auto content = parse(safetensors_bytes(
        "{\"t\":{\"dtype\":\"" + name + "\",\"shape\":[1],\"data_offsets\":[0," + size + "]}}",
        std::string(8, 'x')));
    ASSERT_TRUE(content.ok()) << content.error().message;
    EXPECT_EQ(content->tensors[0].dtype, DType(i));
  }
}

TEST(Safetensors, AllowsUnusedBytesAndNoTensors) {
  EXPECT_TRUE(parse(safetensors_bytes("{}", "")).ok());
  const std::string file = safetensors_bytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},)"
                                             R"("b":{"dtype":"U8","shape":[1],"data_offsets":[5,6]}})",
                                             "0123456789");
  const auto content = parse(file);
  ASSERT_TRUE(content.ok()) << content.error().message;
  EXPECT_EQ(content->tensors[1].bytes[0], std::byte{'5'});
}

struct BadFile {
  const char* what;
  std::string file;
  const char* expected;  // part of the message
};

std::string one(const char* entry, const char* data = "0123456789abcdef") {
  return safetensors_bytes(std::string("{\"t\":") + entry + "}", data);
}

std::vector<BadFile> bad_files() {
  std::string deep;
  for (int i = 0; i < 5000; ++i) deep += "[";
  return {
      {"empty", "", "0 bytes, expected at least the 8"},
      {"no header", "1234567", "7 bytes, expected at least the 8"},
      {"length beyond the file", safetensors_bytes("{}", "", 1000),
       "header length 1000, but only 2 bytes follow it"},
      {"length beyond reason", safetensors_bytes("{}", "", int64_t{1} << 60),
       "header length 1152921504606846976, expected at most 100000000"},
      {"length of all ones", std::string(16, '\xff'), "expected at most 100000000"},
      {"length too short for the JSON", safetensors_bytes(R"({"a":{}})", "", 5), "header: not valid JSON"},
      {"length zero", safetensors_bytes("", "xxxx"), "expected the header to begin with '{'"},
      {"header is a list", safetensors_bytes("[1,2]", ""), "expected the header to begin with '{'"},
      {"header begins with spaces", safetensors_bytes("  {}", ""), "expected the header to begin with '{'"},
      {"header is not JSON", safetensors_bytes("{hello}", ""), "header: not valid JSON"},
      {"two values", safetensors_bytes("{}{}", ""), "header: not valid JSON"},
      {"header is not UTF-8", safetensors_bytes("{\"\xff\xfe\":1}", ""), "header: not valid JSON"},
      {"nested without end", safetensors_bytes("{\"a\":" + deep, ""), "header:"},
      {"entry is no object", one("3"),
       "tensor 't': expected an object with dtype, shape and data_offsets, found 3"},
      {"metadata is no object", safetensors_bytes(R"({"__metadata__":[]})", ""),
       "__metadata__: expected an object"},
      {"metadata holds a number", safetensors_bytes(R"({"__metadata__":{"a":1}})", ""),
       "__metadata__.a: expected a string, found 1"},
      {"metadata twice", safetensors_bytes(R"({"__metadata__":{},"__metadata__":{}})", ""),
       "__metadata__ occurs more than once"},
      {"no dtype", one(R"({"shape":[4],"data_offsets":[0,4]})"),
       "tensor 't': expected \"dtype\" to be a string"},
      {"dtype twice", one(R"({"dtype":"U8","dtype":"I8","shape":[4],"data_offsets":[0,4]})"),
       "tensor 't': \"dtype\" occurs more than once"},
      {"offsets twice", one(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4],"data_\u006fffsets":[4,8]})"),
       "tensor 't': \"data_offsets\" occurs more than once"},
      {"unknown dtype", one(R"({"dtype":"Q4_K","shape":[4],"data_offsets":[0,4]})"),
       "tensor 't': unknown dtype 'Q4_K'"},
      {"no shape", one(R"({"dtype":"U8","data_offsets":[0,4]})"),
       "tensor 't': expected \"shape\" to be a list"},
      {"negative dimension", one(R"({"dtype":"U8","shape":[-4],"data_offsets":[0,4]})"),
       "shape: expected integers >= 0, found -4"},
      {"fractional dimension", one(R"({"dtype":"U8","shape":[4.5],"data_offsets":[0,4]})"),
       "shape: expected integers >= 0, found 4.5"},
      {"dimension beyond int64", one(R"({"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,4]})"),
       "shape: expected integers >= 0"},
      {"product overflows", one(R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]})"),
       "tensor 't': shape [4294967296, 4294967296] has more bytes than 2^63"},
      {"product overflows around a zero",
       one(R"({"dtype":"U8","shape":[4294967296,0,4294967296],"data_offsets":[0,0]})"),
       "more bytes than 2^63"},
      {"too many dimensions", one(R"({"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]})"),
       "shape: expected at most 8 dimensions"},
      {"no offsets", one(R"({"dtype":"U8","shape":[4]})"), "expected \"data_offsets\" to be two integers"},
      {"three offsets", one(R"({"dtype":"U8","shape":[4],"data_offsets":[0,4,8]})"), "to be two integers"},
      {"negative offset", one(R"({"dtype":"U8","shape":[4],"data_offsets":[-4,0]})"), "to be two integers"},
      {"offsets backwards", one(R"({"dtype":"U8","shape":[4],"data_offsets":[8,4]})"),
       "data_offsets [8, 4] run backwards"},
      {"cut short", one(R"({"dtype":"U8","shape":[32],"data_offsets":[0,32]})"),
       "data_offsets [0, 32] lie beyond the 16 bytes of data"},
      {"end near 2^64",
       one(R"({"dtype":"U8","shape":[4],"data_offsets":[18446744073709551611,18446744073709551615]})"),
       "lie beyond the 16 bytes"},
      {"size does not fit the shape", one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
       "tensor 't': F32 [3] needs 12 bytes, data_offsets [0, 8] hold 8"},
      {"overlap",
       safetensors_bytes(R"({"a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},)"
                         R"("b":{"dtype":"U8","shape":[6],"data_offsets":[4,10]}})",
                         "0123456789"),
       "tensor 'b': its bytes overlap those of 'a'"},
      {"overlap by enclosing",
       safetensors_bytes(R"({"in":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},)"
                         R"("out":{"dtype":"U8","shape":[10],"data_offsets":[0,10]}})",
                         "0123456789"),
       "tensor 'in': its bytes overlap those of 'out'"},
      {"a name twice",
       safetensors_bytes(R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                         R"("t":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
                         "0123"),
       "tensor 't': the name occurs more than once"},
      {"a name twice, once escaped",
       safetensors_bytes(R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                         R"("\u0074":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
                         "0123"),
       "tensor 't': the name occurs more than once"},
      {"a name that would drive a terminal", safetensors_bytes("{\"\\u001b[2J\":1}", ""),
       "tensor '\\x1b[2J'"},
  };
}

TEST(Safetensors, EachDefectIsAnErrorThatNamesFileTensorExpectedAndFound) {
  for (const BadFile& bad : bad_files()) {
    const auto content = parse(bad.file);
    ASSERT_FALSE(content.ok()) << bad.what;
    EXPECT_EQ(content.error().message.find("m.st: "), 0u) << bad.what << ": " << content.error().message;
    EXPECT_NE(content.error().message.find(bad.expected), std::string::npos)
        << bad.what << ": " << content.error().message;
  }
}

TEST(Safetensors, AFileCutAnywhereIsRefused) {
  const std::string file = safetensors_bytes(R"({"a":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]},)"
                                             R"("b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
                                             "0123456789abcdef");
  ASSERT_TRUE(parse(file).ok());
  for (size_t n = 0; n < file.size(); ++n) EXPECT_FALSE(parse(file.substr(0, n)).ok()) << n << " bytes";
}

// Whatever the bytes: an error, or tensors that lie inside them, apart from each other, as large as they say.
void expect_sound(const std::string& file) {
  const std::vector<char> exact(file.begin(),
                                file.end());  // no spare capacity: address checks see a step too far
  const std::span<const std::byte> bytes = std::as_bytes(std::span(exact));
  const auto content = parse_safetensors(bytes, "m.st");
  if (!content.ok()) return;
  const std::byte* end = bytes.data();
  for (const HostTensor& t : content->tensors) {
    ASSERT_EQ(t.bytes.size(), uint64_t(t.elements()) * dtype_bytes(t.dtype));
    if (t.bytes.empty()) continue;
    ASSERT_GE(t.bytes.data(), end);
    end = t.bytes.data() + t.bytes.size();
    ASSERT_LE(end, bytes.data() + bytes.size());
  }
}

TEST(Safetensors, DamagedFilesNeverGiveTensorsOutsideTheFile) {
  const std::string file = safetensors_bytes(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},"c":{"dtype":"U8","shape":[0],"data_offsets":[16,16]}})",
      "0123456789abcdef");
  std::mt19937 rng(1);
  const std::string digits = "0123456789-[]{},:\"";
  for (int i = 0; i < 10000; ++i) {
    std::string damaged = file;
    const int n_edits = 1 + int(rng() % 3);
    for (int e = 0; e < n_edits && !damaged.empty(); ++e) {
      const size_t at = rng() % damaged.size();
      switch (rng() % 4) {
        case 0:
          damaged[at] = char(damaged[at] ^ (1 << (rng() % 8)));
          break;
        case 1:
          damaged[at] = digits[rng() % digits.size()];
          break;
        case 2:
          damaged.erase(at, rng() % 9);
          break;
        default:
          damaged.insert(at, 1, digits[rng() % digits.size()]);
      }
    }
    expect_sound(damaged);
    // The same with a length that fits, so that the damage reaches the JSON.
    if (damaged.size() > 24) expect_sound(safetensors_bytes(damaged.substr(8, damaged.size() - 24), damaged));
  }
}

TEST(SafetensorsFile, OpensAFileAndFindsTensors) {
  const TempFolder folder;
  const std::string path = folder.write(
      "x.safetensors", safetensors_bytes(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "data"));
  auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  const SafetensorsFile moved = *std::move(file);
  ASSERT_NE(moved.find("a"), nullptr);
  EXPECT_EQ(std::memcmp(moved.find("a")->bytes.data(), "data", 4), 0);
  EXPECT_EQ(moved.find("b"), nullptr);
  EXPECT_EQ(moved.path(), path);
}

TEST(SafetensorsFile, AnEmptyFileIsAnErrorWithItsPath) {
  const TempFolder folder;
  const std::string path = folder.write("x.safetensors", "");
  const auto file = SafetensorsFile::open(path);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.error().message.find(path + ": 0 bytes"), 0u) << file.error().message;
}

}  // namespace
}  // namespace tandem
