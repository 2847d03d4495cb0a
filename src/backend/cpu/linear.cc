// Which thread does which tiles, and the order of sums above the inner loops: rows in blocks, chunks of
// steps, slices in their tree, bias and residual.
#include "backend/cpu/linear.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/linear_kernels.h"
#include "backend/cpu/linear_layout.h"
#include "base/check.h"

namespace tandem::cpu {

const LinearKernels& linear_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512) return kAvx512Linear;
  if (isa == Isa::avx2) return kAvx2Linear;
#endif
  TD_CHECK(isa == Isa::portable, "kernels for isa %d\n", int(isa));
  return kPortableLinear;
}

namespace {

constexpr int kPassRows = 32;             // rows that share one pass over a tile
constexpr int kChunkSteps = 4;            // affine steps unpacked at a time
constexpr int kMaxSliceDepth = 4;         // pending sums of a tree over 8 slices
constexpr size_t kClaimBytes = 64 << 10;  // weights claimed at a time: 2 us or more of memory time

// The rows of one pass: where each reads and writes.
struct PassRows {
  int n = 0;
  int32_t in[kPassRows];
  int32_t out[kPassRows];
};

struct alignas(64) PassSums {
  float sums[kMaxSliceDepth][kPassRows]
            [kTile];  // a stack: slices and subtrees that wait for their other half
};

struct alignas(64) Unpacked {
  uint8_t codes[kChunkSteps][kStepCodes];
  float scales[kChunkSteps * 2][2][kTile];  // a step has two groups at most
};

// Calls f(first, n) for blocks of rows that one kernel call takes, as equal as can be.
template <class F>
void for_row_blocks(int n_rows, F f) {
  const int n_blocks = (n_rows + kMaxBlockRows - 1) / kMaxBlockRows;
  for (int i = 0; i < n_blocks; ++i) {
    const int first = n_rows * i / n_blocks;
    f(first, n_rows * (i + 1) / n_blocks - first);
  }
}

// acc[rows][32] += slice `slice` of a tile.
void affine_slice(const LinearKernels& kernels, const PackedLinear& w, const std::byte* tile, int slice,
                  const LinearInput& x, const PassRows& rows, float (*acc)[kTile]) {
  const LinearFormat& format = w.shape.format;
  const AffineLayout layout(format, w.shape.k);
  const int n_steps = (w.shape.slice_k() + kStep - 1) / kStep;
  const bool half = format.group < kStep;
  Unpacked unpacked;
  // 8-bit codes are used where they lie; a chunk of them stays inside a block if blocks hold more than one
  // step.
  const bool in_place = format.bits == 8;
  const int chunk = in_place && layout.steps_per_block > 1 ? layout.steps_per_block : kChunkSteps;
  for (int t = 0; t < n_steps; t += chunk) {
    const int n = std::min(chunk, n_steps - t);
    const int step = slice * n_steps + t;
    for (int i = 0; i < n; ++i) {
      if (!in_place) {
        kernels.unpack_step(tile + layout.step_offset(step + i), format.bits, unpacked.codes[i]);
      }
      kernels.widen(tile + layout.scale_offset(step + i), format.scale_dtype,
                    2 * kTile * layout.groups_per_block, unpacked.scales[half ? 2 * i : i][0]);
    }
    AffineSteps args;
    if (in_place) {
      args.codes = reinterpret_cast<const uint8_t*>(tile + layout.step_offset(step));
      args.code_stride = int64_t(layout.steps_per_block > 1 ? layout.step_bytes : layout.block_bytes);
    } else {
      args.codes = unpacked.codes[0];
      args.code_stride = kStepCodes;
    }
    args.scales = unpacked.scales[0][0];
    for_row_blocks(rows.n, [&](int first, int n_rows) {
      const auto kernel = (half ? kernels.affine_half : kernels.affine)[n_rows - 1];
      args.n_steps = n;
      args.acc = acc[first];
      for (int r = 0; r < n_rows; ++r) args.x[r] = x.quantized.row(rows.in[first + r]) + step;
      kernel(args);
    });
  }
}

void dense_slice(const LinearKernels& kernels, const PackedLinear& w, const std::byte* tile, int slice,
                 const LinearInput& x, const PassRows& rows, float (*acc)[kTile]) {
  const DType dtype = w.shape.format.dtype;
  const int slice_k = w.shape.slice_k();
  const std::byte* values = tile + size_t(slice) * dense_bytes(dtype, slice_k);
  const auto& table = dtype == DType::bf16  ? kernels.dense_bf16
                      : dtype == DType::f16 ? kernels.dense_f16
                                            : kernels.dense_f32;
  const int columns = rows.n <= kMaxBlockRows ? slice_k : kChunkSteps * kStep;
  for (int c = 0; c < slice_k; c += columns) {
    DenseSteps args;
    args.w = values + dense_bytes(dtype, c);
    args.n_columns = std::min(columns, slice_k - c);
    for_row_blocks(rows.n, [&](int first, int n_rows) {
      args.acc = acc[first];
      for (int r = 0; r < n_rows; ++r) {
        args.x[r] = x.values + rows.in[first + r] * x.stride + slice * slice_k + c;
      }
      table[n_rows - 1](args);
    });
  }
}

struct Job {
  const LinearKernels& kernels;
  const PackedLinear& w;
  const LinearInput& x;
  const LinearOutput& out;
};

// One tile of one matrix for the rows of a pass.
void run_tile(const Job& job, int matrix, int tile, const PassRows& rows) {
  const LinearShape& shape = job.w.shape;
  const std::byte* stream = job.w.tile(matrix, tile);
  const int first = tile * kTile, n = std::min(kTile, shape.n - first);
  PassSums pass;
  int depth = 0;
  for (int slice = 0; slice < shape.n_slices; ++slice) {
    float(*acc)[kTile] = pass.sums[depth++];
    memset(acc, 0, size_t(rows.n) * sizeof *acc);
    if (shape.format.affine()) {
      affine_slice(job.kernels, job.w, stream, slice, job.x, rows, acc);
    } else {
      dense_slice(job.kernels, job.w, stream, slice, job.x, rows, acc);
    }
    if (job.out.slice_stride != 0) {
      --depth;
      for (int r = 0; r < rows.n; ++r) {
        memcpy(job.out.y + slice * job.out.slice_stride + rows.out[r] * job.out.stride + first, acc[r],
               size_t(n) * sizeof(float));
      }
      continue;
    }
    // A finished pair of subtrees of the same size becomes one.
    for (int size = slice + 1; size % 2 == 0; size /= 2, --depth) {
      for (int r = 0; r < rows.n; ++r) {
        for (int o = 0; o < kTile; ++o) pass.sums[depth - 2][r][o] += pass.sums[depth - 1][r][o];
      }
    }
  }
  if (job.out.slice_stride != 0) return;
  const float* bias = job.out.bias == nullptr ? nullptr : job.out.bias + int64_t{matrix} * shape.n + first;
  for (int r = 0; r < rows.n; ++r) {
    float* sum = pass.sums[0][r];
    if (bias != nullptr) {
      for (int o = 0; o < n; ++o) sum[o] += bias[o];
    }
    if (job.out.residual != nullptr) {
      const float* residual = job.out.residual + rows.out[r] * job.out.residual_stride + first;
      for (int o = 0; o < n; ++o) sum[o] = residual[o] + sum[o];
    }
    memcpy(job.out.y + rows.out[r] * job.out.stride + first, sum, size_t(n) * sizeof(float));
  }
}

void check_job(const Job& job) {
  const LinearFormat& format = job.w.shape.format;
  if (format.affine()) {
    TD_CHECK(job.x.quantized.groups != nullptr && job.x.quantized.k == job.w.shape.k,
             "quantised rows of %d columns for a weight of %d\n", job.x.quantized.k, job.w.shape.k);
  } else {
    TD_CHECK(job.x.values != nullptr, "a dense weight reads fp32 rows\n");
  }
  TD_CHECK(job.out.slice_stride == 0 || (job.out.bias == nullptr && job.out.residual == nullptr),
           "slices left apart take no bias and no residual\n");
}

int64_t claim_tiles(const LinearShape& shape) {
  return std::max<int64_t>(1, int64_t(kClaimBytes / std::max<size_t>(1, tile_bytes(shape))));
}

}  // namespace

LinearFormat linear_format(const HostMatrix& matrix) {
  if (!matrix.affine()) return {.dtype = matrix.dtype};
  return {.bits = matrix.bits, .group = matrix.group, .scale_dtype = matrix.scale_dtype};
}

size_t tile_bytes(const LinearShape& shape) {
  if (!shape.format.affine())
    return size_t(shape.n_slices) * dense_bytes(shape.format.dtype, shape.slice_k());
  const AffineLayout layout(shape.format, shape.k);
  return size_t(layout.n_blocks) * layout.block_bytes;
}

size_t packed_bytes(const LinearShape& shape) {
  return size_t(shape.n_matrices) * size_t(shape.n_tiles()) * tile_bytes(shape);
}

void linear(ThreadTeam& team, Isa isa, const PackedLinear& w, const LinearInput& x, int rows,
            const LinearOutput& out) {
  const Job job{linear_kernels(isa), w, x, out};
  check_job(job);
  TD_CHECK(w.shape.n_matrices == 1, "linear on a stack of %d matrices\n", w.shape.n_matrices);
  team.parallel_for(w.shape.n_tiles(), claim_tiles(w.shape), [&](int64_t first, int64_t last, int) {
    for (int row = 0; row < rows; row += kPassRows) {
      PassRows pass;
      pass.n = std::min(kPassRows, rows - row);
      for (int r = 0; r < pass.n; ++r) pass.in[r] = pass.out[r] = row + r;
      for (int64_t tile = first; tile < last; ++tile) run_tile(job, 0, int(tile), pass);
    }
  });
}

void linear_experts(ThreadTeam& team, Isa isa, const PackedLinear& w, const LinearInput& x,
                    const ExpertRouting& routing, const LinearOutput& out) {
  const Job job{linear_kernels(isa), w, x, out};
  check_job(job);
  const int64_t n_tiles = w.shape.n_tiles();
  const int64_t n_tasks = n_tiles * int64_t(routing.groups.size());
  team.parallel_for(n_tasks, claim_tiles(w.shape), [&](int64_t first, int64_t last, int) {
    while (first < last) {
      const ExpertRows& group = routing.groups[size_t(first / n_tiles)];
      const int64_t first_tile = first % n_tiles;
      const int64_t end_tile = std::min(n_tiles, first_tile + (last - first));
      for (int row = 0; row < group.count; row += kPassRows) {
        PassRows pass;
        pass.n = std::min(kPassRows, group.count - row);
        memcpy(pass.in, routing.in_rows + group.first + row, size_t(pass.n) * sizeof(int32_t));
        memcpy(pass.out, routing.out_rows + group.first + row, size_t(pass.n) * sizeof(int32_t));
        for (int64_t tile = first_tile; tile < end_tile; ++tile) run_tile(job, group.matrix, int(tile), pass);
      }
      first += end_tile - first_tile;
    }
  });
}

}  // namespace tandem::cpu
