#include "model/synthetic_source.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string_view>

#include "backend/random_weights.h"

namespace tandem {
namespace {

// FNV-1a: the same on every platform, unlike std::hash.
uint64_t name_key(std::string_view name) {
  uint64_t h = 0xcbf29ce484222325ull;
  for (const char c : name) h = (h ^ uint8_t(c)) * 0x100000001b3ull;
  return h;
}

float uniform(uint64_t key, uint64_t counter) {
  return float(random_word(key, counter) >> 40) * 0x1p-24f;
}  // [0, 1)

}  // namespace

Result<SourceMatrix> SyntheticSource::matrix(const std::string& module, int n, int k) {
  const uint64_t key = name_key(module);
  SourceMatrix result;
  HostMatrix& m = result.matrix;
  m = {.name = module, .n = n, .k = k, .dtype = DType::bf16};
  m.random = RandomWeights{.key = key, .deviation = 1.0f / std::sqrt(float(k))};
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
  if (by_formula_) return result;
  const size_t data_bytes = size_t(n) * size_t(m.row_bytes());
  result.storage = std::make_shared<std::vector<std::byte>>(data_bytes + 2 * scale_bytes);
  std::byte* data = result.storage->data();
  constexpr size_t kBlock = 1 << 16;
  const auto n_blocks = int64_t((data_bytes + kBlock - 1) / kBlock);
  team_.parallel_for(n_blocks, 1, [&](int64_t first, int64_t last, int) {
    for (int64_t block = first; block < last; ++block) {
      const size_t begin = size_t(block) * kBlock, end = std::min(begin + kBlock, data_bytes);
      draw_weights(m, begin / 8, {data + begin, end - begin});
    }
  });
  m.data = data;
  if (quantised) {
    const auto [s, b] = random_scale(m.random->deviation, m.bits);
    m.scales = data + data_bytes;
    m.biases = m.scales + scale_bytes;
    for (size_t i = 0; i < scale_bytes; i += 2) {
      std::memcpy(data + data_bytes + i, &s, 2);
      std::memcpy(data + data_bytes + scale_bytes + i, &b, 2);
    }
  }
  m.random.reset();
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
