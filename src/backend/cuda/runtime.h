// The card as the backend uses it: memory, one stream, kernel launches, recorded steps. runtime.cu says it to
// CUDA; with TANDEM_CUDA_EMULATED to the host (emulated/). Host code of this folder calls nothing else of
// CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/gpu.cuh"
#include "base/result.h"

namespace tandem::cuda {

struct CardInfo {
  std::string name;    // "NVIDIA H200"
  int sm_version = 0;  // 90 for compute capability 9.0
  int n_sms = 1;
  int shared_bytes = 0;            // most dynamic shared memory of a block
  int sm_mhz = 0, memory_mhz = 0;  // highest clocks
};

// A recorded run of kernels that the card repeats by itself.
class Recording {
 public:
  virtual ~Recording() = default;
};

// A place in the order of what a card does.
class Mark {
 public:
  virtual ~Mark() = default;
};

class Card {
 public:
  // The first card. Errors: there is none, or its driver is too old.
  static Result<std::unique_ptr<Card>> open();
  virtual ~Card() = default;

  const CardInfo& info() const { return info_; }
  uint64_t launches() const { return launches_; }  // or recorded
  virtual size_t available_bytes() const = 0;
  virtual std::byte* allocate(size_t bytes) = 0;  // null when memory has run out
  virtual void release(std::byte* device) = 0;
  virtual std::byte* allocate_host(size_t bytes) = 0;  // page-locked
  virtual void release_host(std::byte* host) = 0;

  // In stream order. copy_in from page-locked memory returns at once; the source must stay until wait().
  virtual void copy_in(std::byte* device, const std::byte* host, size_t bytes) = 0;
  virtual void copy_out(std::byte* host, const std::byte* device, size_t bytes) = 0;  // has arrived on return
  virtual void zero(std::byte* device, size_t bytes) = 0;
  virtual void wait() = 0;  // until all that was enqueued is done

  // From page-locked memory, beside what was enqueued; what is enqueued from now on comes after it.
  virtual void send(std::byte* device, const std::byte* host, size_t bytes) = 0;
  virtual std::unique_ptr<Mark> make_mark() = 0;
  virtual void set(Mark& mark) = 0;  // behind all that was enqueued
  virtual void wait_for(
      const Mark& mark) = 0;  // until the card has come past where it was set last; at once if never

  // Between the two, launches are recorded and not run.
  virtual void begin_recording() = 0;
  virtual std::unique_ptr<Recording> end_recording() = 0;
  virtual void replay(const Recording& recording) = 0;

  // Whether a kernel may start before the one enqueued ahead of it has ended (wait_for_inputs).
  bool overlap = true;

  // Enqueues kernel(args). `shared_bytes` of dynamic shared memory.
  template <class Args>
  void launch(void (*kernel)(Args), dim3 grid, int threads, size_t shared_bytes, const Args& args) {
    ++launches_;
#ifdef TANDEM_CUDA_EMULATED
    const char* name = __PRETTY_FUNCTION__;
    const auto go = [=] {
      struct Call {
        void (*kernel)(Args);
        const Args* args;
      } call{kernel, &args};
      emulated::run(
          name, grid, {unsigned(threads), 1, 1}, shared_bytes,
          [](const void* c) {
            const Call& call = *static_cast<const Call*>(c);
            call.kernel(*call.args);
          },
          &call);
    };
    if (recorded_ == nullptr) return go();
    recorded_->push_back(go);
#else
    void* list[] = {const_cast<Args*>(&args)};
    launch_raw(reinterpret_cast<const void*>(kernel), grid, threads, shared_bytes, list);
#endif
  }

 protected:
#ifdef TANDEM_CUDA_EMULATED
  std::vector<std::function<void()>>* recorded_ = nullptr;  // of the recording under way
#else
  virtual void launch_raw(const void* kernel, dim3 grid, int threads, size_t shared_bytes, void** args) = 0;
#endif
  CardInfo info_;
  uint64_t launches_ = 0;
};

}  // namespace tandem::cuda
