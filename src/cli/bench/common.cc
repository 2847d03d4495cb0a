#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "base/check.h"
#include "cli/bench/bench.h"
#include "cli/machine.h"
#include "cli/model_flags.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/version.h"

namespace tandem::bench {

void BenchFlags::add_model(Options& options) {
  options.add("-m,--model", &models, "DIR",
              "Checkpoint folder or synth:NAME; may be repeated [synth:qwen3.5-0.8b@8]");
  add_backend_choice(options, backend);
}

void BenchFlags::add_to(Options& options, int default_rounds, const std::string& rounds_name) {
  rounds = default_rounds;
  options.add("--threads", &threads, "1,2", "Thread counts [one per core]", {.min = 1, .max = 1024});
  options.add(rounds_name, &rounds, "N", fmt::format("Repetitions; medians are printed [{}]", rounds),
              {.min = 1});
  options.section("Output");
  options.flag("--json", json, "Print an array of rows instead of a table");
  options.add("--ledger", &ledger, "FILE", "Append the rows to a file of JSON lines");
}

Result<LoadedModel> load(const BenchFlags& flags, const std::string& command, const std::string& model,
                         int threads, const DecoderLimits& limits) {
  BackendOptions backend = flags.backend;
  backend.threads = threads;
  Progress progress("loading");
  return load_model({.model = model,
                     .backend = backend,
                     .limits = limits,
                     .progress = [&](uint64_t done, uint64_t total,
                                     const std::string& what) { progress.update(done, total, what); },
                     .warn = [&](const std::string& text) { warn(command, text); }});
}

Json row_of(const std::string& bench, const std::string& model, const std::string& backend, int threads) {
  return {
      {"bench", bench}, {"model", model}, {"backend", backend}, {"threads", threads}, {"commit", commit()}};
}

Json row_of(const std::string& bench, const std::string& model, const Backend& backend) {
  Json row = row_of(bench, model, backend.description(), backend.threads());
  if (const DeviceCard card = backend.device_card(); !card.name.empty()) {
    row["card"] = card.name;
    row["sm_mhz"] = card.sm_mhz;
    row["memory_mhz"] = card.memory_mhz;
  }
  return row;
}

namespace {

// Columns that are the same for a whole table stand above it.
constexpr const char* kHeadings[] = {"bench", "model", "backend", "commit", "card", "sm_mhz", "memory_mhz"};

std::string heading_of(const Json& row) {
  const auto text = [&](const char* key) { return row[key].get<std::string>(); };
  const std::string model = text("model") == "none" ? "" : " of " + text("model");
  const std::string clocks =
      row.contains("card")
          ? fmt::format(", {} MHz, memory {} MHz", row["sm_mhz"].dump(), row["memory_mhz"].dump())
          : "";
  return fmt::format("{}{} on {}{}", text("bench"), model, text("backend"), clocks);
}

std::string cell_text(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "-";
  if (!value.is_number_float()) return value.dump();
  const double x = value.get<double>();
  const double size = std::abs(x);
  return fmt::format("{:.{}f}", x, size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3);
}

std::string tables(const std::vector<Json>& rows, const std::vector<std::string>& columns) {
  std::string out;
  size_t first = 0;
  while (first < rows.size()) {
    size_t end = first;
    while (end < rows.size() && heading_of(rows[end]) == heading_of(rows[first])) ++end;
    Table table;
    std::vector<std::string> keys;
    for (const auto& [key, value] : rows[first].items()) {
      if (!columns.empty() && std::find(columns.begin(), columns.end(), key) == columns.end()) continue;
      if (std::find(std::begin(kHeadings), std::end(kHeadings), key) != std::end(kHeadings)) {
        continue;
      }
      keys.push_back(key);
    }
    table.add(keys);
    for (size_t i = first; i < end; ++i) {
      std::vector<std::string> cells;
      for (const std::string& key : keys) cells.push_back(cell_text(rows[i].value(key, Json(nullptr))));
      table.add(cells);
    }
    out += (first > 0 ? "\n" : "") + heading_of(rows[first]) + "\n" + table.text();
    first = end;
  }
  return out;
}

std::string now_utc() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

// Makes the ledger's folder where there is none.
Status append_to_ledger(const std::string& path, const std::vector<Json>& rows) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty() && !std::filesystem::create_directories(folder, error) && error) {
    return Error{fmt::format("--ledger {}: the folder {} could not be made: {}", path, folder.string(),
                             error.message())};
  }
  const auto failed = [&] {
    return Error{fmt::format("--ledger {}: could not be written: {}", path, std::strerror(errno))};
  };
  std::ofstream file(path, std::ios::app);
  if (!file) return failed();
  const std::string time = now_utc(), device = cpu_model();
  for (Json row : rows) {
    row["device"] = device;
    row["time"] = time;
    file << json_line(row);
  }
  file.close();
  if (!file) return failed();
  return {};
}

}  // namespace

int report(const BenchFlags& flags, const std::string& command, const Result<std::vector<Json>>& result) {
  if (!result.ok()) return fail(command, result.error().message);
  const std::vector<Json>& rows = *result;
  if (flags.ledger) {
    if (const Status status = append_to_ledger(*flags.ledger, rows); !status.ok()) {
      return fail(command, status.error().message);
    }
  }
  Output out;
  out.write(flags.json ? json_line(Json(rows)) : tables(rows, flags.columns));
  return out.finish(command, kDone);
}

Result<SequenceState> sequence_at(StatePool& pool, Backend& backend, int position) {
  TD_ASSIGN_OR_RETURN(SequenceState sequence, SequenceState::create(pool));
  if (position == 0) return sequence;
  TD_RETURN_IF_ERROR(sequence.begin_prefill(position));
  const StateShape& shape = pool.shape();
  for (int layer = 0; layer < shape.n_attention_layers; ++layer) {
    const KvLayer kv = pool.kv(layer);
    for (const int32_t page : sequence.pages()) {
      backend.zero(kv.pages + size_t(page) * kv.page_bytes, kv.page_bytes);
    }
  }
  const auto zero = [&](float* base, size_t floats) {
    backend.zero(reinterpret_cast<std::byte*>(base + size_t(sequence.slot()) * floats),
                 floats * sizeof(float));
  };
  for (int layer = 0; layer < shape.n_delta_layers; ++layer) {
    const DeltaState state = pool.delta(layer);
    zero(state.s, size_t(shape.delta.value_dim()) * size_t(shape.delta.d_k));
    zero(state.conv, size_t(kConvTaps - 1) * size_t(shape.delta.conv_dim()));
  }
  sequence.end_prefill();
  return sequence;
}

Status check_context(const LoadedModel& model, int positions) {
  if (positions <= model.config.context) return {};
  return Error{fmt::format("{} positions are wanted, the context of {} is {}", positions, model.name,
                           model.config.context)};
}

double percentile(std::vector<double> values, double p) {
  TD_CHECK(!values.empty(), "percentile %g of nothing", p);
  std::sort(values.begin(), values.end());
  const double at = p * double(values.size() - 1);
  const auto low = size_t(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - double(low)) * (values[high] - values[low]);
}

double median(std::vector<double> values) { return percentile(std::move(values), 0.5); }

double time_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace tandem::bench
