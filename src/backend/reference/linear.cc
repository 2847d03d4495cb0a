// Packing, embedding and matrix products.
#include <algorithm>
#include <array>

#include "backend/reference/reference.h"
#include "base/check.h"

namespace tandem {

Result<std::unique_ptr<Weight>> ReferenceBackend::pack(const PackRequest& request) {
  const PackShape shape = pack_shape(request);
  const int64_t all_rows = int64_t{shape.n} * request.n_experts;
  TD_ASSIGN_OR_RETURN(DeviceBuffer values,
                      allocate(size_t(all_rows) * size_t(shape.k) * sizeof(float), "weight " + request.name));
  DeviceBuffer bias;
  if (!request.bias.empty()) {
    TD_ASSIGN_OR_RETURN(bias, allocate(request.bias.size_bytes(), "bias of " + request.name));
    copy_in(bias.data(), std::as_bytes(request.bias));
  }
  auto* out = reinterpret_cast<float*>(values.data());
  for (const RowRun& run : request.rows) {
    for (int i = run.first_row; i < run.first_row + run.n_rows; ++i) {
      row_as_f32(*run.matrix, i, {out, size_t(shape.k)});
      out += shape.k;
    }
  }
  return std::unique_ptr<Weight>(std::make_unique<ReferenceWeight>(
      shape.n, shape.k, request.n_experts, request.n_slices, std::move(values), std::move(bias)));
}

void ReferenceBackend::do_embed(const Weight& table, std::span<const int32_t> ids, MutView y) {
  const auto& w = static_cast<const ReferenceWeight&>(table);
  for (size_t r = 0; r < ids.size(); ++r) {
    TD_CHECK(ids[r] >= 0 && ids[r] < w.n(), "token id %d of %d", ids[r], w.n());
    std::copy_n(w.row(0, ids[r]), w.k(), ref::row(y, int(r)));
  }
}

void ReferenceBackend::do_embed_chosen(const Weight& table, View ids, MutView y) {
  for (int r = 0; r < y.rows; ++r) {
    const int32_t* id = static_cast<const int32_t*>(ids.data) + r;
    if (*id >= 0) do_embed(table, {id, 1}, y.row_range(r, 1));
  }
}

void ReferenceBackend::do_copy_rows(View x, std::span<const int32_t> rows, MutView y) {
  for (int r = 0; r < y.rows; ++r) {
    std::copy_n(ref::row(x, rows.empty() ? r : rows[size_t(r)]), y.cols, ref::row(y, r));
  }
}

void ReferenceBackend::do_linear(Path, View x, const Weight& weight, MutView y) {
  const auto& w = static_cast<const ReferenceWeight&>(weight);
  for (int i = 0; i < w.n(); ++i) {
    for (int r = 0; r < x.rows; ++r) ref::row(y, r)[i] = ref::output(ref::row(x, r), w, 0, i);
  }
}

void ReferenceBackend::do_linear_add(Path, View x, const Weight& weight, MutView residual) {
  const auto& w = static_cast<const ReferenceWeight&>(weight);
  for (int i = 0; i < w.n(); ++i) {
    for (int r = 0; r < x.rows; ++r) ref::row(residual, r)[i] += ref::output(ref::row(x, r), w, 0, i);
  }
}

namespace ref {

float tree_sum(std::span<float> parts) {
  for (size_t step = 1; step < parts.size(); step *= 2) {
    for (size_t i = 0; i < parts.size(); i += 2 * step) parts[i] += parts[i + step];
  }
  return parts[0];
}

double slice_dot(const float* x, const ReferenceWeight& w, int expert, int i, int slice) {
  const int width = w.k() / w.n_slices();
  return dot(x + slice * width, w.row(expert, i) + slice * width, width);
}

float output(const float* x, const ReferenceWeight& w, int expert, int i) {
  std::array<float, 8> parts;
  for (int s = 0; s < w.n_slices(); ++s) parts[s] = float(slice_dot(x, w, expert, i, s));
  return tree_sum({parts.data(), size_t(w.n_slices())}) + w.bias(i);
}

}  // namespace ref
}  // namespace tandem
