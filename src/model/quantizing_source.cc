#include "model/quantizing_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "quant/affine.h"

namespace tandem {
namespace {

constexpr int kGroup = 64;

}  // namespace

Result<SourceMatrix> QuantizingSource::matrix(const std::string& module, int n, int k) {
  TD_ASSIGN_OR_RETURN(const SourceMatrix dense, inner_->matrix(module, n, k));
  return quantized(dense);
}

Result<std::vector<SourceMatrix>> QuantizingSource::experts(int layer, ExpertPart part, int n_experts, int n,
                                                            int k) {
  TD_ASSIGN_OR_RETURN(std::vector<SourceMatrix> all, inner_->experts(layer, part, n_experts, n, k));
  for (SourceMatrix& m : all) {
    TD_ASSIGN_OR_RETURN(m, quantized(m));
  }
  return all;
}

Result<SourceMatrix> QuantizingSource::quantized(const SourceMatrix& dense) {
  const HostMatrix& from = dense.matrix;
  if (from.affine() || from.k % kGroup != 0) return dense;
  HostMatrix to = from;
  to.bits = bits_;
  to.group = kGroup;
  to.scale_dtype = DType::bf16;
  const int64_t groups = from.k / kGroup, code_bytes = to.row_bytes(), scale_bytes = groups * 2;
  auto storage = std::make_shared<std::vector<std::byte>>(size_t(from.n * (code_bytes + 2 * scale_bytes)));
  std::byte* codes = storage->data();
  std::byte* scales = codes + from.n * code_bytes;
  std::byte* biases = scales + from.n * scale_bytes;
  std::atomic<bool> finite{true};
  team_.parallel_for(from.n, 16, [&](int64_t first, int64_t last, int) {
    std::vector<float> row(size_t(from.k));
    for (int64_t r = first; r < last; ++r) {
      row_as_f32(from, int(r), row);
      if (!std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); }) ||
          !quantize_row(row, bits_, kGroup,
                        {.codes = {codes + r * code_bytes, size_t(code_bytes)},
                         .scales = {scales + r * scale_bytes, size_t(scale_bytes)},
                         .biases = {biases + r * scale_bytes, size_t(scale_bytes)},
                         .scale_dtype = DType::bf16})) {
        finite = false;
      }
    }
  });
  if (!finite)
    return Error{
        fmt::format("{}: '{}' holds values that cannot be quantised (not finite)", name(), from.name)};
  to.data = codes;
  to.scales = scales;
  to.biases = biases;
  return SourceMatrix{.matrix = to, .storage = std::move(storage)};
}

}  // namespace tandem
