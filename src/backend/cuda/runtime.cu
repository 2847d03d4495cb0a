#include "backend/cuda/runtime.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unordered_set>

#ifdef TANDEM_CUDA_EMULATED

namespace tandem::cuda {
namespace {

// The launches with their arguments, as a card keeps them.
struct EmulatedRecording final : Recording {
  std::vector<std::function<void()>> kernels;
};

class EmulatedCard final : public Card {
 public:
  EmulatedCard() { info_ = {.name = "emulated", .sm_version = 0, .n_sms = 3, .shared_bytes = 227 * 1024}; }
  size_t available_bytes() const override { return size_t{8} << 30; }
  std::byte* allocate(size_t bytes) override {
    auto* p = static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
    if (p != nullptr) std::memset(p, 0xcd, bytes);  // a card's memory is not zero either
    return p;
  }
  void release(std::byte* device) override { std::free(device); }
  std::byte* allocate_host(size_t bytes) override { return allocate(bytes); }
  void release_host(std::byte* host) override { std::free(host); }
  void copy_in(std::byte* device, const std::byte* host, size_t bytes) override {
    std::memcpy(device, host, bytes);
  }
  void copy_out(std::byte* host, const std::byte* device, size_t bytes) override {
    std::memcpy(host, device, bytes);
  }
  void zero(std::byte* device, size_t bytes) override { std::memset(device, 0, bytes); }
  void wait() override {}
  void send(std::byte* device, const std::byte* host, size_t bytes) override {
    std::memcpy(device, host, bytes);
  }
  std::unique_ptr<Mark> make_mark() override { return std::make_unique<Mark>(); }
  void set(Mark&) override {}
  void wait_for(const Mark&) override {}
  void begin_recording() override {
    recording_ = std::make_unique<EmulatedRecording>();
    recorded_ = &recording_->kernels;
  }
  std::unique_ptr<Recording> end_recording() override {
    recorded_ = nullptr;
    return std::move(recording_);
  }
  void replay(const Recording& recording) override {
    for (const auto& kernel : static_cast<const EmulatedRecording&>(recording).kernels) kernel();
  }

 private:
  std::unique_ptr<EmulatedRecording> recording_;  // under way
};

}  // namespace

Result<std::unique_ptr<Card>> Card::open() { return std::unique_ptr<Card>(std::make_unique<EmulatedCard>()); }

}  // namespace tandem::cuda

#else

namespace tandem::cuda {
namespace {

// A fault of the card leaves nothing to go on with: every later call would fail as well.
void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr,
               "tandem: the GPU failed at %s: %s (%s); restart tandem, and see the kernel log if it recurs\n",
               what, cudaGetErrorString(error), cudaGetErrorName(error));
  std::_Exit(70);
}

int clock_mhz(cudaDeviceAttr clock) {
  int khz = 0;
  check(cudaDeviceGetAttribute(&khz, clock, 0), "asking for a clock");
  return khz / 1000;
}

struct ProbeArgs {
  int* out;
};
__global__ void probe_kernel(const __grid_constant__ ProbeArgs a) { *a.out = 0; }

class CudaRecording final : public Recording {
 public:
  explicit CudaRecording(cudaGraphExec_t exec) : exec_(exec) {}
  ~CudaRecording() override { cudaGraphExecDestroy(exec_); }
  cudaGraphExec_t exec() const { return exec_; }

 private:
  cudaGraphExec_t exec_;
};

class CudaMark final : public Mark {
 public:
  CudaMark() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "making an event"); }
  ~CudaMark() override { cudaEventDestroy(event_); }
  cudaEvent_t event() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaCard final : public Card {
 public:
  explicit CudaCard(const cudaDeviceProp& p) {
    info_ = {.name = p.name,
             .sm_version = p.major * 10 + p.minor,
             .n_sms = p.multiProcessorCount,
             .shared_bytes = int(p.sharedMemPerBlockOptin),
             .sm_mhz = clock_mhz(cudaDevAttrClockRate),
             .memory_mhz = clock_mhz(cudaDevAttrMemoryClockRate)};
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
    check(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking), "creating a stream");
  }
  ~CudaCard() override {
    cudaStreamDestroy(stream_);
    cudaStreamDestroy(copies_);
  }

  size_t available_bytes() const override {
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "asking for free memory");
    return free;
  }
  std::byte* allocate(size_t bytes) override {
    void* p = nullptr;
    const cudaError_t error = cudaMalloc(&p, bytes);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    check(error, "allocating memory");
    return static_cast<std::byte*>(p);
  }
  void release(std::byte* device) override {
    wait();
    check(cudaFree(device), "releasing memory");
  }
  std::byte* allocate_host(size_t bytes) override {
    void* p = nullptr;
    check(cudaMallocHost(&p, bytes), "allocating page-locked memory");
    return static_cast<std::byte*>(p);
  }
  void release_host(std::byte* host) override {
    wait();
    check(cudaFreeHost(host), "releasing page-locked memory");
  }
  void copy_in(std::byte* device, const std::byte* host, size_t bytes) override {
    check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_), "a copy to the card");
  }
  void copy_out(std::byte* host, const std::byte* device, size_t bytes) override {
    check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_), "a copy from the card");
    wait();
  }
  void zero(std::byte* device, size_t bytes) override {
    check(cudaMemsetAsync(device, 0, bytes, stream_), "clearing memory");
  }
  void wait() override { check(cudaStreamSynchronize(stream_), "running a step"); }
  void send(std::byte* device, const std::byte* host, size_t bytes) override {
    check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, copies_), "a copy to the card");
    check(cudaEventRecord(arrived_.event(), copies_), "a copy to the card");
    check(cudaStreamWaitEvent(stream_, arrived_.event(), 0), "a copy to the card");
  }
  std::unique_ptr<Mark> make_mark() override { return std::make_unique<CudaMark>(); }
  void set(Mark& mark) override {
    check(cudaEventRecord(static_cast<CudaMark&>(mark).event(), stream_), "setting a mark");
  }
  void wait_for(const Mark& mark) override {
    check(cudaEventSynchronize(static_cast<const CudaMark&>(mark).event()), "running a step");
  }

  void begin_recording() override {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "recording a step");
  }
  std::unique_ptr<Recording> end_recording() override {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    check(cudaStreamEndCapture(stream_, &graph), "recording a step");
    check(cudaGraphInstantiate(&exec, graph, 0), "preparing a recorded step");
    check(cudaGraphDestroy(graph), "preparing a recorded step");
    return std::make_unique<CudaRecording>(exec);
  }
  void replay(const Recording& recording) override {
    check(cudaGraphLaunch(static_cast<const CudaRecording&>(recording).exec(), stream_), "replaying a step");
  }

 protected:
  void launch_raw(const void* kernel, dim3 grid, int threads, size_t shared_bytes, void** args) override {
    if (shared_bytes > 48 * 1024 && enlarged_.insert(kernel).second) {
      cudaFuncAttributes own{};
      check(cudaFuncGetAttributes(&own, kernel), "asking for shared memory");
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 info_.shared_bytes - int(own.sharedSizeBytes)),
            "asking for shared memory");
    }
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(unsigned(threads));
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream_;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = overlap && info_.sm_version >= 90 ? 1 : 0;
    check(cudaLaunchKernelExC(&config, kernel, args), "launching a kernel");
  }

 private:
  cudaStream_t stream_ = nullptr, copies_ = nullptr;
  CudaMark arrived_;                          // the last copy sent
  std::unordered_set<const void*> enlarged_;  // kernels that may take more than 48 KiB of shared memory
};

}  // namespace

Result<std::unique_ptr<Card>> Card::open() {
  int n = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&n); error != cudaSuccess || n == 0) {
    cudaGetLastError();
    const char* why = error == cudaSuccess                   ? "the driver lists none"
                      : error == cudaErrorInsufficientDriver ? "there is no driver, or one too old"
                                                             : cudaGetErrorString(error);
    return Error{std::string("no NVIDIA GPU can be used here: ") + why + "; use --backend cpu, or auto"};
  }
  cudaDeviceProp p;
  check(cudaGetDeviceProperties(&p, 0), "asking what the card is");
  if (p.major < 8) {
    return Error{std::string(p.name) + " has compute capability " + std::to_string(p.major) + "." +
                 std::to_string(p.minor) + "; the cuda backend needs 8.0 or later"};
  }
  check(cudaSetDevice(0), "choosing the card");
  // Whether this build has kernels for the card at all, and such that wait for their inputs.
  cudaFuncAttributes code{};
  if (cudaFuncGetAttributes(&code, probe_kernel) != cudaSuccess) {
    cudaGetLastError();
    return Error{std::string("this build has no kernels for an ") + p.name + " (compute capability " +
                 std::to_string(p.major) + "." + std::to_string(p.minor) +
                 "): build with -DTANDEM_CUDA_ARCHITECTURES=" + std::to_string(p.major * 10 + p.minor) +
                 ", or use --backend cpu"};
  }
  auto card = std::make_unique<CudaCard>(p);
  card->overlap = code.binaryVersion >= 90 && code.ptxVersion >= 90;
  return std::unique_ptr<Card>(std::move(card));
}

}  // namespace tandem::cuda

#endif
