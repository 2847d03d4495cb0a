// Any bytes as a safetensors file: an error, or tensors that lie inside it, apart, as large as they say.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "format/safetensors.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

constexpr std::string_view kHeader =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]},)"
    R"("b":{"dtype":"U32","shape":[2,1],"data_offsets":[8,16]},"c":{"dtype":"F32","shape":[],"data_offsets":[16,20]}})";
constexpr size_t kDataBytes = 20;

void require(bool condition) {
  if (!condition) std::abort();
}

void put_length(uint8_t* data, uint64_t length) {
  for (int i = 0; i < 8; ++i) data[i] = uint8_t(length >> (8 * i));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  const auto content = tandem::parse_safetensors(bytes, "fuzz.safetensors");
  if (!content.ok()) {
    require(content.error().message.starts_with("fuzz.safetensors: "));
    return 0;
  }
  const std::byte* end = bytes.data();
  for (const tandem::HostTensor& t : content->tensors) {
    require(t.bytes.size() == uint64_t(t.elements()) * tandem::dtype_bytes(t.dtype));
    if (t.bytes.empty()) continue;
    require(t.bytes.data() >= end);
    end = t.bytes.data() + t.bytes.size();
    require(end <= bytes.data() + bytes.size());
  }
  return 0;
}

// Starts from a sound file, and mostly mends the header's length, so that changes reach what lies behind it.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  if (size < 16 && max_size >= 8 + kHeader.size() + kDataBytes) {
    put_length(data, kHeader.size());
    std::memcpy(data + 8, kHeader.data(), kHeader.size());
    std::memset(data + 8 + kHeader.size(), 7, kDataBytes);
    size = 8 + kHeader.size() + kDataBytes;
  }
  size = LLVMFuzzerMutate(data, size, max_size);
  if (seed % 4 != 0 && size >= 8 + kDataBytes) put_length(data, size - 8 - kDataBytes);
  return size;
}
