#include "cli/bench/gemm.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <dnnl.hpp>
#include <unordered_map>
#include <vector>

namespace tandem::bench {
namespace {

using dnnl::memory;

// The library was built with OpenMP, which this project does not use: its thread count is set through the
// runtime that came with it.
void set_library_threads(int n) {
  using SetThreads = void (*)(int);
  if (const auto set = reinterpret_cast<SetThreads>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"))) set(n);
}

// Finite values of about unit size, the same every time.
float pattern(size_t i) { return float(int(i * 2654435761u >> 20 & 255) - 127) / 128.0f; }

class DnnlGemm final : public Gemm {
 public:
  DnnlGemm(GemmType type, int m, int n, int k) : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    const bool bf16 = type == GemmType::bf16;
    const auto x_type = bf16 ? memory::data_type::bf16 : memory::data_type::u8;
    const auto w_type = bf16 ? memory::data_type::bf16 : memory::data_type::s8;
    const memory::dims x_dims{m, k}, w_dims{k, n}, y_dims{m, n};
    const memory::desc x_desc(x_dims, x_type, memory::format_tag::ab);
    const memory::desc w_any(w_dims, w_type, memory::format_tag::any);
    const memory::desc y_desc(y_dims, bf16 ? memory::data_type::f32 : memory::data_type::s32,
                              memory::format_tag::ab);
    const dnnl::matmul::primitive_desc desc(dnnl::matmul::desc(x_desc, w_any, y_desc), engine_);
    memory x(x_desc, engine_), w(desc.weights_desc(), engine_), y(y_desc, engine_);
    fill(x, x_dims, memory::format_tag::ab, bf16);
    fill(w, w_dims, memory::format_tag::ba, bf16);
    matmul_ = dnnl::matmul(desc);
    arguments_ = {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y}};
  }

  void run(int threads) override {
    set_library_threads(threads);
    matmul_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  // Through the library's own conversion, which also packs. `plain` is how the values lie before it.
  void fill(memory& to, const memory::dims& dims, memory::format_tag plain, bool bf16) {
    const size_t count = size_t(dims[0]) * size_t(dims[1]);
    const bool is_unsigned = to.get_desc().data.data_type == dnnl_u8;
    std::vector<float> floats(bf16 ? count : 0);
    std::vector<int8_t> bytes(bf16 ? 0 : count);
    for (size_t i = 0; i < floats.size(); ++i) floats[i] = pattern(i);
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = int8_t(is_unsigned ? int(i * 2654435761u >> 24 & 127) : int(127 * pattern(i)));
    }
    const auto type = bf16          ? memory::data_type::f32
                      : is_unsigned ? memory::data_type::u8
                                    : memory::data_type::s8;
    memory from(memory::desc(dims, type, plain), engine_,
                bf16 ? static_cast<void*>(floats.data()) : static_cast<void*>(bytes.data()));
    dnnl::reorder(from, to).execute(stream_, from, to);
    stream_.wait();
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul matmul_;
  std::unordered_map<int, memory> arguments_;
};

}  // namespace

Result<std::unique_ptr<Gemm>> Gemm::create(GemmType type, int m, int n, int k) {
  try {
    return std::unique_ptr<Gemm>(new DnnlGemm(type, m, n, k));
  } catch (const dnnl::error& e) {
    return Error{fmt::format("the rival matrix product [{}, {}] x [{}, {}]: {}", m, k, k, n, e.what())};
  }
}

}  // namespace tandem::bench
