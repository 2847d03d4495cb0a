#include "format/checkpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/temp_folder.h"
#include "format/safetensors_writer.h"

namespace tandem {
namespace {

constexpr const char* kIndex = "model.safetensors.index.json";

// A file of one-byte tensors; each holds the first letter of the file's name.
void write_tensors(const TempFolder& folder, const std::string& file, const std::vector<std::string>& names) {
  const std::string byte = file.substr(0, 1);
  std::vector<HostTensor> tensors;
  for (const std::string& name : names) {
    tensors.push_back({.name = name, .dtype = DType::u8, .shape = {1}, .bytes = as_byte_span(byte)});
  }
  ASSERT_TRUE(write_safetensors(folder / file, tensors, {}).ok());
}

char byte_of(const HostTensor* t) { return t == nullptr ? '?' : char(t->bytes[0]); }

std::string error_of(const std::string& folder) {
  const auto checkpoint = Checkpoint::open(folder);
  return checkpoint.ok() ? "no error" : checkpoint.error().message;
}

TEST(Checkpoint, ASingleFileNeedsNoIndex) {
  const TempFolder folder;
  write_tensors(folder, "model.safetensors", {"b", "a"});
  auto opened = Checkpoint::open(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const Checkpoint checkpoint = *std::move(opened);
  ASSERT_TRUE(checkpoint.has("a"));
  EXPECT_EQ(checkpoint.find("c"), nullptr);
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string_view>{"a", "b"}));
  EXPECT_EQ(checkpoint.tensors()[0].name, "b") << "order of the file";
  EXPECT_EQ(checkpoint.total_bytes(), 2u);
  EXPECT_EQ(checkpoint.where(*checkpoint.find("a")), folder / "model.safetensors" + ": tensor 'a'");
  checkpoint.drop_pages(*checkpoint.find("a"));
  checkpoint.drop_pages();
  EXPECT_EQ(byte_of(checkpoint.find("a")), 'm');
}

TEST(Checkpoint, TheIndexSaysWhichShards) {
  const TempFolder folder;
  write_tensors(folder, "shard-2.safetensors", {"c"});
  write_tensors(folder, "shard-1.safetensors", {"a", "b"});
  write_tensors(folder, "model-old.safetensors", {"d"});
  folder.write(kIndex, R"({"metadata":{"total_size":3},"weight_map":{"a":"shard-1.safetensors",)"
                       R"("b":"shard-1.safetensors","c":"shard-2.safetensors"}})");
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->names(), (std::vector<std::string_view>{"a", "b", "c"}));
  EXPECT_EQ(checkpoint->path_of(*checkpoint->find("c")), folder / "shard-2.safetensors");
}

TEST(Checkpoint, WithoutAnIndexAllModelFilesCount) {
  const TempFolder folder;
  write_tensors(folder, "model-00001-of-00002.safetensors", {"a"});
  write_tensors(folder, "model-00002-of-00002.safetensors", {"b"});
  write_tensors(folder, "adapter.safetensors", {"x"});
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->names(), (std::vector<std::string_view>{"a", "b"}));
}

TEST(Checkpoint, AnMtpHeadInAFileOfItsOwnIsFound) {
  const TempFolder folder;
  write_tensors(folder, "model.safetensors", {"a", "mtp.norm.weight"});
  write_tensors(folder, "extra.safetensors", {"a", "mtp.norm.weight", "mtp.fc.weight", "other"});
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->names(), (std::vector<std::string_view>{"a", "mtp.fc.weight", "mtp.norm.weight"}));
  EXPECT_EQ(byte_of(checkpoint->find("mtp.fc.weight")), 'e');
  EXPECT_EQ(byte_of(checkpoint->find("mtp.norm.weight")), 'm') << "the checkpoint's own tensors win";
}

TEST(Checkpoint, WhereTwoShardsHoldANameTheIndexDecides) {
  const TempFolder folder;
  write_tensors(folder, "one.safetensors", {"a", "b"});
  write_tensors(folder, "two.safetensors", {"b", "c"});
  folder.write(kIndex,
               R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors","c":"two.safetensors"}})");
  const auto checkpoint = Checkpoint::open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ(byte_of(checkpoint->find("b")), 't');
}

TEST(Checkpoint, ANameInTwoFilesWithoutAnIndexIsAnError) {
  const TempFolder folder;
  write_tensors(folder, "model-1.safetensors", {"a"});
  write_tensors(folder, "model-2.safetensors", {"a"});
  EXPECT_EQ(error_of(folder.path()), folder / "model-2.safetensors" + ": tensor 'a' is also in " +
                                         (folder / "model-1.safetensors") +
                                         "; remove the file that does not belong here");
}

TEST(Checkpoint, AMissingShardIsNamed) {
  const TempFolder folder;
  write_tensors(folder, "one.safetensors", {"a"});
  folder.write(kIndex, R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  EXPECT_EQ(error_of(folder.path()), folder.path() + ": the shard 'two.safetensors' that " + kIndex +
                                         " lists is missing; fetch it again");
}

TEST(Checkpoint, AListedTensorThatIsMissingIsNamed) {
  const TempFolder folder;
  write_tensors(folder, "one.safetensors", {"a"});
  folder.write(kIndex, R"({"weight_map":{"a":"one.safetensors","layers.7.w":"one.safetensors"}})");
  EXPECT_EQ(error_of(folder.path()), folder / "one.safetensors" +
                                         ": tensor 'layers.7.w' is missing from this file, where " + kIndex +
                                         " lists it");
}

TEST(Checkpoint, AnIndexCannotPointOutOfItsFolder) {
  const TempFolder folder;
  write_tensors(folder, "model.safetensors", {"a"});
  for (const char* shard : {"../model.safetensors", "/etc/x.safetensors", "passwd", "a\\u0000.safetensors"}) {
    folder.write(kIndex, std::string(R"({"weight_map":{"a":")") + shard + "\"}}");
    EXPECT_NE(error_of(folder.path()).find("weight_map.a: expected the name of a .safetensors file"),
              std::string::npos)
        << error_of(folder.path());
  }
}

TEST(Checkpoint, ADamagedIndexIsAnErrorWithItsPath) {
  const TempFolder folder;
  write_tensors(folder, "model.safetensors", {"a"});
  const std::vector<std::pair<const char*, const char*>> cases{
      {"", "the file is empty, expected JSON"},
      {"[1]", "expected a JSON object, found a list"},
      {"{}", "weight_map: expected an object of tensor names and files, found nothing"},
      {R"({"weight_map":{}})", "weight_map: lists no tensors"},
      {R"({"weight_map":{"a":1}})", "weight_map.a: expected the name of a file, found 1"},
      {R"({"weight_map":{"a":"m.safetensors","a":"n.safetensors"}})",
       "weight_map.a: the key occurs more than once"},
      {R"({"weight_map":)", "not valid JSON"},
  };
  for (const auto& [text, expected] : cases) {
    folder.write(kIndex, text);
    EXPECT_EQ(error_of(folder.path()).find(folder / kIndex + ": " + expected), 0u) << error_of(folder.path());
  }
}

TEST(Checkpoint, ABrokenFileIsAnErrorWithItsPath) {
  const TempFolder folder;
  folder.write("model.safetensors", "not a tensor file at all");
  EXPECT_EQ(error_of(folder.path()).find(folder / "model.safetensors" + ": header length "), 0u)
      << error_of(folder.path());
}

TEST(Checkpoint, AFolderWithoutWeightsSaysWhatWasSought) {
  const TempFolder folder;
  EXPECT_EQ(error_of(folder.path()),
            folder.path() + ": no model.safetensors.index.json and no model*.safetensors in the folder");
  folder.write("model-q4.gguf", "");
  EXPECT_NE(error_of(folder.path()).find("'model-q4.gguf' is of a format that is not read"),
            std::string::npos);
  EXPECT_EQ(error_of(folder / "absent"),
            folder / "absent" + ": cannot read the folder: No such file or directory");
}

TEST(Checkpoint, OpensTheEmbeddedModelWithItsMisalignedData) {
  const auto checkpoint = Checkpoint::open(std::string(TANDEM_MODELS) + "/tandem-demo");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->tensors().size(), 380u);
  EXPECT_EQ(checkpoint->total_bytes(), 23'940'196u);
  const HostTensor* codes = checkpoint->find("language_model.model.embed_tokens.weight");
  ASSERT_NE(codes, nullptr);
  EXPECT_EQ(codes->dtype, DType::u32);
  EXPECT_EQ(codes->shape, (std::vector<int64_t>{8192, 96}));
  EXPECT_NE(reinterpret_cast<uintptr_t>(codes->bytes.data()) % 4, 0u) << "else this test tests nothing";
}

}  // namespace
}  // namespace tandem
