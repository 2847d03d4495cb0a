// Packing: rows travel as the checkpoint has them and are put in place on the card.
#include "backend/cuda/weight.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "backend/cuda/cuda.h"
#include "backend/cuda/upload.h"
#include "backend/random_weights.h"
#include "base/check.h"

namespace tandem::cuda {
namespace {

// Blocks that take several tiles read past the last one (linear.cu).
constexpr size_t kSlackTiles = 4;
constexpr int kThreads = 128;

LinearFormat format_of(const HostMatrix& m) {
  if (!m.affine()) return m.dtype == DType::bf16 ? LinearFormat::bf16 : LinearFormat::f32;
  const bool wide = m.scale_dtype != DType::bf16 || m.group < kGroupColumns;
  if (m.bits > 4) return wide ? LinearFormat::affine8_wide : LinearFormat::affine8;
  return wide ? LinearFormat::affine4_wide : LinearFormat::affine4;
}

struct PlaceArgs {
  const uint8_t* rows;  // raw rows, row_bytes apart
  const uint8_t* scales;
  const uint8_t* biases;
  int64_t row_bytes, scale_row_bytes;
  int n_rows, k, bits, quant_group;
  DType dtype;  // of dense values, or of scales
  // Without rows, scales and biases: random_weights.h.
  uint64_t key;
  float deviation;
  int64_t first_byte;  // of rows[0] in its matrix
  RandomScale drawn_scale;
  LinearFormat format;
  std::byte* out;             // of the part
  int first_tile, first_row;  // of rows[0]: its expert's first tile, and its place among that expert's rows
  int groups;
};

__device__ float load_value(const uint8_t* p, DType dtype) {
  if (dtype == DType::f32) return __uint_as_float(p[0] | p[1] << 8 | p[2] << 16 | uint32_t(p[3]) << 24);
  const uint32_t bits = p[0] | p[1] << 8;
  if (dtype == DType::bf16) return __uint_as_float(bits << 16);
  const uint32_t sign = bits & 0x8000u, exponent = bits >> 10 & 31u, fraction = bits & 1023u;  // f16
  if (exponent == 31u) return __uint_as_float(sign << 16 | 0x7f800000u | fraction << 13);
  if (exponent == 0u) return (sign ? -1.0f : 1.0f) * float(fraction) * 0x1p-24f;
  return __uint_as_float(sign << 16 | (exponent + 112u) << 23 | fraction << 13);
}

// The bytes of a row, from memory or drawn.
struct ReadBytes {
  const uint8_t* row;
  __device__ ReadBytes(const PlaceArgs& a, int r) : row(a.rows + r * a.row_bytes) {}
  __device__ uint8_t operator[](int64_t i) const { return row[i]; }
};
struct DrawnBytes {
  uint64_t key;
  float deviation;
  bool dense;
  int64_t first;       // of the row
  int64_t index = -1;  // of `word`
  uint64_t word = 0;
  __device__ DrawnBytes(const PlaceArgs& a, int r)
      : key(a.key),
        deviation(a.deviation),
        dense(a.format == LinearFormat::bf16),
        first(a.first_byte + r * a.row_bytes) {}
  __device__ uint8_t operator[](int64_t i) {
    const int64_t at = first + i;
    if (at / 8 != index) {
      index = at / 8;
      word = random_word(key, uint64_t(index));
      if (dense) {
        const auto value = [&](int n) { return random_value(uint16_t(word >> (16 * n)), deviation); };
        word = uint64_t(bf16_pair(value(2), value(3))) << 32 | bf16_pair(value(0), value(1));
      }
    }
    return uint8_t(word >> (at % 8 * 8));
  }
};

// One thread per row and group.
template <class Bytes>
__global__ void place_kernel(const __grid_constant__ PlaceArgs a) {
  const int64_t index = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  wait_for_inputs();
  if (index >= int64_t(a.n_rows) * a.groups) return;
  const int row = int(index / a.groups), group = int(index % a.groups);
  const int at = a.first_row + row, in_tile = at % kTileRows, g = in_tile % 8, high = in_tile / 8;
  constexpr bool kDrawn = std::is_same_v<Bytes, DrawnBytes>;
  Bytes source(a, row);
  const int value_bytes = a.dtype == DType::f32 ? 4 : 2;
  if (a.format == LinearFormat::f32) {
    if constexpr (!kDrawn) {
      float* out = reinterpret_cast<float*>(a.out) + (int64_t(a.first_tile) * kTileRows + at) * a.k;
      for (int c = group * kGroupColumns; c < min(a.k, (group + 1) * kGroupColumns); ++c) {
        out[c] = load_value(source.row + int64_t(c) * value_bytes, a.dtype);
      }
    }
    return;
  }
  std::byte* record =
      a.out + (int64_t(a.first_tile + at / kTileRows) * a.groups + group) * record_bytes(a.format);
  auto* bytes = reinterpret_cast<uint8_t*>(record);
  for (int in = 0; in < kGroupColumns; ++in) {
    const int c = group * kGroupColumns + in;
    if (c >= a.k) break;
    const int j = in / 32, t = in % 32 / 8, h = in % 8 / 4, e = in % 4, lane = g * 4 + t;
    if (a.format == LinearFormat::bf16) {
      uint8_t* to = bytes + (j * 2 + h) * 512 + lane * 16 + (e / 2 * 2 + high) * 4 + e % 2 * 2;
      to[0] = source[int64_t(c) * 2];
      to[1] = source[int64_t(c) * 2 + 1];
      continue;
    }
    const int64_t bit = int64_t(c) * a.bits;
    uint32_t code = source[bit / 8] >> (bit % 8);
    if (bit % 8 + a.bits > 8) code |= uint32_t(source[bit / 8 + 1]) << (8 - bit % 8);
    code &= (1u << a.bits) - 1u;
    if (is_affine8(a.format)) {
      bytes[j * 512 + lane * 16 + (h * 2 + high) * 4 + e] = uint8_t(code);
    } else {
      bytes[lane * 16 + (j * 2 + high) * 4 + e % 2 * 2 + h] |= uint8_t(code << (e / 2 * 4));
    }
  }
  if (!is_affine(a.format)) return;
  uint8_t* pairs = bytes + code_bytes(a.format);
  for (int half = 0; half < 2; ++half) {
    const int c = group * kGroupColumns + half * 32;
    if (c >= a.k) continue;
    const int64_t i = int64_t(c / a.quant_group) * value_bytes;
    const auto* scale = kDrawn ? reinterpret_cast<const uint8_t*>(&a.drawn_scale.scale)
                               : a.scales + row * a.scale_row_bytes + i;
    const auto* bias = kDrawn ? reinterpret_cast<const uint8_t*>(&a.drawn_scale.bias)
                              : a.biases + row * a.scale_row_bytes + i;
    if (is_wide(a.format)) {
      float* to = reinterpret_cast<float*>(pairs + half * 128 + g * 16 + high * 8);
      to[0] = load_value(scale, a.dtype);
      to[1] = load_value(bias, a.dtype);
    } else if (half == 0) {
      uint8_t* to = pairs + g * 8 + high * 4;
      to[0] = scale[0];
      to[1] = scale[1];
      to[2] = bias[0];
      to[3] = bias[1];
    }
  }
}

// Sends rows [first, first + n) of a matrix to their places.
class Sender {
 public:
  Sender(Card& card, Upload& upload) : card_(&card), upload_(&upload) {}

  void send(const HostMatrix& m, int first, int n, const WeightPart& part, int expert, int row_in_part) {
    const int64_t scale_row = m.affine() ? int64_t(m.k / m.group) * int64_t(dtype_bytes(m.scale_dtype)) : 0;
    if (m.random) {
      PlaceArgs args = place_args(m, nullptr, nullptr, nullptr, 0, n, part, expert, row_in_part);
      args.key = m.random->key;
      args.deviation = m.random->deviation;
      args.first_byte = first * m.row_bytes();
      if (m.affine()) args.drawn_scale = random_scale(m.random->deviation, m.bits);
      return place<DrawnBytes>(*card_, args);
    }
    const int64_t of_row = m.row_bytes() + 2 * scale_row;
    const int at_once = int(std::clamp<int64_t>(int64_t(Upload::kMostBytes) / of_row, 1, n));
    for (int done = 0; done < n; done += at_once) {
      const int rows = std::min(at_once, n - done), from = first + done;
      std::byte* data = upload_->room(size_t(rows * of_row));
      std::byte* scales = data + int64_t(rows) * m.row_bytes();
      std::byte* biases = scales + rows * scale_row;
      upload_->copy(data, m.data + from * m.row_bytes(), size_t(rows * m.row_bytes()));
      if (m.affine()) {
        upload_->copy(scales, m.scales + from * scale_row, size_t(rows * scale_row));
        upload_->copy(biases, m.biases + from * scale_row, size_t(rows * scale_row));
      }
      upload_->then([card = card_, args = place_args(m, data, scales, biases, scale_row, rows, part, expert,
                                                     row_in_part + done)] { place<ReadBytes>(*card, args); });
    }
  }

 private:
  static PlaceArgs place_args(const HostMatrix& m, const std::byte* data, const std::byte* scales,
                              const std::byte* biases, int64_t scale_row, int rows, const WeightPart& part,
                              int expert, int row_in_part) {
    return {.rows = reinterpret_cast<const uint8_t*>(data),
            .scales = reinterpret_cast<const uint8_t*>(scales),
            .biases = reinterpret_cast<const uint8_t*>(biases),
            .row_bytes = m.row_bytes(),
            .scale_row_bytes = scale_row,
            .n_rows = rows,
            .k = m.k,
            .bits = m.bits,
            .quant_group = m.group,
            .dtype = m.affine() ? m.scale_dtype : m.dtype,
            .key = 0,
            .deviation = 0,
            .first_byte = 0,
            .drawn_scale = {},
            .format = part.format,
            .out = part.data,
            .first_tile = expert * part.tiles,
            .first_row = row_in_part,
            .groups = part.groups};
  }
  template <class Bytes>
  static void place(Card& card, const PlaceArgs& args) {
    const int64_t threads = int64_t(args.n_rows) * args.groups;
    card.launch(place_kernel<Bytes>, {unsigned((threads + kThreads - 1) / kThreads)}, kThreads, 0, args);
  }

  Card* card_;
  Upload* upload_;
};

// Calls visit(run, row within the run, rows, output row) for stretches that stay in one part of one expert.
template <class Visit>
void each_stretch(const PackRequest& request, const std::vector<WeightPart>& parts, int n, Visit&& visit) {
  int64_t row = 0;
  for (const RowRun& run : request.rows) {
    for (int done = 0; done < run.n_rows;) {
      const int in_expert = int(row % n);
      size_t p = 0;
      while (in_expert >= parts[p].first + parts[p].n) ++p;
      const int rows = std::min(run.n_rows - done, parts[p].first + parts[p].n - in_expert);
      visit(*run.matrix, run.first_row + done, rows, parts[p], int(row / n), in_expert - parts[p].first);
      done += rows;
      row += rows;
    }
  }
}

// The formats of expert 0, row after row.
std::vector<WeightPart> parts_of(const PackRequest& request, int n, int k) {
  std::vector<WeightPart> parts;
  int row = 0;
  for (const RowRun& run : request.rows) {
    if (row >= n) break;
    const int rows = std::min(run.n_rows, n - row);
    const LinearFormat format = format_of(*run.matrix);
    if (parts.empty() || parts.back().format != format) {
      parts.push_back({});
      parts.back().format = format;
      parts.back().first = row;
    }
    parts.back().n += rows;
    row += rows;
  }
  for (WeightPart& part : parts) {
    part.tiles = (part.n + kTileRows - 1) / kTileRows;
    part.groups = (k + kGroupColumns - 1) / kGroupColumns;
    const size_t of_tile = part.format == LinearFormat::f32
                               ? size_t(kTileRows) * size_t(k) * sizeof(float)
                               : size_t(part.groups) * size_t(record_bytes(part.format));
    part.bytes = size_t(request.n_experts) * size_t(part.tiles) * of_tile;
  }
  return parts;
}

}  // namespace

CudaWeight::~CudaWeight() {
  for (const WeightPart& part : parts) {
    if (part.data != nullptr) card_->release(part.data);
  }
  if (bias != nullptr) card_->release(reinterpret_cast<std::byte*>(bias));
}

bool CudaWeight::takes_bf16() const {
  return std::any_of(parts.begin(), parts.end(),
                     [](const WeightPart& p) { return p.format == LinearFormat::bf16; });
}
bool CudaWeight::takes_f16() const {
  return std::any_of(parts.begin(), parts.end(), [](const WeightPart& p) { return p.takes_f16(); });
}

size_t CudaWeight::bytes() const {
  size_t sum = bias != nullptr ? size_t(n()) * sizeof(float) : 0;
  for (const WeightPart& part : parts) sum += part.bytes;
  return sum;
}

Result<std::unique_ptr<Weight>> CudaBackend::pack(const PackRequest& request) {
  const PackShape shape = pack_shape(request);
  auto weight = std::make_unique<CudaWeight>(*card_, shape.n, shape.k, request.n_experts, request.n_slices);
  weight->parts = parts_of(request, shape.n, shape.k);
  if (!upload_) upload_ = std::make_unique<Upload>(*card_);
  const auto memory = [&](size_t bytes) -> Result<std::byte*> {
    std::byte* data = card_->allocate(bytes);
    if (data != nullptr) return data;
    return Error{request.name + ": " + std::to_string(bytes) + " bytes of GPU memory wanted, " +
                 std::to_string(card_->available_bytes()) + " available; use a model of fewer bits"};
  };
  for (WeightPart& part : weight->parts) {
    const size_t bytes = part.bytes + kSlackTiles * size_t(part.groups) * size_t(record_bytes(part.format));
    TD_ASSIGN_OR_RETURN(part.data, memory(bytes));
    card_->zero(part.data, bytes);
  }
  Sender sender(*card_, *upload_);
  bool same = true;
  each_stretch(request, weight->parts, shape.n,
               [&](const HostMatrix& m, int first, int n, const WeightPart& part, int expert, int row) {
                 same = same && format_of(m) == part.format;
                 if (same) sender.send(m, first, n, part, expert, row);
               });
  upload_->flush();  // the checkpoint may go
  if (!same)
    return Error{request.name + ": its experts differ in number format, which the cuda backend cannot pack"};
  if (!request.bias.empty()) {
    TD_ASSIGN_OR_RETURN(std::byte * bias, memory(request.bias.size_bytes()));
    weight->bias = reinterpret_cast<float*>(bias);
    copy_in(bias, std::as_bytes(request.bias));
  }
  return std::unique_ptr<Weight>(std::move(weight));
}

}  // namespace tandem::cuda
