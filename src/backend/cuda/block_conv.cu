// The convolution of a drafter's block.
#include "backend/cuda/cuda.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 128;

struct BlockConvArgs {
  StepTable table;
  Rows x, base, dynamic, residual;  // residual: data may be null, or y
  MutRows y;
  int cols, taps, groups;
};
__global__ void block_conv_kernel(const __grid_constant__ BlockConvArgs a) {
  let_next_start();
  wait_for_inputs();
  const int r = int(blockIdx.y), c = int(blockIdx.x * kThreads + threadIdx.x);
  if (c >= a.cols) return;
  const int before = r - a.table.seqs[a.table.row_seq[r]].first_row;  // rows of the sequence before this one
  const float* dynamic = a.dynamic.row(r) + c / (a.cols / a.groups);
  float sum = 0;
  for (int t = 0; t < a.taps && t <= before; ++t) {
    sum = fmaf(a.base.row(t)[c] + dynamic[t * a.groups], a.x.row(r - t)[c], sum);
  }
  a.y.row(r)[c] = a.residual.data != nullptr ? a.residual.row(r)[c] + sum : sum;
}

}  // namespace

void CudaBackend::do_block_conv(const Step& step, const BlockConv& a) {
  const int taps = a.base.rows;
  card_->launch(block_conv_kernel, {unsigned((a.x.cols + kThreads - 1) / kThreads), unsigned(step.n_rows)},
                kThreads, 0,
                BlockConvArgs{.table = table(step),
                              .x = rows_of(a.x),
                              .base = rows_of(a.base),
                              .dynamic = rows_of(a.dynamic),
                              .residual = rows_of(a.residual),
                              .y = rows_of(a.y),
                              .cols = a.x.cols,
                              .taps = taps,
                              .groups = a.dynamic.cols / taps});
}

}  // namespace tandem::cuda
