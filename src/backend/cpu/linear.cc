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
  if (isa == Isa::avx512) {
    static const LinearKernels with_bf16 = [] {
      LinearKernels kernels = kAvx512Linear;
      kernels.dense_bf16 = kAvx512Bf16Dense;
      return kernels;
    }();
    return has_bf16_dot() ? with_bf16 : kAvx512Linear;
  }
  if (isa == Isa::avx2) return kAvx2Linear;
#endif
  TD_CHECK(isa == Isa::portable, "kernels for isa %d\n", int(isa));
  return kPortableLinear;
}

namespace {

constexpr int kPassRows = 32;   // rows that share one pass over a tile
constexpr int kChunkSteps = 4;  // steps that blocks of rows share: their codes stay in the first-level cache
constexpr int kMaxSliceDepth = 4;  // pending sums of a tree over 8 slices

// Weights claimed at a time: a stream long enough for the hardware's own prefetching; less where later passes
// shall find them in the second-level cache.
constexpr size_t kClaimBytes = 512 << 10;
constexpr size_t kClaimBytesOfPasses = 256 << 10;

// Estimates for one thread: a byte of weights read, and multiplied with one row.
constexpr double kNsPerByte = 0.03, kNsPerByteAndRow = 0.005;
constexpr double kWorthSharingNs = 5000, kClaimNs = 12000;

// How far ahead of its reads a kernel asks for weights, into the second-level cache. While several rows are
// computed the memory would stand idle otherwise: nearer than this the request comes too late (8 rows take a
// third longer). One or two rows with two streams are served best by the hardware alone.
constexpr int64_t kAheadBytes = 16384;

struct Job {
  const LinearKernels& kernels;
  const PackedLinear& w;
  const LinearInput& x;
  const LinearOutput& out;
};

// The rows of one pass: where each reads and writes.
struct PassRows {
  int n = 0;
  int64_t ahead = 0;  // bytes of weights to ask for ahead
  int32_t in[kPassRows];
  int32_t out[kPassRows];
};

// One or two tiles of a matrix.
struct Tiles {
  int n = 0;
  const std::byte* stream[kMaxTiles];
  int first[kMaxTiles];  // output
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

template <class Steps>
void call(const ByRows<Steps>& kernels, int n_tiles, int n_rows, const Steps& args) {
  (n_tiles == 1 ? kernels.one : kernels.two)[n_rows - 1](args);
}

// Whether 4-bit codes are taken apart in registers: where no second block of rows wants them unpacked.
bool takes_nibbles(const Job& job, int n_rows) {
  const LinearFormat& format = job.w.shape.format;
  return format.bits == 4 && format.group >= kStep && n_rows <= kMaxBlockRows &&
         job.kernels.affine4.one[0] != nullptr;
}

// acc[tiles][rows][32] += slice `slice`.
void affine_slice(const Job& job, const Tiles& tiles, int slice, const PassRows& rows, float* acc) {
  const LinearShape& shape = job.w.shape;
  const LinearFormat& format = shape.format;
  const AffineLayout layout(format, shape.k);
  const int n_steps = (shape.slice_k() + kStep - 1) / kStep;
  const auto& kernels = takes_nibbles(job, rows.n) ? job.kernels.affine4
                        : format.group < kStep     ? job.kernels.affine_half
                                                   : job.kernels.affine;
  // One block of rows takes the slice in one go. Several share chunks of it: the first one reads the stream
  // (and unpacks what is not bytes), the others find it in the cache.
  const int chunk = rows.n <= kMaxBlockRows ? n_steps : kChunkSteps;
  alignas(64) uint8_t unpacked[kChunkSteps][kStepCodes];
  const bool share_unpacked = format.bits != 8 && rows.n > kMaxBlockRows;
  AffineSteps args;
  args.steps_per_block = layout.steps_per_block;
  args.scale_block = int64_t(layout.block_bytes);
  args.scale_dtype = format.scale_dtype;
  for (int t = 0; t < n_steps; t += chunk) {
    const int step = slice * n_steps + t;
    args.n_steps = std::min(chunk, n_steps - t);
    for (int i = 0; i < tiles.n; ++i) {
      args.codes[i] = tiles.stream[i] + layout.step_offset(step);
      args.scales[i] = tiles.stream[i] + layout.scale_offset(step);
    }
    args.code_step = int64_t(layout.step_bytes);
    args.code_block = int64_t(layout.block_bytes);
    args.bits = format.bits;
    args.unpacked = share_unpacked ? unpacked[0] : nullptr;
    args.ahead = rows.ahead;
    for_row_blocks(rows.n, [&](int first, int n_rows) {
      for (int i = 0; i < tiles.n; ++i) args.acc[i] = acc + (i * rows.n + first) * kTile;
      for (int r = 0; r < n_rows; ++r) args.x[r] = job.x.quantized.row(rows.in[first + r]) + step;
      call(kernels, tiles.n, n_rows, args);
      args.ahead = 0;
      if (share_unpacked) {
        args.codes[0] = reinterpret_cast<const std::byte*>(unpacked);
        args.code_step = kStepCodes;
        args.code_block = kStepCodes * layout.steps_per_block;
        args.bits = 8;
      }
    });
  }
}

// acc[tiles][rows][32] += slice `slice`; row(r) are the k activations of input row r.
template <class Value, class Row>
void dense_slice(const Job& job, const ByRows<DenseSteps<Value>>& kernels, const Row& row, const Tiles& tiles,
                 int slice, const PassRows& rows, float* acc) {
  const LinearShape& shape = job.w.shape;
  const DType dtype = shape.format.dtype;
  const int slice_k = shape.slice_k();
  const int chunk = rows.n <= kMaxBlockRows ? slice_k : kChunkSteps * kStep;
  for (int c = 0; c < slice_k; c += chunk) {
    DenseSteps<Value> args;
    args.n_columns = std::min(chunk, slice_k - c);
    args.ahead = rows.ahead;
    for (int i = 0; i < tiles.n; ++i) {
      args.w[i] = tiles.stream[i] + size_t(slice) * dense_bytes(dtype, slice_k) + dense_bytes(dtype, c);
    }
    for_row_blocks(rows.n, [&](int first, int n_rows) {
      for (int i = 0; i < tiles.n; ++i) args.acc[i] = acc + (i * rows.n + first) * kTile;
      for (int r = 0; r < n_rows; ++r) args.x[r] = row(rows.in[first + r]) + slice * slice_k + c;
      call(kernels, tiles.n, n_rows, args);
      args.ahead = 0;
    });
  }
}

void dense_slice(const Job& job, const Tiles& tiles, int slice, const PassRows& rows, float* acc) {
  const DType dtype = job.w.shape.format.dtype;
  if (dtype == DType::bf16) {
    const auto row = [&](int r) -> const uint16_t* { return job.x.rounded.row(r); };
    return dense_slice(job, job.kernels.dense_bf16, row, tiles, slice, rows, acc);
  }
  const auto row = [&](int r) { return job.x.values + r * job.x.stride; };
  dense_slice(job, dtype == DType::f16 ? job.kernels.dense_f16 : job.kernels.dense_f32, row, tiles, slice,
              rows, acc);
}

// y = residual + (sum + bias) for one row of a tile.
void store_row(const Job& job, int matrix, int first, int row, float* sum) {
  const LinearShape& shape = job.w.shape;
  const int n = std::min(kTile, shape.n - first);
  if (job.out.bias != nullptr) {
    const float* bias = job.out.bias + int64_t{matrix} * shape.n + first;
    for (int o = 0; o < n; ++o) sum[o] += bias[o];
  }
  if (job.out.residual != nullptr) {
    const float* residual = job.out.residual + row * job.out.residual_stride + first;
    for (int o = 0; o < n; ++o) sum[o] = residual[o] + sum[o];
  }
  memcpy(job.out.y + row * job.out.stride + first, sum, size_t(n) * sizeof(float));
}

void run_tiles(const Job& job, int matrix, const Tiles& tiles, const PassRows& rows) {
  const LinearShape& shape = job.w.shape;
  const int n_sums = tiles.n * rows.n * kTile;
  alignas(
      64) float sums[kMaxSliceDepth][kPassRows * kTile];  // a stack: subtrees that wait for their other half
  int depth = 0;
  for (int slice = 0; slice < shape.n_slices; ++slice) {
    float* acc = sums[depth++];
    memset(acc, 0, size_t(n_sums) * sizeof(float));
    if (shape.format.affine()) {
      affine_slice(job, tiles, slice, rows, acc);
    } else {
      dense_slice(job, tiles, slice, rows, acc);
    }
    if (job.out.slice_stride != 0) {
      --depth;
      for (int i = 0; i < tiles.n; ++i) {
        const int n = std::min(kTile, shape.n - tiles.first[i]);
        for (int r = 0; r < rows.n; ++r) {
          memcpy(job.out.y + slice * job.out.slice_stride + rows.out[r] * job.out.stride + tiles.first[i],
                 acc + (i * rows.n + r) * kTile, size_t(n) * sizeof(float));
        }
      }
      continue;
    }
    // A finished pair of subtrees of the same size becomes one.
    for (int size = slice + 1; size % 2 == 0; size /= 2, --depth) {
      job.kernels.add(sums[depth - 2], sums[depth - 1], n_sums);
    }
  }
  if (job.out.slice_stride != 0) return;
  for (int i = 0; i < tiles.n; ++i) {
    for (int r = 0; r < rows.n; ++r) {
      store_row(job, matrix, tiles.first[i], rows.out[r], sums[0] + (i * rows.n + r) * kTile);
    }
  }
}

// Tiles [first, last) of one matrix. Few rows are bound by memory and read two streams at once: half the
// tiles each.
void run_tile_range(const Job& job, int matrix, int64_t first, int64_t last, PassRows& rows) {
  // (Narrow codes are bound by their unpacking before a second stream helps.)
  const int bits = job.w.shape.format.bits;
  const bool pairs = rows.n <= kMaxPairRows && (bits == 0 || bits == 8 || takes_nibbles(job, rows.n));
  const int64_t n_pairs = pairs ? (last - first) / 2 : 0;
  if (n_pairs > 0) rows.ahead = 0;
  for (int64_t i = 0; i < (last - first) - n_pairs; ++i) {
    Tiles tiles;
    tiles.n = i < n_pairs ? 2 : 1;
    const int64_t index[kMaxTiles] = {i < n_pairs ? first + i : first + n_pairs + i, first + n_pairs + i};
    for (int j = 0; j < tiles.n; ++j) {
      tiles.stream[j] = job.w.tile(matrix, int(index[j]));
      tiles.first[j] = int(index[j]) * kTile;
    }
    run_tiles(job, matrix, tiles, rows);
  }
}

void check_job(const Job& job) {
  const LinearFormat& format = job.w.shape.format;
  if (format.affine()) {
    TD_CHECK(job.x.quantized.groups != nullptr && job.x.quantized.k == job.w.shape.k,
             "quantised rows of %d columns for a weight of %d\n", job.x.quantized.k, job.w.shape.k);
  } else if (format.dtype == DType::bf16) {
    TD_CHECK(job.x.rounded.values != nullptr && job.x.rounded.k == job.w.shape.k,
             "rounded rows of %d columns for a weight of %d\n", job.x.rounded.k, job.w.shape.k);
  } else {
    TD_CHECK(job.x.values != nullptr, "an %s weight reads fp32 rows\n", dtype_name(format.dtype).data());
  }
  TD_CHECK(job.out.slice_stride == 0 || (job.out.bias == nullptr && job.out.residual == nullptr),
           "slices left apart take no bias and no residual\n");
}

// Tiles claimed at a time, of n_tiles that each work on `rows` rows. A small matrix is cut evenly over the
// threads, or not at all where handing out would cost more than it gives.
int64_t claim_tiles(const LinearShape& shape, int64_t n_tiles, int rows, int n_threads) {
  const double tile = double(tile_bytes(shape));
  const double tile_ns = tile * std::max(kNsPerByte, kNsPerByteAndRow * rows);
  if (tile_ns * double(n_tiles) < kWorthSharingNs) return n_tiles;
  const double bytes = rows <= kPassRows ? kClaimBytes : kClaimBytesOfPasses;
  const double most = rows <= kPassRows ? std::min(bytes, kClaimNs / tile_ns * tile) : bytes;
  const int64_t even = (n_tiles + n_threads - 1) / n_threads;
  return std::clamp<int64_t>(int64_t(most / tile), 1, even);
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
  team.parallel_for(w.shape.n_tiles(), claim_tiles(w.shape, w.shape.n_tiles(), rows, team.size()),
                    [&](int64_t first, int64_t last, int) {
                      for (int row = 0; row < rows; row += kPassRows) {
                        PassRows pass;
                        pass.n = std::min(kPassRows, rows - row);
                        pass.ahead = rows <= kPassRows ? kAheadBytes : 0;
                        for (int r = 0; r < pass.n; ++r) pass.in[r] = pass.out[r] = row + r;
                        run_tile_range(job, 0, first, last, pass);
                      }
                    });
}

void linear_experts(ThreadTeam& team, Isa isa, const PackedLinear& w, const LinearInput& x,
                    const ExpertRouting& routing, const LinearOutput& out) {
  const Job job{linear_kernels(isa), w, x, out};
  check_job(job);
  const int64_t n_tiles = w.shape.n_tiles();
  const int64_t n_tasks = n_tiles * int64_t(routing.groups.size());
  int most_rows = 1;
  for (const ExpertRows& group : routing.groups) most_rows = std::max(most_rows, int(group.count));
  team.parallel_for(
      n_tasks, claim_tiles(w.shape, n_tasks, most_rows, team.size()), [&](int64_t first, int64_t last, int) {
        while (first < last) {
          const ExpertRows& group = routing.groups[size_t(first / n_tiles)];
          const int64_t first_tile = first % n_tiles;
          const int64_t end_tile = std::min(n_tiles, first_tile + (last - first));
          for (int row = 0; row < group.count; row += kPassRows) {
            PassRows pass;
            pass.n = std::min(kPassRows, group.count - row);
            pass.ahead = group.count <= kPassRows ? kAheadBytes : 0;
            memcpy(pass.in, routing.in_rows + group.first + row, size_t(pass.n) * sizeof(int32_t));
            memcpy(pass.out, routing.out_rows + group.first + row, size_t(pass.n) * sizeof(int32_t));
            run_tile_range(job, group.matrix, first_tile, end_tile, pass);
          }
          first += end_tile - first_tile;
        }
      });
}

}  // namespace tandem::cpu
