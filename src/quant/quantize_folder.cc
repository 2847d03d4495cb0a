#include "quant/quantize_folder.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include "base/file_fault.h"
#include "base/mapped_file.h"
#include "base/thread_team.h"
#include "format/checkpoint.h"
#include "format/config_writer.h"
#include "format/printable.h"
#include "format/safetensors_writer.h"
#include "quant/affine.h"
#include "quant/mlx_plan.h"
#include "quant/values.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kChunkValues = int64_t{1} << 20;  // encoded at a time
constexpr std::array kFilesToCopy{"tokenizer.json",
                                  "tokenizer_config.json",
                                  "tokenizer.model",
                                  "vocab.json",
                                  "merges.txt",
                                  "added_tokens.json",
                                  "special_tokens_map.json",
                                  "generation_config.json",
                                  "chat_template.jinja",
                                  "chat_template.json",
                                  "LICENSE",
                                  "NOTICE"};

std::string with_suffix(const PlannedTensor& t, std::string_view suffix) {
  constexpr std::string_view kWeight = ".weight";
  return t.name.substr(0, t.name.size() - kWeight.size()) + std::string(suffix);
}

// What one planned tensor becomes in the file, in order: itself, or codes, scales and biases.
std::vector<TensorSpec> specs_of(const PlannedTensor& t) {
  if (t.how != PlannedTensor::How::quantise) return {{.name = t.name, .dtype = t.dtype, .shape = t.shape}};
  std::vector<int64_t> codes = t.shape, scales = t.shape;
  codes.back() = t.columns() * t.params.bits / 32;
  scales.back() = t.columns() / t.params.group_size;
  return {{.name = t.name, .dtype = DType::u32, .shape = codes},
          {.name = with_suffix(t, ".scales"), .dtype = t.dtype, .shape = scales},
          {.name = with_suffix(t, ".biases"), .dtype = t.dtype, .shape = scales}};
}

uint64_t bytes_of(const PlannedTensor& t) {
  uint64_t n = 0;
  for (const TensorSpec& spec : specs_of(t)) n += spec.bytes();
  return n;
}

// Consecutive tensors of a plan that share a file.
struct Shard {
  size_t first = 0, last = 0;  // [first, last)
  std::string file = {};
};

std::vector<Shard> cut_shards(const MlxPlan& plan, uint64_t max_bytes) {
  std::vector<Shard> shards;
  uint64_t bytes = 0;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const uint64_t more = bytes_of(plan.tensors[i]);
    if (shards.empty() || bytes + more > max_bytes) {
      shards.push_back({.first = i});
      bytes = 0;
    }
    bytes += more;
    shards.back().last = i + 1;
  }
  for (size_t s = 0; s < shards.size(); ++s) {
    shards[s].file = shards.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
  }
  return shards;
}

// A folder that vanishes with this object unless it was moved to its final name.
class TemporaryFolder {
 public:
  static Result<TemporaryFolder> create(const std::string& final_path) {
    TemporaryFolder folder;
    folder.path_ = fmt::format("{}.{}.part", final_path, ::getpid());
    std::error_code code;
    fs::create_directories(folder.path_, code);
    if (code) return Error{fmt::format("{}: cannot create the folder: {}", final_path, code.message())};
    remove_on_file_fault(folder.path_);
    return folder;
  }
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;  // nothing better to do with it in a destructor
    if (path_.empty()) return;
    fs::remove_all(path_, ignored);
    remove_on_file_fault("");
  }

  std::string operator/(std::string_view name) const { return (fs::path(path_) / name).string(); }

  Status move_to(const std::string& final_path) {
    std::error_code code;
    fs::rename(path_, final_path, code);
    if (code)
      return Error{fmt::format("{}: cannot rename the finished folder: {}", final_path, code.message())};
    path_.clear();
    remove_on_file_fault("");
    return {};
  }

 private:
  TemporaryFolder() = default;
  std::string path_;
};

Status check_output(const std::string& output) {
  const std::string name = fs::path(output).filename().string();
  if (name.empty() || name == "." || name == "..") {
    return Error{output +
                 ": the output becomes a new folder: give it a name of its own, as in DIR/model-4bit"};
  }
  std::error_code code;
  const fs::file_status status = fs::symlink_status(output, code);
  if (status.type() == fs::file_type::not_found) return {};
  if (fs::is_symlink(status)) {
    return Error{output +
                 ": the output is a symbolic link; name the folder that it stands for, or remove it"};
  }
  if (code) return Error{fmt::format("{}: cannot look at the output folder: {}", output, code.message())};
  if (!fs::is_directory(status))
    return Error{output + ": the output exists and is not a folder; choose another name"};
  struct stat own {
  }, parent{};
  if (::stat(output.c_str(), &own) == 0 && ::stat((output + "/..").c_str(), &parent) == 0 &&
      own.st_dev != parent.st_dev) {
    return Error{output + ": a file system is mounted on the output folder; name a folder inside it"};
  }
  if (!fs::is_empty(output, code) && !code) {
    return Error{output + ": the output folder is not empty; choose another name or remove it"};
  }
  if (code) return Error{fmt::format("{}: cannot look at the output folder: {}", output, code.message())};
  return {};
}

Status check_space(const TemporaryFolder& folder, const std::string& output, uint64_t needed) {
  std::error_code code;
  const fs::space_info space = fs::space(folder / ".", code);
  if (!code && space.available < needed) {
    return Error{
        fmt::format("{}: the result needs {} bytes of disk, {} are free", output, needed, space.available)};
  }
  return {};
}

// Encodes or copies one tensor after another into a file.
class TensorStream {
 public:
  TensorStream(const Checkpoint& checkpoint, const QuantizeOptions& options, uint64_t bytes_total)
      : checkpoint_(checkpoint), options_(options), bytes_total_(bytes_total), team_(options.n_threads) {}

  const Status& threads_started() const { return team_.started(); }

  Status write(const PlannedTensor& t, SafetensorsWriter& writer) {
    tensor_ = &t;
    writer_ = &writer;
    scales_.clear();
    biases_.clear();
    for (const TensorRows& part : t.parts) {
      if (part.n_rows > 0) TD_RETURN_IF_ERROR(write_rows(part));
      checkpoint_.drop_pages(*part.tensor);
    }
    if (t.how != PlannedTensor::How::quantise) return {};
    TD_RETURN_IF_ERROR(emit(scales_));
    return emit(biases_);
  }

  // Of all matrices encoded so far.
  double relative_rms_error() const {
    return weight_squares_ > 0 ? std::sqrt(error_squares_ / weight_squares_) : 0;
  }

 private:
  Status emit(std::span<const std::byte> bytes) {
    TD_RETURN_IF_ERROR(writer_->write(bytes));
    bytes_done_ += bytes.size();
    if (options_.stop && options_.stop()) return Error{"interrupted; nothing was kept"};
    if (options_.on_progress) {
      options_.on_progress({.tensor = tensor_->name, .bytes_done = bytes_done_, .bytes_total = bytes_total_});
    }
    return {};
  }

  Status write_rows(const TensorRows& part) {
    const int64_t columns = part.columns();
    const int64_t row_bytes = columns * int64_t(dtype_bytes(tensor_->dtype));
    const int64_t step = std::max<int64_t>(1, kChunkValues / std::max<int64_t>(1, columns));
    for (int64_t done = 0; done < part.n_rows; done += step) {
      const int64_t n_rows = std::min(step, part.n_rows - done), first_row = part.first_row + done;
      const std::span<const std::byte> rows =
          part.tensor->bytes.subspan(size_t(first_row * row_bytes), size_t(n_rows * row_bytes));
      if (is_dense_float(tensor_->dtype)) {
        const NonFinite bad = find_non_finite(tensor_->dtype, rows.data(), n_rows * columns);
        if (bad.count > 0) {
          return Error{fmt::format("{}: value {} is NaN or infinite; the checkpoint is damaged",
                                   checkpoint_.where(*part.tensor), first_row * columns + bad.first)};
        }
      }
      switch (tensor_->how) {
        case PlannedTensor::How::copy:
          TD_RETURN_IF_ERROR(emit(rows));
          break;
        case PlannedTensor::How::add_one:
          TD_RETURN_IF_ERROR(emit_plus_one(rows, n_rows * columns));
          break;
        case PlannedTensor::How::quantise:
          TD_RETURN_IF_ERROR(emit_codes(*part.tensor, rows, n_rows));
          break;
      }
    }
    return {};
  }

  // 1 + w, rounded to w's own type.
  Status emit_plus_one(std::span<const std::byte> rows, int64_t n) {
    std::vector<float> values(static_cast<size_t>(n));
    convert_to_f32(tensor_->dtype, rows.data(), values);
    for (float& x : values) x += 1.0f;
    std::vector<std::byte> shifted(rows.size());
    convert_from_f32(values, tensor_->dtype, shifted.data());
    return emit(shifted);
  }

  // Codes go to the file at once, scales and biases to the buffers that follow them.
  Status emit_codes(const HostTensor& source, std::span<const std::byte> rows, int64_t n_rows) {
    const PlannedTensor& t = *tensor_;
    AffineMatrix m{.n = n_rows, .k = t.columns(), .bits = t.params.bits, .group = t.params.group_size};
    m.scale_dtype = t.dtype;
    codes_.resize(size_t(n_rows * m.row_code_bytes()));
    const size_t old_bytes = scales_.size(), new_bytes = old_bytes + size_t(n_rows * m.row_scale_bytes());
    scales_.resize(new_bytes);
    biases_.resize(new_bytes);
    m.codes = codes_.data();
    m.scales = scales_.data() + old_bytes;
    m.biases = biases_.data() + old_bytes;
    const size_t row_bytes = rows.size() / size_t(n_rows);
    squares_.assign(size_t(n_rows), {});
    team_.parallel_for(n_rows, 1, [&](int64_t first, int64_t last, int) {
      std::vector<float> w(size_t(m.k)), decoded(size_t(m.k));
      for (int64_t row = first; row < last; ++row) {
        convert_to_f32(t.dtype, rows.data() + size_t(row) * row_bytes, w);
        const auto part = [row](auto& buffer, size_t begin, int64_t bytes) {
          return std::span(buffer).subspan(begin + size_t(row * bytes), size_t(bytes));
        };
        RowSquares& squares = squares_[size_t(row)];
        squares.usable = quantize_row(w, m.bits, m.group,
                                      {.codes = part(codes_, 0, m.row_code_bytes()),
                                       .scales = part(scales_, old_bytes, m.row_scale_bytes()),
                                       .biases = part(biases_, old_bytes, m.row_scale_bytes()),
                                       .scale_dtype = t.dtype});
        dequantize_row(m, row, decoded);
        for (size_t j = 0; j < w.size(); ++j) {
          const double error = double(w[j]) - double(decoded[j]);
          squares.error += error * error;
          squares.weight += double(w[j]) * double(w[j]);
        }
      }
    });
    for (const RowSquares& squares : squares_) {
      if (!squares.usable) {
        return Error{checkpoint_.where(source) +
                     ": holds values too large to be quantised; the checkpoint is damaged"};
      }
      error_squares_ += squares.error;
      weight_squares_ += squares.weight;
    }
    return emit(codes_);
  }

  struct RowSquares {
    double error = 0, weight = 0;
    bool usable = true;
  };

  const Checkpoint& checkpoint_;
  const QuantizeOptions& options_;
  const uint64_t bytes_total_;
  ThreadTeam team_;
  const PlannedTensor* tensor_ = nullptr;  // being written
  SafetensorsWriter* writer_ = nullptr;
  std::vector<std::byte> codes_, scales_, biases_;
  std::vector<RowSquares> squares_;  // per row of a chunk, so that their sum has one order
  uint64_t bytes_done_ = 0;
  double error_squares_ = 0, weight_squares_ = 0;
};

Status write_index(const TemporaryFolder& folder, const MlxPlan& plan, std::span<const Shard> shards) {
  uint64_t total_bytes = 0, total_parameters = 0;
  std::string map;
  for (const Shard& shard : shards) {
    for (size_t i = shard.first; i < shard.last; ++i) {
      const PlannedTensor& t = plan.tensors[i];
      total_bytes += bytes_of(t);
      for (const TensorRows& part : t.parts) total_parameters += uint64_t(part.n_rows * part.columns());
      for (const TensorSpec& spec : specs_of(t)) {
        map += fmt::format("{}\n    {}: \"{}\"", map.empty() ? "" : ",", json_string(spec.name), shard.file);
      }
    }
  }
  const std::string text = fmt::format(
      "{{\n  \"metadata\": {{\n    \"total_size\": {},\n    \"total_parameters\": {}\n  }},\n  "
      "\"weight_map\": "
      "{{{}\n  }}\n}}\n",
      total_bytes, total_parameters, map);
  return write_file_atomically(folder / "model.safetensors.index.json", std::as_bytes(std::span(text)));
}

// config.json with its new block, and the small files that a checkpoint needs besides.
Status write_other_files(const QuantizeOptions& options, const TemporaryFolder& folder, const MlxPlan& plan,
                         QuantizeReport& report) {
  const fs::path input(options.input);
  TD_ASSIGN_OR_RETURN(const MappedFile config, MappedFile::open((input / "config.json").string()));
  TD_ASSIGN_OR_RETURN(const std::string text,
                      config_with_quantization(config.bytes(), config.path(), plan.quantization));
  TD_RETURN_IF_ERROR(write_file_atomically(folder / "config.json", std::as_bytes(std::span(text))));
  for (const char* name : kFilesToCopy) {
    const std::string path = (input / name).string();
    if (is_absent(path)) continue;
    TD_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
    TD_RETURN_IF_ERROR(write_file_atomically(folder / name, file.bytes()));
    report.copied.emplace_back(name);
  }
  return {};
}

}  // namespace

Result<QuantizeReport> quantize_folder(const QuantizeOptions& options) {
  std::string output = options.output;
  while (output.size() > 1 && output.back() == '/') output.pop_back();
  if (output.empty()) return Error{"quantize: the output folder has no name"};
  if (!is_affine_bits(options.params.bits) || !is_affine_group(options.params.group_size)) {
    return Error{
        fmt::format("quantize: {} bits in groups of {}; expected 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 "
                    "or 128",
                    options.params.bits, options.params.group_size)};
  }
  TD_RETURN_IF_ERROR(check_output(output));
  TD_ASSIGN_OR_RETURN(const ModelConfig config, load_model_config(options.input));
  TD_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(options.input));
  TD_ASSIGN_OR_RETURN(const MlxPlan plan, plan_mlx_conversion(checkpoint, config, options.params));

  QuantizeReport report;
  report.plain = plan.plain;
  report.n_vision = plan.n_vision;
  report.n_tensors = checkpoint.tensors().size() - plan.n_vision;
  report.input_bytes = checkpoint.total_bytes();
  for (const PlannedTensor& t : plan.tensors) {
    report.output_bytes += bytes_of(t);
    report.n_quantised += t.how == PlannedTensor::How::quantise ? 1 : 0;
  }
  const std::vector<Shard> shards = cut_shards(plan, options.max_shard_bytes);
  report.n_shards = shards.size();

  TD_ASSIGN_OR_RETURN(TemporaryFolder folder, TemporaryFolder::create(output));
  TD_RETURN_IF_ERROR(check_space(folder, output, report.output_bytes));
  TensorStream stream(checkpoint, options, report.output_bytes);
  TD_RETURN_IF_ERROR(stream.threads_started());
  for (const Shard& shard : shards) {
    std::vector<TensorSpec> specs;
    for (size_t i = shard.first; i < shard.last; ++i) {
      for (TensorSpec& spec : specs_of(plan.tensors[i])) specs.push_back(std::move(spec));
    }
    TD_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                        SafetensorsWriter::create(folder / shard.file, specs, {{"format", "mlx"}}));
    for (size_t i = shard.first; i < shard.last; ++i)
      TD_RETURN_IF_ERROR(stream.write(plan.tensors[i], writer));
    TD_RETURN_IF_ERROR(writer.finish());
  }
  report.relative_rms_error = stream.relative_rms_error();
  TD_RETURN_IF_ERROR(write_index(folder, plan, shards));
  TD_RETURN_IF_ERROR(write_other_files(options, folder, plan, report));
  TD_RETURN_IF_ERROR(folder.move_to(output));
  return report;
}

}  // namespace tandem
