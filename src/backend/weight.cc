// What every backend needs of a pack request: its checked shape, and rows as fp32.
#include "backend/weight.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace tandem {
namespace {

uint16_t load_u16(const std::byte* p) {
  uint16_t x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

// Element i of a dense array that may be misaligned.
float load_float(const std::byte* data, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::bf16:
      return float_from_bf16(load_u16(data + 2 * i));
    case DType::f16:
      return float_from_f16(load_u16(data + 2 * i));
    default: {
      float x;
      std::memcpy(&x, data + 4 * i, sizeof x);
      return x;
    }
  }
}

bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }

void check_matrix(const HostMatrix& m) {
  TD_CHECK(m.n > 0 && m.k > 0 && m.data != nullptr, "%s: [%d, %d] data %p", m.name.c_str(), m.n, m.k,
           static_cast<const void*>(m.data));
  if (!m.affine()) {
    TD_CHECK(is_float(m.dtype), "%s: dtype %d", m.name.c_str(), int(m.dtype));
    return;
  }
  TD_CHECK((m.bits >= 2 && m.bits <= 6) || m.bits == 8, "%s: %d bits", m.name.c_str(), m.bits);
  TD_CHECK((m.group == 32 || m.group == 64 || m.group == 128) && m.k % m.group == 0, "%s: k %d, groups of %d",
           m.name.c_str(), m.k, m.group);
  TD_CHECK(m.scales != nullptr && m.biases != nullptr && is_float(m.scale_dtype), "%s: scales of dtype %d",
           m.name.c_str(), int(m.scale_dtype));
}

}  // namespace

PackShape pack_shape(const PackRequest& request) {
  const char* name = request.name.c_str();
  TD_CHECK(!request.rows.empty() && request.n_experts > 0, "%s: %zu runs, %d experts", name,
           request.rows.size(), request.n_experts);
  const int k = request.rows[0].matrix->k;
  int64_t n = 0;
  int group = 1;
  for (const RowRun& run : request.rows) {
    check_matrix(*run.matrix);
    TD_CHECK(run.matrix->k == k, "%s: k %d and %d in one weight", name, run.matrix->k, k);
    TD_CHECK(run.first_row >= 0 && run.n_rows > 0 && run.first_row <= run.matrix->n - run.n_rows,
             "%s: rows %d + %d of %d", name, run.first_row, run.n_rows, run.matrix->n);
    if (run.matrix->affine()) group = std::max(group, run.matrix->group);
    n += run.n_rows;
  }
  const int slices = request.n_slices;
  TD_CHECK((slices == 1 || slices == 2 || slices == 4 || slices == 8) && k % slices == 0 &&
               (slices == 1 || k / slices % group == 0),
           "%s: k %d in %d slices, groups of %d", name, k, slices, group);
  TD_CHECK(n % request.n_experts == 0, "%s: %lld rows for %d experts", name, (long long)n, request.n_experts);
  n /= request.n_experts;
  TD_CHECK(request.bias.empty() || (request.n_experts == 1 && int64_t(request.bias.size()) == n),
           "%s: bias of %zu for %lld outputs of %d experts", name, request.bias.size(), (long long)n,
           request.n_experts);
  return {int(n), k};
}

void dequantise_row(const HostMatrix& m, int i, float* out) {
  const std::byte* row = m.data + i * m.row_bytes();
  if (!m.affine()) {
    for (int j = 0; j < m.k; ++j) out[j] = load_float(row, m.dtype, j);
    return;
  }
  const int64_t first_group = int64_t{i} * (m.k / m.group);
  for (int j = 0; j < m.k; ++j) {
    const int64_t bit = int64_t{j} * m.bits;
    unsigned word = unsigned(row[bit / 8]);
    if (bit % 8 + m.bits > 8) word |= unsigned(row[bit / 8 + 1]) << 8;
    const unsigned code = word >> (bit % 8) & ((1u << m.bits) - 1);
    const float s = load_float(m.scales, m.scale_dtype, first_group + j / m.group);
    const float b = load_float(m.biases, m.scale_dtype, first_group + j / m.group);
    out[j] = s * float(code) + b;
  }
}

int k_slices(int k, int unit) {
  for (int s = 8; s > 1; s /= 2) {
    if (k % (s * unit) == 0) return s;
  }
  return 1;
}

}  // namespace tandem
