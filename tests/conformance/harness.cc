#include "conformance/harness.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>
#include <string_view>

#ifdef TANDEM_CONFORMANCE_CUDA
#include "backend/cuda/cuda_backend.h"
#else
#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"
#endif

namespace tandem::conformance {
namespace {

constexpr int kGuard = 16;                    // elements before the first and after the last row
constexpr uint32_t kUntouched = 0xfff0beefu;  // a NaN no arithmetic makes

float untouched() { return std::bit_cast<float>(kUntouched); }

DeviceBuffer must_allocate(Backend& backend, size_t bytes) {
  auto buffer = backend.allocate(bytes, "conformance test");
  EXPECT_TRUE(buffer.ok()) << buffer.error().message;
  return std::move(buffer).value();
}

float stored(float x, DType dtype) {
  if (dtype == DType::bf16) return float_from_bf16(bf16_from_float(x));
  if (dtype == DType::f16) return float_from_f16(f16_from_float(x));
  return x;
}

// One odd byte in front: nothing may assume that a checkpoint's tensors are aligned.
void append_float(std::vector<std::byte>& out, float x, DType dtype) {
  const uint16_t half = dtype == DType::bf16 ? bf16_from_float(x) : f16_from_float(x);
  const size_t bytes = dtype == DType::f32 ? 4 : 2;
  const void* from = dtype == DType::f32 ? static_cast<const void*>(&x) : static_cast<const void*>(&half);
  out.resize(out.size() + bytes);
  std::memcpy(out.data() + out.size() - bytes, from, bytes);
}

double load_float(const std::vector<std::byte>& bytes, int64_t i, DType dtype) {
  if (dtype == DType::f32) {
    float x;
    std::memcpy(&x, bytes.data() + 1 + 4 * i, 4);
    return x;
  }
  uint16_t x;
  std::memcpy(&x, bytes.data() + 1 + 2 * i, 2);
  return dtype == DType::bf16 ? float_from_bf16(x) : float_from_f16(x);
}

}  // namespace

uint64_t Rng::next() {  // SplitMix64
  state_ += 0x9e3779b97f4a7c15u;
  uint64_t x = state_;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

int Rng::uniform(int lowest, int highest) {
  return lowest + int(next() % uint64_t(int64_t{highest} - lowest + 1));
}

float Rng::real(float lowest, float highest) {
  return lowest + (highest - lowest) * float(double(next() >> 11) / double(uint64_t{1} << 53));
}

float Rng::normal() {
  const double u = (double(next() >> 11) + 0.5) / double(uint64_t{1} << 53);
  const double v = double(next() >> 11) / double(uint64_t{1} << 53);
  return float(std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v));
}

Rows Rows::slice(int first, int n) const {
  Rows out(n, cols);
  std::copy_n(row(first), out.v.size(), out.v.begin());
  return out;
}

Rows Rows::gather(const std::vector<int>& which) const {
  Rows out(int(which.size()), cols);
  for (int r = 0; r < out.rows; ++r) std::copy_n(row(which[size_t(r)]), cols, out.row(r));
  return out;
}

void Rows::append(const Rows& below) {
  EXPECT_TRUE(rows == 0 || cols == below.cols);
  cols = below.cols;
  rows += below.rows;
  v.insert(v.end(), below.v.begin(), below.v.end());
}

Rows normal_rows(Rng& rng, int rows, int cols, float scale) {
  Rows out(rows, cols);
  for (float& x : out.v) x = rng.normal() * scale;
  return out;
}

testing::AssertionResult same_bits(const Rows& a, const Rows& b) {
  if (a.rows != b.rows || a.cols != b.cols) {
    return testing::AssertionFailure()
           << "[" << a.rows << ", " << a.cols << "] and [" << b.rows << ", " << b.cols << "]";
  }
  int different = 0, first = -1;
  for (size_t i = 0; i < a.v.size(); ++i) {
    if (std::bit_cast<uint32_t>(a.v[i]) == std::bit_cast<uint32_t>(b.v[i])) continue;
    if (different++ == 0) first = int(i);
  }
  if (different == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << different << " of " << a.v.size() << " values differ, the first at ["
                                     << first / a.cols << ", " << first % a.cols << "]: " << std::hexfloat
                                     << a.v[size_t(first)] << " and " << b.v[size_t(first)];
}

testing::AssertionResult same_bits(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  if (a == b) return testing::AssertionSuccess();
  if (a.size() != b.size()) return testing::AssertionFailure() << a.size() << " and " << b.size() << " bytes";
  const auto at = std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin();
  return testing::AssertionFailure() << "bytes differ from offset " << at << " of " << a.size();
}

OnDevice::OnDevice(Backend& backend, const Rows& host, int gap) : backend_(&backend) {
  const int64_t stride = host.cols + gap;
  std::vector<float> all(size_t(host.rows * stride + 2 * kGuard), untouched());
  for (int r = 0; r < host.rows; ++r) std::copy_n(host.row(r), host.cols, &all[size_t(kGuard + r * stride)]);
  buffer_ = must_allocate(backend, all.size() * sizeof(float));
  backend.copy_in(buffer_.data(), std::as_bytes(std::span(all)));
  view_ = {buffer_.data() + kGuard * sizeof(float), DType::f32, host.rows, host.cols, stride};
}

OnDevice::OnDevice(Backend& backend, int rows, int cols, int gap)
    : OnDevice(backend, Rows(rows, cols, std::nanf("")), gap) {}

Rows OnDevice::read() const {
  std::vector<float> all(buffer_.bytes() / sizeof(float));
  backend_->copy_out(std::as_writable_bytes(std::span(all)), buffer_.data());
  Rows out(view_.rows, view_.cols);
  for (int r = 0; r < view_.rows; ++r) {
    float* from = &all[size_t(kGuard + r * view_.stride)];
    std::copy_n(from, view_.cols, out.row(r));
    std::fill_n(from, view_.cols, untouched());
  }
  const bool intact =
      std::all_of(all.begin(), all.end(), [](float x) { return std::bit_cast<uint32_t>(x) == kUntouched; });
  EXPECT_TRUE(intact) << "an operation wrote outside its view [" << view_.rows << ", " << view_.cols
                      << "], stride " << view_.stride;
  return out;
}

IntsOnDevice::IntsOnDevice(Backend& backend, int rows, int cols)
    : backend_(&backend),
      buffer_(must_allocate(backend, size_t(rows) * size_t(cols) * sizeof(int32_t))),
      view_(buffer_.view(DType::i32, rows, cols)) {
  backend.zero(buffer_.data(), buffer_.bytes());
}

std::vector<int32_t> IntsOnDevice::read() const {
  std::vector<int32_t> out(size_t(view_.rows) * size_t(view_.cols));
  backend_->copy_out(std::as_writable_bytes(std::span(out)), buffer_.data());
  return out;
}

void IntsOnDevice::write(const std::vector<int32_t>& values) {
  backend_->copy_in(buffer_.data(), std::as_bytes(std::span(values)));
}

Memory::Memory(Backend& backend, size_t bytes) : backend_(&backend), buffer_(must_allocate(backend, bytes)) {
  backend.zero(buffer_.data(), bytes);
}

std::vector<std::byte> Memory::read(size_t offset, size_t bytes) const {
  std::vector<std::byte> out(bytes);
  backend_->copy_out(out, buffer_.data() + offset);
  return out;
}

Rows Memory::read_floats(size_t first, int rows, int cols) const {
  Rows out(rows, cols);
  backend_->copy_out(std::as_writable_bytes(std::span(out.v)), buffer_.data() + first * sizeof(float));
  return out;
}

void Memory::write_floats(size_t first, const Rows& values) {
  backend_->copy_in(buffer_.data() + first * sizeof(float), std::as_bytes(std::span(values.v)));
}

std::vector<int8_t> random_tree(Rng& rng, int n) {
  std::vector<int8_t> parents = {-1};
  const int steps_up = rng.pick({0, 1, 1, 3, 100});  // at most, from the row before
  for (int i = 1; i < n; ++i) {
    int parent = i - 1;
    for (int up = rng.uniform(0, steps_up); up > 0 && parent > 0; --up) parent = parents[size_t(parent)];
    parents.push_back(int8_t(parent));
  }
  return parents;
}

std::vector<int> path_to(const std::vector<int8_t>& parents, int row) {
  std::vector<int> path;
  for (; row >= 0; row = parents[size_t(row)]) path.insert(path.begin(), row);
  return path;
}

bool is_leaf(const std::vector<int8_t>& parents, int row) {
  return std::find(parents.begin(), parents.end(), int8_t(row)) == parents.end();
}

std::string text(const std::vector<int8_t>& parents) {
  std::string out = "tree";
  for (const int8_t parent : parents) out += " " + std::to_string(parent);
  return out;
}

std::string WeightFormat::text() const {
  const std::string type(dtype_name(dtype));
  return affine() ? std::to_string(bits) + " bit, groups of " + std::to_string(group) + ", scales " + type
                  : type;
}

RandomMatrix::RandomMatrix(Rng& rng, int n, int k, WeightFormat format) {
  host_ = {.name = "random", .n = n, .k = k, .bits = format.bits, .group = format.group};
  const float unit = 1 / std::sqrt(float(k));
  for (auto* bytes : {&data_, &scales_, &biases_}) bytes->push_back(std::byte{0xa5});
  if (!format.affine()) {
    host_.dtype = format.dtype;
    for (int64_t i = 0; i < int64_t{n} * k; ++i) append_float(data_, rng.normal() * unit, format.dtype);
  } else {
    host_.scale_dtype = format.dtype;
    for (int64_t i = 0; i < n * host_.row_bytes(); ++i) data_.push_back(std::byte(rng.next() & 0xff));
    const float top = float((1 << format.bits) - 1);
    for (int64_t i = 0; i < int64_t{n} * (k / format.group); ++i) {
      // Uniform codes have standard deviation about top / 3.5. Signs of both kinds, offsets off centre.
      const float scale = rng.real(0.5f, 1.5f) * 3.5f / top * unit * (rng.uniform(0, 1) ? 1.0f : -1.0f);
      append_float(scales_, scale, format.dtype);
      append_float(biases_, -stored(scale, format.dtype) * top * rng.real(0.4f, 0.6f), format.dtype);
    }
  }
  host_.data = data_.data() + 1;
  host_.scales = scales_.data() + 1;
  host_.biases = biases_.data() + 1;
}

double RandomMatrix::scale(int i, int j) const {
  return load_float(scales_, int64_t{i} * (host_.k / host_.group) + j / host_.group, host_.scale_dtype);
}

double RandomMatrix::bias(int i, int j) const {
  return load_float(biases_, int64_t{i} * (host_.k / host_.group) + j / host_.group, host_.scale_dtype);
}

int RandomMatrix::code(int i, int j) const {
  int code = 0;
  for (int b = 0; b < host_.bits; ++b) {
    const int64_t bit = i * host_.row_bytes() * 8 + int64_t{j} * host_.bits + b;
    code |= (int(data_[size_t(1 + bit / 8)]) >> (bit % 8) & 1) << b;
  }
  return code;
}

double RandomMatrix::value(int i, int j) const {
  if (!host_.affine()) return load_float(data_, int64_t{i} * host_.k + j, host_.dtype);
  return scale(i, j) * code(i, j) + bias(i, j);
}

double RandomMatrix::magnitude(int i, int j) const {
  if (!host_.affine()) return std::abs(value(i, j));
  return std::abs(scale(i, j)) * code(i, j) + std::abs(bias(i, j));
}

std::unique_ptr<Weight> pack(Backend& backend, const std::vector<const RandomMatrix*>& parts,
                             const PackOptions& options) {
  std::vector<RowRun> runs;
  for (const RandomMatrix* part : parts) runs.push_back({&part->host(), 0, part->host().n});
  auto weight = backend.pack({.name = "random",
                              .rows = runs,
                              .n_experts = options.n_experts,
                              .n_slices = options.n_slices,
                              .bias = options.bias});
  EXPECT_TRUE(weight.ok()) << weight.error().message;
  return std::move(weight).value();
}

namespace {
constexpr std::string_view kClosed = ", closed form";
}

bool closed_form(const std::string& name) { return name.ends_with(kClosed); }
std::string exact_form(const std::string& name) {
  return name.substr(0, name.size() - (closed_form(name) ? kClosed.size() : 0));
}

#ifdef TANDEM_CONFORMANCE_CUDA
std::unique_ptr<Backend> make(const std::string& name, int) {
  auto backend = make_cuda_backend(closed_form(name) ? DeltaForm::closed : DeltaForm::exact);
  EXPECT_TRUE(backend.ok()) << backend.error().message;
  return std::move(backend).value();
}
std::vector<std::string> fast_backends() { return {"cuda"}; }
std::vector<std::string> all_backends() { return {"cuda"}; }
#else
std::unique_ptr<Backend> make(const std::string& name, int threads) {
  const DeltaForm delta = closed_form(name) ? DeltaForm::closed : DeltaForm::exact;
  const std::string exact = exact_form(name);
  if (exact == "reference") return make_reference_backend(delta);
  auto backend = make_cpu_backend(threads, exact.substr(exact.find('/') + 1), delta);
  EXPECT_TRUE(backend.ok()) << backend.error().message;
  return std::move(backend).value();
}

std::vector<std::string> fast_backends() {
  std::vector<std::string> names;
  for (const char* isa : {"portable", "avx2", "avx512"}) {
    if (make_cpu_backend(1, isa).ok()) names.push_back(std::string("cpu/") + isa);
  }
  return names;
}

std::vector<std::string> all_backends() {
  std::vector<std::string> names = fast_backends();
  names.insert(names.begin(), "reference");
  return names;
}
#endif

std::vector<std::string> closed_form_backends() {
  std::vector<std::string> names = all_backends();
  for (std::string& name : names) name += kClosed;
  return names;
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::erase(name, ',');
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '/' || c == ' '; }, '_');
  return name;
}

}  // namespace tandem::conformance
