// Memory, threads and packing of the cpu backend.
#include "backend/cpu/cpu_backend.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "backend/cpu/cpu.h"
#include "backend/host_memory.h"
#include "base/check.h"

namespace tandem {
namespace cpu {
namespace {

constexpr size_t kAlign = 128;
constexpr size_t kHugePage = size_t{2} << 20;

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

// A stretch of rows of one format in every expert of a weight.
struct Segment {
  LinearFormat format;
  int n = 0;                 // rows in one expert
  std::vector<RowRun> runs;  // of all experts, expert after expert
};

// Cuts the rows of `request` into segments. Error: experts of one stack that differ in format.
Result<std::vector<Segment>> cut_into_segments(const PackRequest& request, int n) {
  std::vector<Segment> segments;
  int expert = 0, row = 0;  // of the weight
  size_t at = 0;            // segment of the current expert
  int row_in_segment = 0;
  const auto mismatch = [&](const HostMatrix& m) {
    return Error{
        fmt::format("{}: expert {} ({}) is not quantised like expert 0; experts of one stack need one format",
                    request.name, expert, m.name)};
  };
  for (RowRun run : request.rows) {
    const LinearFormat format = linear_format(*run.matrix);
    while (run.n_rows > 0) {
      const int take = std::min(run.n_rows, n - row);  // up to the border of the expert
      if (expert == 0) {
        if (segments.empty() || !(segments.back().format == format)) segments.push_back({format, 0, {}});
        segments.back().n += take;
        segments.back().runs.push_back({run.matrix, run.first_row, take});
      } else {
        int left = take, first = run.first_row;
        while (left > 0) {
          if (row_in_segment == segments[at].n) {
            ++at;
            row_in_segment = 0;
          }
          if (!(segments[at].format == format)) return mismatch(*run.matrix);
          const int some = std::min(left, segments[at].n - row_in_segment);
          segments[at].runs.push_back({run.matrix, first, some});
          first += some;
          left -= some;
          row_in_segment += some;
        }
      }
      run.first_row += take;
      run.n_rows -= take;
      row += take;
      if (row == n) {
        ++expert;
        row = 0;
        at = 0;
        row_in_segment = 0;
      }
    }
  }
  return segments;
}

}  // namespace

size_t CpuWeight::bytes() const {
  size_t bytes = bias_.size() * sizeof(float);
  for (const Part& part : parts_) bytes += part.packed.bytes();
  return bytes;
}

size_t CpuWeight::input_bytes(int rows) const {
  return (any_affine() ? quantized_bytes(rows, k()) : 0) + (any_bf16() ? rounded_bytes(rows, k()) : 0);
}

bool CpuWeight::any_bf16() const {
  return std::any_of(parts_.begin(), parts_.end(), [](const Part& p) {
    return !p.packed.shape.format.affine() && p.packed.shape.format.dtype == DType::bf16;
  });
}

bool CpuWeight::any_affine() const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [](const Part& p) { return p.packed.shape.format.affine(); });
}

void ScratchBuffer::Free::operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{kAlign}); }

std::byte* ScratchBuffer::need(size_t bytes) {
  if (bytes > bytes_) {
    data_.reset();
    data_.reset(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kAlign})));
    bytes_ = bytes;
  }
  return data_.get();
}

std::string CpuBackend::description() const {
  return fmt::format("cpu/{}{} ({} thread{})", isa_name(isa_),
                     delta_ == DeltaForm::closed ? ", closed form" : "", threads(),
                     threads() == 1 ? "" : "s");
}

size_t CpuBackend::available_bytes() const { return available_host_bytes(); }

Result<DeviceBuffer> CpuBackend::allocate(size_t bytes, const std::string& purpose) {
  TD_RETURN_IF_ERROR(check_host_memory(bytes, purpose));
  if (bytes < kHugePage) {
    void* data = ::operator new (std::max<size_t>(bytes, 1), std::align_val_t{kAlign}, std::nothrow);
    if (data == nullptr) return out_of_host_memory(bytes, purpose);
    return DeviceBuffer(static_cast<std::byte*>(data), bytes, nullptr,
                        [](void*, std::byte* p, size_t) { ::operator delete (p, std::align_val_t{kAlign}); });
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return out_of_host_memory(bytes, purpose);
  madvise(data, bytes, MADV_HUGEPAGE);  // a hint: without huge pages all works, slower
  return DeviceBuffer(static_cast<std::byte*>(data), bytes, nullptr,
                      [](void*, std::byte* p, size_t size) { munmap(p, size); });
}

Result<std::unique_ptr<Weight>> CpuBackend::pack(const PackRequest& request) {
  const PackShape shape = pack_shape(request);
  TD_ASSIGN_OR_RETURN(std::vector<Segment> segments, cut_into_segments(request, shape.n));
  size_t bytes = 0;
  std::vector<LinearShape> shapes;
  for (const Segment& s : segments) {
    shapes.push_back({.format = s.format,
                      .n = s.n,
                      .k = shape.k,
                      .n_slices = request.n_slices,
                      .n_matrices = request.n_experts});
    bytes += packed_bytes(shapes.back());
  }
  TD_RETURN_IF_ERROR(check_host_memory(bytes, "weight " + request.name));
  std::vector<CpuWeight::Part> parts;
  int first = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    TD_ASSIGN_OR_RETURN(PackedLinear packed, pack_linear(team_, arena_, shapes[i], segments[i].runs));
    parts.push_back({first, std::move(packed)});
    first += segments[i].n;
  }
  return std::unique_ptr<Weight>(
      std::make_unique<CpuWeight>(shape.n, shape.k, request.n_experts, request.n_slices, std::move(parts),
                                  std::vector<float>(request.bias.begin(), request.bias.end())));
}

Status CpuBackend::reserve(const Reserve& largest) {
  const AttentionShape& attention = largest.attention;
  const DeltaShape& delta = largest.delta;
  if (attention.d_head % 2 != 0) {
    return Error{
        fmt::format("the cpu backend needs an even head dimension; this model has {}", attention.d_head)};
  }
  if (delta.d_k % 8 != 0 || delta.d_k > kMaxKeyDim) {
    return Error{
        fmt::format("the cpu backend needs a key dimension of the delta rule that is a multiple of 8 and at "
                    "most {}; this model has {}",
                    kMaxKeyDim, delta.d_k)};
  }
  TD_ASSIGN_OR_RETURN(const ExpertMemory experts, expert_memory(largest));
  size_t of_thread = 0, partials = 0, input = 0;
  if (attention.d_head > 0) {
    of_thread = size_t(attention_work_floats(attention.d_head)) * sizeof(float);
    partials =
        size_t(max_attention_partials(attention)) * size_t(partial_floats(attention.d_head)) * sizeof(float);
  }
  if (delta.d_k > 0) {
    of_thread = std::max({of_thread, delta_work_floats(delta.d_k, delta.d_v) * sizeof(float),
                          kept_state_floats(delta.d_k) * sizeof(float)});
  }
  for (const Weight* w : largest.weights) input = std::max(input, ours(*w).input_bytes(largest.max_rows));
  TD_RETURN_IF_ERROR(check_host_memory(of_thread * per_thread_.size() + partials + input + experts.total(),
                                       "scratch of the cpu backend"));
  for (ScratchBuffer& scratch : per_thread_) scratch.need(of_thread);
  partials_.need(partials);
  input_.need(input);
  need(experts);
  return {};
}

void CpuBackend::copy_in(std::byte* device, std::span<const std::byte> host) {
  std::memcpy(device, host.data(), host.size());
}

void CpuBackend::copy_out(std::span<std::byte> host, const std::byte* device) {
  std::memcpy(host.data(), device, host.size());
}

void CpuBackend::zero(std::byte* device, size_t bytes) { std::memset(device, 0, bytes); }

}  // namespace cpu

Result<std::unique_ptr<Backend>> make_cpu_backend(int threads, const std::string& isa, DeltaForm delta) {
  std::string known;
  for (const cpu::Isa i : cpu::supported_isas())
    known += fmt::format("{}{}", known.empty() ? "" : ", ", isa_name(i));
  cpu::Isa chosen = cpu::best_isa();
  if (isa != "auto") {
    const auto named = cpu::isa_from_name(isa);
    if (!named)
      return Error{fmt::format("instruction set '{}' is unknown: use auto or one of {}", isa, known)};
    if (!cpu::isa_supported(*named)) {
      return Error{fmt::format("this CPU lacks the instruction set '{}': use auto or one of {}", isa, known)};
    }
    chosen = *named;
  }
  if (threads < 0) return Error{fmt::format("{} threads: give 0 (one per core) or more", threads)};
  auto backend =
      std::make_unique<cpu::CpuBackend>(threads == 0 ? cpu::usable_cores() : threads, chosen, delta);
  TD_RETURN_IF_ERROR(backend->threads_started());
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace tandem
