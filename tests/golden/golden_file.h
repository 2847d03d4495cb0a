// Golden vectors: tensors of a safetensors file as fp32 or ids.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "format/safetensors.h"

namespace tandem {

class GoldenFile {
 public:
  explicit GoldenFile(const std::string& path) : file_(open(path)) {}

  bool has(const std::string& name) const { return find(name) != nullptr; }
  std::vector<float> floats(const std::string& name) const { return values<float>(name, DType::f32); }
  std::vector<int32_t> ints(const std::string& name) const { return values<int32_t>(name, DType::i32); }

 private:
  static SafetensorsFile open(const std::string& path) {
    Result<SafetensorsFile> file = SafetensorsFile::open(path);
    if (!file.ok()) throw std::runtime_error(file.error().message);
    return *std::move(file);
  }
  const HostTensor* find(const std::string& name) const {
    for (const HostTensor& t : file_.tensors()) {
      if (t.name == name) return &t;
    }
    return nullptr;
  }
  template <class T>
  std::vector<T> values(const std::string& name, DType dtype) const {
    const HostTensor* t = find(name);
    if (t == nullptr || t->dtype != dtype) throw std::runtime_error("golden tensor missing: " + name);
    std::vector<T> out(size_t(t->elements()));
    std::memcpy(out.data(), t->bytes.data(), t->bytes.size());
    return out;
  }
  SafetensorsFile file_;
};

}  // namespace tandem
