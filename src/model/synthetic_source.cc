#include "model/synthetic_source.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string_view>

namespace tandem {
namespace {

// SplitMix64's finaliser: a bijection that scatters consecutive counters.
uint64_t scatter(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// FNV-1a: the same on every platform, unlike std::hash.
uint64_t name_key(std::string_view name) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (const char c : name) h = (h ^ uint8_t(c)) * 0x100000001b3ull;
  return h;
}

uint64_t draw(uint64_t key, uint64_t counter) { return scatter(key + (counter + 1) * 0x9e3779b97f4a7c15ull); }

float uniform(uint64_t key, uint64_t counter) {
  return float(draw(key, counter) >> 40) * 0x1p-24f;
}  // [0, 1)

}  // namespace

Result<SourceMatrix> SyntheticSource::matrix(const std::string& module, int n, int k) {
  const uint64_t key = name_key(module);
  SourceMatrix result;
  HostMatrix& m = result.matrix;
  m = {.name = module, .n = n, .k = k, .dtype = DType::bf16};
  const float deviation = 1.0f / std::sqrt(float(k));
  const bool quantised = config_->quantised();
  size_t scale_bytes = 0;
  if (quantised) {
    m.bits = config_->quantization.global->bits;
    m.group = config_->quantization.global->group_size;
    if (k % m.group != 0) {
      return Error{fmt::format("{}: {} columns of {} are not a multiple of the quantisation group {}",
                               config_->file, k, module, m.group)};
    }
    scale_bytes = size_t(n) * size_t(k / m.group) * 2;
  }
  const size_t data_bytes = size_t(n) * size_t(m.row_bytes());
  result.storage = std::make_shared<std::vector<std::byte>>(data_bytes + 2 * scale_bytes);
  std::byte* data = result.storage->data();
  constexpr size_t kBlock = 1 << 16;
  const auto n_blocks = int64_t((data_bytes + kBlock - 1) / kBlock);
  team_.parallel_for(n_blocks, 1, [&](int64_t first, int64_t last, int) {
    for (int64_t block = first; block < last; ++block) {
      const size_t begin = size_t(block) * kBlock, end = std::min(begin + kBlock, data_bytes);
      for (size_t at = begin; at < end; at += 8) {
        uint64_t word = draw(key, at / 8);
        if (!quantised) {  // four bf16 values, uniform of the deviation wanted
          uint16_t values[4];
          for (int i = 0; i < 4; ++i) {
            const float u = float(int16_t(word >> (16 * i))) * 0x1p-15f;  // [-1, 1)
            values[i] = bf16_from_float(u * deviation * 1.7320508f);
          }
          std::memcpy(&word, values, sizeof word);
        }
        std::memcpy(data + at, &word, std::min<size_t>(8, end - at));
      }
    }
  });
  m.data = data;
  if (quantised) {
    // Codes are uniform on 0 .. 2^bits - 1: a scale that gives the deviation, a bias that centres.
    const float levels = float((1 << m.bits) - 1);
    const float scale = deviation * 3.4641016f / (levels + 1);
    const uint16_t s = bf16_from_float(scale), b = bf16_from_float(-0.5f * levels * float_from_bf16(s));
    m.scales = data + data_bytes;
    m.biases = m.scales + scale_bytes;
    for (size_t i = 0; i < scale_bytes; i += 2) {
      std::memcpy(data + data_bytes + i, &s, 2);
      std::memcpy(data + data_bytes + scale_bytes + i, &b, 2);
    }
  }
  return result;
}

Result<std::vector<SourceMatrix>> SyntheticSource::experts(int layer, ExpertPart part, int n_experts, int n,
                                                           int k) {
  std::vector<SourceMatrix> all;
  all.reserve(size_t(n_experts));
  for (int e = 0; e < n_experts; ++e) {
    TD_ASSIGN_OR_RETURN(SourceMatrix m,
                        matrix(fmt::format("layers.{}.experts.{}.{}", layer, e, int(part)), n, k));
    all.push_back(std::move(m));
  }
  return all;
}

Result<std::vector<float>> SyntheticSource::vector(const std::string& tensor, int n) {
  const uint64_t key = name_key(tensor);
  std::vector<float> values(size_t(n), 1.0f);
  if (tensor.ends_with("A_log")) {  // decay rates between 1 and 16, as models are initialised
    for (int i = 0; i < n; ++i) values[size_t(i)] = std::log(1 + 15 * uniform(key, uint64_t(i)));
  } else if (tensor.ends_with("dt_bias")) {
    for (int i = 0; i < n; ++i) values[size_t(i)] = -6 + 4 * uniform(key, uint64_t(i));
  } else if (tensor.ends_with("bias")) {
    for (int i = 0; i < n; ++i) values[size_t(i)] = 0.1f * (uniform(key, uint64_t(i)) - 0.5f);
  }
  return values;
}

Result<std::vector<float>> SyntheticSource::shifted_gain(const std::string& tensor, int n) {
  return vector(tensor, n);
}

Result<std::vector<float>> SyntheticSource::conv_taps(const std::string& tensor, int channels, int taps) {
  const uint64_t key = name_key(tensor);
  std::vector<float> values(size_t(channels) * size_t(taps));
  for (size_t i = 0; i < values.size(); ++i) values[i] = uniform(key, i) - 0.5f;
  return values;
}

}  // namespace tandem
