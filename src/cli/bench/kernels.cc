// tandem bench kernels: what each block of a layer takes, against the bandwidth that its bytes need.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>

#include "base/check.h"
#include "cli/bench/bandwidth_test.h"
#include "cli/bench/bench.h"

namespace tandem::bench {
namespace {

constexpr const char* kCommand = "bench kernels";

constexpr const char* kExamples =
    "tandem bench kernels --model synth:qwen3.5-0.8b@8 --rows 1,8\n"
    "tandem bench kernels --model DIR --context 4096 --json";

// Runs of a block between two waits for a card. On a host every run follows a whole step instead, which
// leaves the caches and the activations as they are inside one.
constexpr int kRunsOnCard = 20;

struct Flags {
  BenchFlags common;
  std::vector<int> rows{1, 8};
  int context = 128;
};

std::optional<int> parse(Flags& flags, Arguments args) {
  Options options(kCommand,
                  "Times each block of a decode step of one sequence, run by itself through all layers that "
                  "have it. us: of one layer. share_of_read: its bytes (weights, recurrent state read and "
                  "written, keys and values) per second, over the read bandwidth measured in turns with the "
                  "blocks, with as many threads. launches: kernels of one layer, on a card.",
                  kExamples);
  flags.common.add_model(options);
  options.add("--rows", &flags.rows, "1,8", "Rows per step [1,8]", {.min = 1, .max = kMaxDecodeRows});
  options.add("--context", &flags.context, "N", "Positions behind the sequence [128]", {.min = 0});
  flags.common.add_to(options, 7);
  return options.parse(args);
}

struct Named {
  LayerBlock block;
  const char* name;
};
constexpr Named kBlocks[] = {
    {LayerBlock::delta_inputs, "delta inputs"},
    {LayerBlock::delta_step, "delta step"},
    {LayerBlock::delta_output, "delta output"},
    {LayerBlock::attention_inputs, "attention inputs"},
    {LayerBlock::attention, "attention"},
    {LayerBlock::attention_output, "attention output"},
    {LayerBlock::mlp, "mlp"},
    {LayerBlock::moe, "moe"},
    {LayerBlock::head, "head"},
};

// A step of n rows that follows one as long, again and again, and its blocks.
class KernelsTest {
 public:
  static Result<std::unique_ptr<KernelsTest>> create(LoadedModel& model, int n, int context) {
    const int positions = context + 2 * n;
    TD_RETURN_IF_ERROR(check_context(model, positions));
    TD_ASSIGN_OR_RETURN(
        StatePool pool,
        StatePool::create(*model.backend, model.decoder->state_shape(),
                          {.max_sequences = 1, .max_positions = positions, .tape_rows = kMaxDecodeRows}));
    std::unique_ptr<KernelsTest> test(new KernelsTest(model, n, std::move(pool)));
    TD_ASSIGN_OR_RETURN(SequenceState sequence, sequence_at(test->pool_, *model.backend, context));
    test->sequence_ = std::make_unique<SequenceState>(std::move(sequence));
    TD_RETURN_IF_ERROR(test->sequence_->begin_verify(n));
    test->step();
    test->sequence_->commit(n);
    TD_RETURN_IF_ERROR(test->sequence_->begin_verify(n));
    test->step();
    return test;
  }

  // Seconds that the block takes in one layer.
  double measure(LayerBlock block) {
    const int runs = backend_.memory_is_host() ? 1 : kRunsOnCard;
    step();
    const double seconds = time_of([&] {
      for (int i = 0; i < runs; ++i) run(block);
      wait();
    });
    return seconds / runs / decoder_.n_layers_with(block);
  }

  // Kernels that are launched for the block in one layer.
  double launches(LayerBlock block) {
    owners_[size_t(block)] = new_step_owner();  // so that it runs as it will be recorded
    const uint64_t before = backend_.launches();
    run(block);
    wait();
    return double(backend_.launches() - before) / decoder_.n_layers_with(block);
  }

  // Of one layer.
  double bytes(LayerBlock block) const {
    const DeltaShape& delta = decoder_.shape().delta;
    const StateShape& state = pool_.shape();
    const double kv =
        state.n_attention_layers > 0 ? double(pool_.kv_bytes_per_position()) / state.n_attention_layers : 0;
    double own = 0;
    if (block == LayerBlock::delta_inputs) own = 2.0 * sizeof(float) * (kConvTaps - 1) * delta.conv_dim();
    if (block == LayerBlock::delta_step) own = 2.0 * sizeof(float) * delta.value_dim() * delta.d_k;
    if (block == LayerBlock::attention_inputs) own = kv * n_;
    if (block == LayerBlock::attention) own = kv * (sequence_->length() + n_);
    return own + double(decoder_.block_weight_bytes(block, n_)) / decoder_.n_layers_with(block);
  }

 private:
  KernelsTest(LoadedModel& model, int n, StatePool pool)
      : backend_(*model.backend), decoder_(*model.decoder), n_(n), pool_(std::move(pool)) {
    for (unsigned i = 0; i < unsigned(n); ++i) {
      ids_.push_back(TokenId((i + 1) * 7919u % unsigned(model.config.vocab_size)));
    }
    for (uint64_t& owner : owners_) owner = new_step_owner();
  }

  Step current() {
    seq_ = sequence_->rows(0);
    return {.path = Path::decode, .n_rows = n_, .seqs = std::span(&seq_, 1)};
  }

  void step() {
    decoder_.forward_with_head(current(), ids_, pool_, {});
    wait();
  }

  // Recorded where the backend records.
  void run(LayerBlock block) {
    const Step step = current();
    Body body{this, &step, block};
    backend_.run({.owner = owners_[size_t(block)],
                  .state = pool_.id(),
                  .steps = {&step, 1},
                  .body = [](void* context) { static_cast<Body*>(context)->run(); },
                  .context = &body});
  }

  void wait() {
    std::array<std::byte, sizeof(float)> any;
    backend_.copy_out(any, static_cast<const std::byte*>(decoder_.residual().data));
  }

  struct Body {
    KernelsTest* test;
    const Step* step;
    LayerBlock block;
    void run() const { test->decoder_.run_block(block, *step, test->pool_); }
  };

  Backend& backend_;
  Decoder& decoder_;
  const int n_;
  StatePool pool_;
  std::unique_ptr<SequenceState> sequence_;
  SeqStep seq_;
  std::vector<TokenId> ids_;
  std::array<uint64_t, std::size(kBlocks)> owners_ = {};
};

Status bench_rows(const Flags& flags, LoadedModel& model, BandwidthTest* host, int n,
                  std::vector<Json>& rows) {
  TD_ASSIGN_OR_RETURN(const std::unique_ptr<KernelsTest> test, KernelsTest::create(model, n, flags.context));
  std::vector<Named> blocks;
  for (const Named& b : kBlocks) {
    if (model.decoder->n_layers_with(b.block) > 0) blocks.push_back(b);
  }
  std::vector<std::vector<double>> seconds(blocks.size());
  std::vector<double> read;
  for (int round = -1; round < flags.common.rounds; ++round) {
    if (round >= 0) read.push_back(host != nullptr ? host->read_gb_per_s(2) : model.backend->read_gb_per_s());
    for (size_t i = 0; i < blocks.size(); ++i) {
      const double s = test->measure(blocks[i].block);
      if (round >= 0) seconds[i].push_back(s);  // the first turn warms up, and records
    }
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    const double s = median(seconds[i]), bytes = test->bytes(blocks[i].block);
    Json row = row_of("kernels", model.name, *model.backend);
    row["context"] = flags.context;
    row["rows"] = n;
    row["block"] = blocks[i].name;
    row["layers"] = model.decoder->n_layers_with(blocks[i].block);
    row["us"] = s * 1e6;
    row["bytes"] = uint64_t(bytes);
    row["gb_per_s"] = bytes / s / 1e9;
    row["read_gb_per_s"] = median(read);
    row["share_of_read"] = bytes / s / 1e9 / median(read);
    if (!model.backend->memory_is_host()) row["launches"] = test->launches(blocks[i].block);
    rows.push_back(std::move(row));
  }
  return {};
}

Result<std::vector<Json>> bench(const Flags& flags) {
  std::vector<Json> rows;
  for (const std::string& name : flags.common.models) {
    for (const int threads : flags.common.thread_counts()) {
      TD_ASSIGN_OR_RETURN(LoadedModel model,
                          load(flags.common, kCommand, name, threads,
                               {.max_rows = kChunkTokens, .max_logit_rows = kMaxDecodeRows}));
      std::unique_ptr<BandwidthTest> host;  // where weights lie in host memory
      if (model.backend->memory_is_host()) {
        TD_ASSIGN_OR_RETURN(host, BandwidthTest::create(model.backend->threads()));
      }
      for (const int n : flags.rows) TD_RETURN_IF_ERROR(bench_rows(flags, model, host.get(), n, rows));
    }
  }
  return rows;
}

}  // namespace

int run_kernels(Arguments args) {
  Flags flags;
  if (const auto code = parse(flags, args)) return *code;
  return report(flags.common, kCommand, bench(flags));
}

}  // namespace tandem::bench
