#include "format/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "format/json.h"
#include "format/printable.h"
#include "format/safetensors.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".safetensors";
constexpr std::string_view kIndexName = "model.safetensors.index.json";

// What a folder offers, names only, sorted.
struct Listing {
  std::vector<std::string> safetensors;
  bool has_index = false;
  std::string foreign;  // a weight file of a format that is not read, for the error
};

Result<Listing> list_folder(const std::string& folder) {
  std::error_code code;
  fs::directory_iterator it(folder, code);
  if (code) return Error{fmt::format("{}: cannot read the folder: {}", folder, code.message())};
  Listing listing;
  while (it != fs::directory_iterator()) {
    const std::string name = it->path().filename().string();
    if (name == kIndexName) listing.has_index = true;
    if (name.ends_with(kSuffix) && !name.starts_with(".")) listing.safetensors.push_back(name);
    if (name.ends_with(".gguf") || (name.starts_with("pytorch_model") && name.ends_with(".bin"))) {
      listing.foreign = name;
    }
    it.increment(code);
    if (code) return Error{fmt::format("{}: cannot read the folder: {}", folder, code.message())};
  }
  std::sort(listing.safetensors.begin(), listing.safetensors.end());
  return listing;
}

// Which tensors of a file count.
enum class Take { all, mtp_that_is_missing };

// tensor name -> shard, from an index file. Shards must be plain names: an index cannot point out of its
// folder.
Result<std::map<std::string, std::string>> read_index(const std::string& path) {
  TD_ASSIGN_OR_RETURN(const JsonDocument document,
                      JsonDocument::load(path, {.max_bytes = kMaxSafetensorsHeader}));
  TD_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::of_root(document, path));
  TD_ASSIGN_OR_RETURN(const std::optional<JsonFields> weights, fields.object("weight_map"));
  if (!weights)
    return fields.error("weight_map", "expected an object of tensor names and files, found nothing");
  std::map<std::string, std::string> map;
  for (const simdjson::dom::key_value_pair field : weights->raw()) {
    std::string_view shard;
    if (field.value.get(shard) != simdjson::SUCCESS) {
      return weights->error(field.key, "expected the name of a file, found " + describe(field.value));
    }
    if (shard.find('/') != std::string_view::npos || shard.find('\0') != std::string_view::npos ||
        !shard.ends_with(kSuffix)) {
      return weights->error(field.key,
                            fmt::format("expected the name of a .safetensors file in this folder, found "
                                        "'{}'",
                                        printable(shard)));
    }
    map.emplace(field.key, shard);
  }
  if (map.empty()) return fields.error("weight_map", "lists no tensors");
  return map;
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& folder) {
  TD_ASSIGN_OR_RETURN(const Listing listing, list_folder(folder));
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  const auto path_in = [&folder](std::string_view name) { return (fs::path(folder) / name).string(); };

  std::map<std::string, std::string> index;
  std::vector<std::string> shards;
  if (listing.has_index) {
    TD_ASSIGN_OR_RETURN(index, read_index(path_in(kIndexName)));
    for (const auto& [tensor, shard] : index) shards.push_back(shard);
    std::sort(shards.begin(), shards.end());
    shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
    for (const std::string& shard : shards) {
      if (!std::binary_search(listing.safetensors.begin(), listing.safetensors.end(), shard)) {
        return Error{fmt::format("{}: the shard '{}' that {} lists is missing; fetch it again", folder,
                                 printable(shard), kIndexName)};
      }
    }
  } else {
    for (const std::string& name : listing.safetensors) {
      if (name.starts_with("model")) shards.push_back(name);
    }
  }
  if (shards.empty()) {
    return Error{
        listing.foreign.empty()
            ? fmt::format("{}: no {} and no model*.safetensors in the folder", folder, kIndexName)
            : fmt::format("{}: no model*.safetensors in the folder; '{}' is of a format that is not read, "
                          "use the safetensors version of this model",
                          folder, printable(listing.foreign))};
  }

  std::unordered_map<std::string, uint32_t> file_of_name;  // of the tensors taken so far
  const auto add_file = [&](const std::string& shard, Take take) -> Status {
    const bool is_extra = take == Take::mtp_that_is_missing;
    TD_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path_in(shard)));
    TD_ASSIGN_OR_RETURN(SafetensorsContent content, parse_safetensors(file.bytes(), file.path()));
    const auto file_index = uint32_t(checkpoint.files_.size());
    size_t taken = 0;
    for (HostTensor& tensor : content.tensors) {
      if (is_extra && (tensor.name.find("mtp.") == std::string::npos || file_of_name.contains(tensor.name)))
        continue;
      if (const auto listed = index.find(tensor.name); listed != index.end() && listed->second != shard) {
        continue;  // the index says that another shard's copy counts
      }
      const auto [at, is_new] = file_of_name.emplace(tensor.name, file_index);
      if (!is_new) {
        return Error{fmt::format("{}: tensor '{}' is also in {}; remove the file that does not belong here",
                                 file.path(), printable(tensor.name), checkpoint.files_[at->second].path())};
      }
      checkpoint.total_bytes_ += tensor.bytes.size();
      checkpoint.tensors_.push_back(std::move(tensor));
      checkpoint.file_of_.push_back(file_index);
      ++taken;
    }
    if (taken > 0 || !is_extra) checkpoint.files_.push_back(std::move(file));
    return {};
  };
  for (const std::string& shard : shards) TD_RETURN_IF_ERROR(add_file(shard, Take::all));
  for (const auto& [tensor, shard] : index) {
    if (!file_of_name.contains(tensor)) {
      return Error{fmt::format("{}: tensor '{}' is missing from this file, where {} lists it", path_in(shard),
                               printable(tensor), kIndexName)};
    }
  }
  for (const std::string& name : listing.safetensors) {
    if (!std::binary_search(shards.begin(), shards.end(), name))
      TD_RETURN_IF_ERROR(add_file(name, Take::mtp_that_is_missing));
  }

  checkpoint.index_.reserve(checkpoint.tensors_.size());
  for (uint32_t i = 0; i < checkpoint.tensors_.size(); ++i)
    checkpoint.index_.emplace(checkpoint.tensors_[i].name, i);
  return checkpoint;
}

const HostTensor* Checkpoint::find(std::string_view name) const {
  const auto at = index_.find(name);
  return at == index_.end() ? nullptr : &tensors_[at->second];
}

std::vector<std::string_view> Checkpoint::names() const {
  std::vector<std::string_view> names(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) names[i] = tensors_[i].name;
  std::sort(names.begin(), names.end());
  return names;
}

const std::string& Checkpoint::path_of(const HostTensor& tensor) const {
  const auto at = index_.find(tensor.name);
  TD_CHECK(at != index_.end(), "tensor '%s' is not of this checkpoint", tensor.name.c_str());
  return files_[file_of_[at->second]].path();
}

std::string Checkpoint::where(const HostTensor& tensor) const {
  return fmt::format("{}: tensor '{}'", path_of(tensor), printable(tensor.name));
}

void Checkpoint::drop_pages(const HostTensor& tensor) const {
  const auto at = index_.find(tensor.name);
  TD_CHECK(at != index_.end(), "tensor '%s' is not of this checkpoint", tensor.name.c_str());
  files_[file_of_[at->second]].drop_pages(tensors_[at->second].bytes);
}

void Checkpoint::drop_pages() const {
  for (const MappedFile& file : files_) file.drop_pages(file.bytes());
}

}  // namespace tandem
