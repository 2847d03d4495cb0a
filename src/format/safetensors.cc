#include "format/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "format/json.h"
#include "format/printable.h"

namespace tandem {
namespace {

namespace dom = simdjson::dom;

// A header holds {name: {dtype, shape: [..], data_offsets: [..]}}: three levels.
constexpr size_t kHeaderDepth = 8;

struct Header {
  const std::string& path;
  std::span<const std::byte> data;  // what offsets count from
};

Error tensor_error(const std::string& path, std::string_view name, const std::string& text) {
  return Error{fmt::format("{}: tensor '{}': {}", path, printable(name), text)};
}

Result<std::vector<int64_t>> read_shape(const std::string& path, std::string_view name, dom::object entry) {
  dom::array list;
  if (entry.at_key("shape").get(list) != simdjson::SUCCESS) {
    return tensor_error(path, name, "expected \"shape\" to be a list of integers");
  }
  std::vector<int64_t> shape;
  for (const dom::element item : list) {
    int64_t d = 0;
    if (item.get(d) != simdjson::SUCCESS || d < 0) {
      return tensor_error(path, name, "shape: expected integers >= 0, found " + describe(item));
    }
    if (shape.size() == kMaxTensorRank) {
      return tensor_error(path, name, fmt::format("shape: expected at most {} dimensions", kMaxTensorRank));
    }
    shape.push_back(d);
  }
  return shape;
}

// Bytes of a tensor. Zero dimensions are left out of the overflow check's product, so that any later product
// of the dimensions in any order fits as well.
Result<uint64_t> tensor_bytes(const std::string& path, std::string_view name, DType dtype,
                              std::span<const int64_t> shape) {
  int64_t n = int64_t(dtype_bytes(dtype));
  bool empty = false;
  for (const int64_t d : shape) {
    if (d == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(n, d, &n)) {
      return tensor_error(path, name, fmt::format("shape {} has more bytes than 2^63", shape_text(shape)));
    }
  }
  return empty ? uint64_t{0} : uint64_t(n);
}

Result<HostTensor> read_tensor(const Header& header, std::string_view name, dom::element value) {
  const std::string& path = header.path;
  dom::object entry;
  if (value.get(entry) != simdjson::SUCCESS) {
    return tensor_error(path, name,
                        "expected an object with dtype, shape and data_offsets, found " + describe(value));
  }
  // Readers differ in which of two they take.
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    const auto is_key = [key](const dom::key_value_pair& field) { return field.key == key; };
    if (std::count_if(entry.begin(), entry.end(), is_key) > 1)
      return tensor_error(path, name, fmt::format("\"{}\" occurs more than once", key));
  }
  dom::element dtype_element;
  std::string_view dtype_text;
  if (entry.at_key("dtype").get(dtype_element) != simdjson::SUCCESS ||
      dtype_element.get(dtype_text) != simdjson::SUCCESS) {
    return tensor_error(path, name, "expected \"dtype\" to be a string");
  }
  const std::optional<DType> dtype = dtype_from_name(dtype_text);
  if (!dtype) {
    return tensor_error(
        path, name,
        fmt::format("unknown dtype '{}'; known are F64 F32 F16 BF16 F8_E4M3 F8_E5M2 I64 I32 I16 I8 "
                    "U64 U32 U16 U8 BOOL",
                    printable(dtype_text)));
  }
  TD_ASSIGN_OR_RETURN(std::vector<int64_t> shape, read_shape(path, name, entry));
  TD_ASSIGN_OR_RETURN(const uint64_t expected, tensor_bytes(path, name, *dtype, shape));

  dom::array offsets;
  uint64_t begin = 0, end = 0;
  if (entry.at_key("data_offsets").get(offsets) != simdjson::SUCCESS || offsets.size() != 2 ||
      offsets.at(0).get(begin) != simdjson::SUCCESS || offsets.at(1).get(end) != simdjson::SUCCESS) {
    return tensor_error(path, name, "expected \"data_offsets\" to be two integers >= 0");
  }
  if (begin > end) {
    return tensor_error(path, name, fmt::format("data_offsets [{}, {}] run backwards", begin, end));
  }
  if (end > header.data.size()) {
    return tensor_error(
        path, name,
        fmt::format("data_offsets [{}, {}] lie beyond the {} bytes of data in the file; it is "
                    "probably cut short: fetch it again",
                    begin, end, header.data.size()));
  }
  if (end - begin != expected) {
    return tensor_error(path, name,
                        fmt::format("{} {} needs {} bytes, data_offsets [{}, {}] hold {}", dtype_name(*dtype),
                                    shape_text(shape), expected, begin, end, end - begin));
  }
  HostTensor tensor;
  tensor.name = std::string(name);
  tensor.dtype = *dtype;
  tensor.shape = std::move(shape);
  tensor.bytes = header.data.subspan(begin, end - begin);
  return tensor;
}

Result<std::map<std::string, std::string>> read_metadata(const std::string& path, dom::element value) {
  dom::object fields;
  if (value.get(fields) != simdjson::SUCCESS) {
    return Error{
        fmt::format("{}: __metadata__: expected an object of strings, found {}", path, describe(value))};
  }
  std::map<std::string, std::string> metadata;
  for (const dom::key_value_pair field : fields) {
    std::string_view text;
    if (field.value.get(text) != simdjson::SUCCESS) {
      return Error{fmt::format("{}: __metadata__.{}: expected a string, found {}", path, printable(field.key),
                               describe(field.value))};
    }
    metadata[std::string(field.key)] = std::string(text);
  }
  return metadata;
}

Status check_names(const std::string& path, std::span<const HostTensor> tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const HostTensor& t : tensors) names.push_back(t.name);
  std::sort(names.begin(), names.end());
  const auto twin = std::adjacent_find(names.begin(), names.end());
  if (twin != names.end()) return tensor_error(path, *twin, "the name occurs more than once in the header");
  return {};
}

// Needs tensors sorted by where their bytes begin.
Status check_overlap(const std::string& path, std::span<const HostTensor> tensors) {
  const HostTensor* last = nullptr;
  for (const HostTensor& t : tensors) {
    if (t.bytes.empty()) continue;
    if (last != nullptr && t.bytes.data() < last->bytes.data() + last->bytes.size()) {
      return tensor_error(path, t.name,
                          fmt::format("its bytes overlap those of '{}'", printable(last->name)));
    }
    last = &t;
  }
  return {};
}

}  // namespace

Result<SafetensorsContent> parse_safetensors(std::span<const std::byte> bytes, const std::string& path) {
  if (bytes.size() < 8) {
    return Error{fmt::format("{}: {} bytes, expected at least the 8 of a safetensors header length", path,
                             bytes.size())};
  }
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= uint64_t(bytes[i]) << (8 * i);
  if (length > kMaxSafetensorsHeader) {
    return Error{fmt::format("{}: header length {}, expected at most {}: not a safetensors file, or damaged",
                             path, length, kMaxSafetensorsHeader)};
  }
  if (length > bytes.size() - 8) {
    return Error{
        fmt::format("{}: header length {}, but only {} bytes follow it: the file is probably cut short; "
                    "fetch it again",
                    path, length, bytes.size() - 8)};
  }
  if (length < 2 || bytes[8] != std::byte{'{'}) {
    return Error{
        fmt::format("{}: expected the header to begin with '{{': not a safetensors file, or damaged", path)};
  }
  TD_ASSIGN_OR_RETURN(const JsonDocument document,
                      JsonDocument::parse(bytes.subspan(8, length), path + ": header",
                                          {.max_bytes = kMaxSafetensorsHeader, .max_depth = kHeaderDepth}));
  dom::object object;
  if (document.root().get(object) != simdjson::SUCCESS) {
    return Error{
        fmt::format("{}: header: expected a JSON object, found {}", path, describe(document.root()))};
  }

  const Header header{.path = path, .data = bytes.subspan(8 + length)};
  SafetensorsContent content;
  bool metadata_seen = false;
  for (const dom::key_value_pair field : object) {
    if (field.key == "__metadata__") {
      if (std::exchange(metadata_seen, true)) {
        return Error{fmt::format("{}: __metadata__ occurs more than once in the header", path)};
      }
      TD_ASSIGN_OR_RETURN(content.metadata, read_metadata(path, field.value));
      continue;
    }
    TD_ASSIGN_OR_RETURN(HostTensor tensor, read_tensor(header, field.key, field.value));
    content.tensors.push_back(std::move(tensor));
  }
  TD_RETURN_IF_ERROR(check_names(path, content.tensors));
  std::stable_sort(content.tensors.begin(), content.tensors.end(),
                   [](const HostTensor& a, const HostTensor& b) { return a.bytes.data() < b.bytes.data(); });
  TD_RETURN_IF_ERROR(check_overlap(path, content.tensors));
  return content;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  TD_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  TD_ASSIGN_OR_RETURN(SafetensorsContent content, parse_safetensors(file.bytes(), path));
  return SafetensorsFile(std::move(file), std::move(content));
}

const HostTensor* SafetensorsFile::find(std::string_view name) const {
  const auto at = std::find_if(content_.tensors.begin(), content_.tensors.end(),
                               [name](const HostTensor& t) { return t.name == name; });
  return at == content_.tensors.end() ? nullptr : &*at;
}

}  // namespace tandem
