// Small checkpoint folders for tests of conversion.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/temp_folder.h"
#include "format/safetensors_writer.h"
#include "quant/values.h"

namespace tandem {

// Collects tensors and writes them as model.safetensors.
class CheckpointBuilder {
 public:
  // Random values of `dtype`, about `mean`.
  void add(const std::string& name, const std::vector<int64_t>& shape, DType dtype = DType::bf16,
           float mean = 0) {
    HostTensor t{.name = name, .dtype = dtype, .shape = shape, .bytes = {}};
    std::vector<float> values(size_t(t.elements()));
    std::normal_distribution<float> normal(mean, 0.1f);
    for (float& x : values) x = normal(rng_);
    add(name, shape, values, dtype);
  }

  void add(const std::string& name, const std::vector<int64_t>& shape, const std::vector<float>& values,
           DType dtype = DType::bf16) {
    std::vector<std::byte>& bytes = data_[name];
    bytes.resize(values.size() * dtype_bytes(dtype));
    convert_from_f32(values, dtype, bytes.data());
    tensors_.push_back({.name = name, .dtype = dtype, .shape = shape, .bytes = bytes});
  }

  const HostTensor& tensor(std::string_view name) const {
    for (const HostTensor& t : tensors_) {
      if (t.name == name) return t;
    }
    throw std::out_of_range(std::string(name));
  }

  std::vector<float> values(std::string_view name) const {
    const HostTensor& t = tensor(name);
    std::vector<float> values(size_t(t.elements()));
    convert_to_f32(t.dtype, t.bytes.data(), values);
    return values;
  }

  void write(const TempFolder& folder, std::string_view config) const {
    folder.write("config.json", config);
    const Status status = write_safetensors(folder / "model.safetensors", tensors_, {{"format", "pt"}});
    ASSERT_TRUE(status.ok()) << status.error().message;
  }

 private:
  std::mt19937 rng_{7};
  std::map<std::string, std::vector<std::byte>> data_;
  std::vector<HostTensor> tensors_;
};

}  // namespace tandem
