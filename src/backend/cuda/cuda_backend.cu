// Memory, steps and recordings of the cuda backend.
#include "backend/cuda/cuda_backend.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "backend/cuda/cuda.h"
#include "backend/cuda/upload.h"
#include "backend/cuda/weight.h"
#include "base/check.h"

namespace tandem {
namespace cuda {
namespace {

// Grids over keys of a recorded step are sized for this many positions and its doubles.
constexpr int kSmallestContext = 1024;

int bucket_of(int n_keys) {
  int bucket = kSmallestContext;
  while (bucket < n_keys) bucket *= 2;
  return bucket;
}

constexpr int kReservedSequences = 256;  // of the steps of a run; more make the table grow once
constexpr size_t kLandingBytes = size_t{8} << 20;
constexpr size_t kMaxKinds = 512;  // of steps with a recording; then the one used longest ago goes

// Decode steps with as many rows of each sequence, no trees.
bool alike(const Step& a, const Step& b) {
  return a.path == Path::decode && b.path == Path::decode &&
         std::equal(a.seqs.begin(), a.seqs.end(), b.seqs.begin(), b.seqs.end(),
                    [](const SeqStep& x, const SeqStep& y) {
                      return x.n_rows == y.n_rows && x.parents.empty() && y.parents.empty();
                    });
}

void release(void* card, std::byte* data, size_t) { static_cast<Card*>(card)->release(data); }

std::string gib(size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f GiB", double(bytes) / double(size_t{1} << 30));
  return text;
}

}  // namespace

std::byte* Scratchpad::need(size_t bytes, bool may_grow) {
  if (bytes <= bytes_) return data_;
  TD_CHECK(may_grow, "scratch of %zu bytes in a recorded step, %zu reserved", bytes, bytes_);
  if (data_ != nullptr) card_->release(data_);
  data_ = card_->allocate(bytes);
  TD_CHECK(data_ != nullptr, "no device memory for %zu bytes of scratch", bytes);
  card_->zero(data_, bytes);
  bytes_ = bytes;
  ++*epoch_;
  return data_;
}

CudaBackend::CudaBackend(std::unique_ptr<Card> card, DeltaForm delta)
    : card_(std::move(card)),
      delta_(delta),
      stage_(*card_),
      activations_(*card_, scratch_epoch_),
      partials_(*card_, scratch_epoch_),
      counters_(*card_, scratch_epoch_),
      rows_(*card_, scratch_epoch_),
      experts_(*card_, scratch_epoch_) {}

CudaBackend::~CudaBackend() {
  card_->wait();
  if (landing_ != nullptr) card_->release_host(landing_);
}

std::string CudaBackend::description() const {
  const CardInfo& info = card_->info();
  return "cuda/sm_" + std::to_string(info.sm_version) +
         (delta_ == DeltaForm::closed ? ", closed form (" : " (") + info.name + ")";
}

Result<DeviceBuffer> CudaBackend::allocate(size_t bytes, const std::string& purpose) {
  const size_t free = card_->available_bytes();
  std::byte* data = bytes <= free ? card_->allocate(std::max<size_t>(bytes, 1)) : nullptr;
  if (data == nullptr) {
    return Error{purpose + ": " + gib(bytes) + " (" + std::to_string(bytes) +
                 " bytes) of GPU memory wanted, " + gib(free) + " (" + std::to_string(free) +
                 " bytes) available; use a smaller context, fewer sequences or a " + "model of fewer bits"};
  }
  return DeviceBuffer(data, bytes, card_.get(), release);
}

void CudaBackend::copy_in(std::byte* device, std::span<const std::byte> host) {
  card_->copy_in(device, host.data(), host.size());
  card_->wait();  // the caller may let go of `host`
}

void CudaBackend::copy_out(std::span<std::byte> host, const std::byte* device) {
  // By way of page-locked memory: several times faster than the driver's own detour, for logits above all.
  if (landing_ == nullptr) landing_ = card_->allocate_host(kLandingBytes);
  for (size_t done = 0; done < host.size(); done += kLandingBytes) {
    const size_t bytes = std::min(kLandingBytes, host.size() - done);
    card_->copy_out(landing_, device + done, bytes);
    std::memcpy(host.data() + done, landing_, bytes);
  }
}

void CudaBackend::zero(std::byte* device, size_t bytes) { card_->zero(device, bytes); }

Status CudaBackend::reserve(const Reserve& largest) {
  for (const Weight* w : largest.weights) reserve_linear(ours(*w), largest.max_rows);
  reserve_attention(largest.attention, largest.max_rows, bucket_of(largest.max_positions));
  reserve_experts(largest);
  reserve_choice(largest);
  rows_.need(size_t(largest.max_rows) * sizeof(int32_t), true);
  stage_.reserve(largest.max_rows, std::min(largest.max_rows, kReservedSequences),
                 (largest.max_positions + kPageTokens - 1) / kPageTokens + kReservedSequences);
  if (landing_ == nullptr) landing_ = card_->allocate_host(kLandingBytes);
  return {};
}

const StepTable& CudaBackend::table(const Step& step) {
  if (staged_.empty()) {
    stage_.put({&step, 1}, {});
    return stage_.table(0);
  }
  const auto index = size_t(&step - staged_.data());
  TD_CHECK(index < staged_.size(), "an operation of another step, of %d rows, inside run() of %zu",
           step.n_rows, staged_.size());
  return stage_.table(index);
}

const int32_t* CudaBackend::ids_on_card(std::span<const int32_t> ids) {
  if (chosen_ids_ != nullptr && ids.data() == chosen_ids_) return chosen_ids_;
  if (staged_ids_ != nullptr && ids.data() == staged_ids_) return stage_.table(0).ids;
  TD_CHECK(staged_.empty(), "%zu row numbers inside a step that did not name them", ids.size());
  auto* device = rows_.need(ids.size_bytes(), may_grow());
  card_->copy_in(device, std::as_bytes(ids).data(), ids.size_bytes());
  return reinterpret_cast<const int32_t*>(device);
}

void CudaBackend::do_embed_chosen(const Weight& table, View ids, MutView y) {
  chosen_ids_ = static_cast<const int32_t*>(ids.data);
  do_embed(table, {chosen_ids_, size_t(ids.rows)}, y);
  chosen_ids_ = nullptr;
}

int CudaBackend::max_keys(const Step& step) const {
  // In a recording the steps of a run share one size.
  const bool in_run = !staged_.empty() && step.path == Path::decode;
  int most = 0;
  for (const Step& s : in_run ? staged_ : std::span(&step, 1)) {
    for (const SeqStep& seq : s.seqs) most = std::max(most, seq.start + seq.n_rows);
  }
  return in_run ? bucket_of(most) : most;
}

CudaBackend::RunKey CudaBackend::key_of(const StepRun& run) const {
  const Step& first = run.steps[0];
  int most_rows = 0;
  bool trees = false;
  for (const SeqStep& seq : first.seqs) {
    most_rows = std::max(most_rows, seq.n_rows);
    trees |= !seq.parents.empty();
  }
  return {run.owner,
          run.state,
          int(run.steps.size()),
          first.n_rows,
          int(first.seqs.size()),
          most_rows,
          max_keys(first),
          int(trees) * 2 + int(run.ids.empty())};
}

void CudaBackend::run(const StepRun& run) {
  if (!staged_.empty()) {
    TD_CHECK(size_t(run.steps.data() - staged_.data()) + run.steps.size() <= staged_.size(),
             "a run of %zu other steps inside a run", run.steps.size());
    return run.body(run.context);
  }
  for (const Step& step : run.steps.subspan(1)) {
    TD_CHECK(alike(step, run.steps[0]), "a run of unlike steps, of %d rows and of %d", run.steps[0].n_rows,
             step.n_rows);
  }
  stage_.put(run.steps, run.ids);
  staged_ = run.steps;
  staged_ids_ = run.ids.empty() ? nullptr : run.ids.data();
  if (const std::pair now(stage_.epoch(), scratch_epoch_); recordings_epoch_ != now) {
    kinds_.clear();
    recordings_epoch_ = now;
  }
  if (run.steps[0].path == Path::prefill) {
    run.body(run.context);
  } else {
    // The first step of a kind runs as it is, which also makes whatever scratch it needs; the second is
    // recorded.
    const auto [at, first] = kinds_.try_emplace(key_of(run));
    std::unique_ptr<Recording>& recording = at->second.recording;
    at->second.last_use = ++n_runs_;
    if (kinds_.size() > kMaxKinds) {
      kinds_.erase(std::min_element(kinds_.begin(), kinds_.end(), [](const auto& a, const auto& b) {
        return a.second.last_use < b.second.last_use;
      }));
    }
    if (first) {
      run.body(run.context);
    } else {
      if (!recording) {
        card_->begin_recording();
        recording_ = true;
        run.body(run.context);
        recording_ = false;
        recording = card_->end_recording();
      }
      card_->replay(*recording);
    }
  }
  staged_ = {};
  staged_ids_ = nullptr;
}

}  // namespace cuda

Result<std::unique_ptr<Backend>> make_cuda_backend(DeltaForm delta) {
  TD_ASSIGN_OR_RETURN(std::unique_ptr<cuda::Card> card, cuda::Card::open());
  return std::unique_ptr<Backend>(std::make_unique<cuda::CudaBackend>(std::move(card), delta));
}

}  // namespace tandem
