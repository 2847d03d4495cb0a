// What every backend needs of a pack request: its checked shape, and rows as fp32.
#include "backend/weight.h"

#include <algorithm>

#include "base/check.h"
#include "quant/affine.h"
#include "quant/values.h"

namespace tandem {
namespace {

void check_matrix(const HostMatrix& m) {
  TD_CHECK(m.n > 0 && m.k > 0 && (m.data != nullptr || m.random), "%s: [%d, %d] data %p", m.name.c_str(), m.n,
           m.k, static_cast<const void*>(m.data));
  if (!m.affine()) {
    TD_CHECK(is_dense_float(m.dtype), "%s: dtype %d", m.name.c_str(), int(m.dtype));
    return;
  }
  TD_CHECK(is_affine_bits(m.bits), "%s: %d bits", m.name.c_str(), m.bits);
  TD_CHECK(is_affine_group(m.group) && m.k % m.group == 0, "%s: k %d, groups of %d", m.name.c_str(), m.k,
           m.group);
  TD_CHECK(((m.scales != nullptr && m.biases != nullptr) || m.random) && is_dense_float(m.scale_dtype),
           "%s: scales of dtype %d", m.name.c_str(), int(m.scale_dtype));
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
    if (run.matrix->affine()) group = std::max({group, run.matrix->group, kSliceColumns});
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

void row_as_f32(const HostMatrix& m, int row, std::span<float> out) {
  TD_CHECK(row >= 0 && row < m.n && int(out.size()) == m.k, "%s: row %d of %d, %zu of %d columns",
           m.name.c_str(), row, m.n, out.size(), m.k);
  if (!m.affine()) {
    convert_to_f32(m.dtype, m.data + row * m.row_bytes(), out);
    return;
  }
  dequantize_row({.n = m.n,
                  .k = m.k,
                  .bits = m.bits,
                  .group = m.group,
                  .codes = m.data,
                  .scales = m.scales,
                  .biases = m.biases,
                  .scale_dtype = m.scale_dtype},
                 row, out);
}

int k_slices(int k, int unit) {
  for (int s = 8; s > 1; s /= 2) {
    if (k % (s * unit) == 0) return s;
  }
  return 1;
}

}  // namespace tandem
