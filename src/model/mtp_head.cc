#include "model/mtp_head.h"

#include <fmt/format.h>

#include "base/check.h"

namespace tandem {
namespace {

// One more layer of the full-attention kind.
ModelConfig trunk_config(const ModelConfig& target) {
  ModelConfig config = target;
  config.n_layers = 1;
  config.layer_kinds = {LayerKind::full_attention};
  config.moe_layers = {target.moe()};
  return config;
}

// Each layer of a longer head would need a cache of its own, fed with what the layer before it makes of every
// position. No published checkpoint has one.
Status check_depth(const ModelConfig& target) {
  if (MtpHead::supports(target)) return {};
  return Error{fmt::format(
      "{}: mtp_num_hidden_layers: expected 1, found {}: MTP heads of several layers are not supported; use "
      "another drafter",
      target.file, target.n_mtp_layers)};
}

// Gains of the norms before fc: the embedding's, then the hidden state's.
Result<std::vector<float>> input_gains(TensorSource& source, int d) {
  TD_ASSIGN_OR_RETURN(std::vector<float> gains, source.shifted_gain("pre_fc_norm_embedding.weight", d));
  TD_ASSIGN_OR_RETURN(const std::vector<float> of_hidden,
                      source.shifted_gain("pre_fc_norm_hidden.weight", d));
  gains.insert(gains.end(), of_hidden.begin(), of_hidden.end());
  return gains;
}

}  // namespace

Result<std::unique_ptr<MtpHead>> MtpHead::load(TensorSource& source, const ModelConfig& target_config,
                                               Decoder& target, const DecoderLimits& limits,
                                               const MtpOptions& options,
                                               std::shared_ptr<const Weight> draft_head) {
  Backend& backend = target.backend();
  TD_RETURN_IF_ERROR(check_depth(target_config));
  ModelConfig config = trunk_config(target_config);
  if (draft_head) config.vocab_size = draft_head->n();
  std::unique_ptr<MtpHead> head(new MtpHead(target, options));
  TD_ASSIGN_OR_RETURN(head->trunk_,
                      load_decoder(source, config, backend, limits, {},
                                   {.embedding = target.embedding(),
                                    .head = draft_head ? std::move(draft_head) : target.head()}));
  const int d = config.d_model;
  TD_ASSIGN_OR_RETURN(const SourceMatrix fc, source.matrix("fc", d, 2 * d));
  const RowRun run{&fc.matrix, 0, d};
  TD_ASSIGN_OR_RETURN(head->fc_, backend.pack({.name = "mtp.fc", .rows = {&run, 1}}));
  TD_ASSIGN_OR_RETURN(const std::vector<float> gains, input_gains(source, d));
  TD_ASSIGN_OR_RETURN(head->vectors_,
                      backend.allocate(gains.size() * sizeof(float), "norms of the MTP head"));
  backend.copy_in(head->vectors_.data(), std::as_bytes(std::span(gains)));
  head->embedding_gain_ = head->vectors_.view(DType::f32, 1, d);
  head->hidden_gain_ = head->vectors_.view(DType::f32, 1, d, size_t(d) * sizeof(float));
  TD_RETURN_IF_ERROR(head->allocate());
  return head;
}

Status MtpHead::allocate() {
  Backend& backend = target_->backend();
  const int rows = max_rows(), chains = max_logit_rows(), d = d_model();
  const auto floats = [](int n, int cols) { return size_t(n) * size_t(cols) * sizeof(float); };
  TD_ASSIGN_OR_RETURN(scratch_, backend.allocate(floats(rows, 3 * d), "rows of the MTP head"));
  both_all_ = scratch_.view(DType::f32, rows, 2 * d);
  embedded_all_ = scratch_.view(DType::f32, rows, d, floats(rows, 2 * d));
  TD_ASSIGN_OR_RETURN(chain_memory_, backend.allocate(floats(chains, d) + floats(kMaxDecodeRows, chains),
                                                      "chains of the MTP head"));
  chain_hidden_ = chain_memory_.view(DType::f32, chains, d);
  chain_tokens_ = chain_memory_.view(DType::i32, kMaxDecodeRows, chains, floats(chains, d));
  chains_.resize(size_t(kMaxDecodeRows) * size_t(chains));
  const Weight* weights[] = {fc_.get()};
  return backend.reserve({.max_rows = rows, .weights = weights});
}

Status MtpHead::check(const CheckpointSource& target_source, const ModelConfig& target_config) {
  TD_RETURN_IF_ERROR(check_depth(target_config));
  TD_ASSIGN_OR_RETURN(CheckpointSource source, target_source.mtp_head());
  const int d = target_config.d_model;
  TD_RETURN_IF_ERROR(
      check_tensors(source, trunk_config(target_config), TensorParts::without_embedding_and_head));
  if (const auto fc = source.matrix("fc", d, 2 * d); !fc.ok()) return fc.error();
  if (const auto gains = input_gains(source, d); !gains.ok()) return gains.error();
  return {};
}

void MtpHead::hidden_of_target(std::span<const int32_t> rows, MutView y) {
  Backend& backend = target_->backend();
  backend.copy_rows(target_->residual(), rows, y);
  if (options_.input_after_norm) backend.rms_norm(y, target_->final_gain(), target_->shape().norm_eps, y);
}

void MtpHead::forward(const Step& step, std::span<const TokenId> ids, View hidden, const StatePool& pool) {
  project(step, ids, hidden);
  trunk_->forward_rows(step, pool);
}

void MtpHead::ingest(const Step& step, std::span<const TokenId> ids, View hidden, const StatePool& pool) {
  project(step, ids, hidden);
  trunk_->cache_rows(step, pool);
}

void MtpHead::project(const Step& step, std::span<const TokenId> ids, View hidden) {
  const int n = step.n_rows;
  TD_CHECK(n <= both_all_.rows && int(ids.size()) == n && hidden.rows == n,
           "%d rows, %zu tokens, %d states, at most %d", n, ids.size(), hidden.rows, both_all_.rows);
  target_->backend().embed(*trunk_->embedding(), ids, embedded_all_.row_range(0, n));
  project_embedded(step, hidden);
}

void MtpHead::project_embedded(const Step& step, View hidden) {
  const int n = step.n_rows, d = d_model();
  Backend& backend = target_->backend();
  const float eps = trunk_->shape().norm_eps;
  const MutView embedded = embedded_all_.row_range(0, n), both = both_all_.row_range(0, n);
  backend.rms_norm(embedded, embedding_gain_, eps, both.col_range(0, d));
  backend.rms_norm(hidden, hidden_gain_, eps, both.col_range(d, d));
  backend.linear(step.path, both, *fc_, trunk_->input_rows(n));
}

void MtpHead::chain_hidden(std::span<const int32_t> rows, std::span<const int32_t> which, MutView y) {
  if (options_.chain_after_norm) return target_->backend().copy_rows(trunk_->hidden(), which, y);
  picked_.clear();
  for (const int32_t i : which) picked_.push_back(rows[size_t(i)]);
  target_->backend().copy_rows(trunk_->residual(), picked_, y);
}

MutView MtpHead::chain_tokens(int t, int n) const {
  MutView tokens = chain_tokens_.row_range(t, 1);
  tokens.rows = n;
  tokens.cols = 1;
  tokens.stride = 1;
  return tokens;
}

void MtpHead::begin_chains(std::span<const int32_t> rows, int n_choices, View names) {
  if (n_choices != n_choices_ || names.data != names_.data) {
    n_choices_ = n_choices;
    names_ = names;
    for (uint64_t& owner : chain_owners_) owner = new_step_owner();
  }
  const int n = int(rows.size());
  trunk_->head(rows, {});
  target_->backend().choose_greedy(trunk_->logits_on_device(), n_choices_, names_, chain_tokens(0, n));
  const MutView hidden = chain_hidden_.row_range(0, n);
  if (options_.chain_after_norm) {
    target_->backend().copy_rows(trunk_->hidden(), {}, hidden);
  } else {
    target_->backend().copy_rows(trunk_->residual(), rows, hidden);
  }
  chain_length_ = 1;
}

void MtpHead::extend_chains(std::span<const Step> steps, const StatePool& pool) {
  TD_CHECK(chain_length_ > 0 && size_t(chain_length_) + steps.size() <= size_t(kMaxDecodeRows),
           "%zu more tokens for chains of %d", steps.size(), chain_length_);
  struct Run {
    MtpHead* head;
    std::span<const Step> steps;
    int length;
    const StatePool* pool;
  } run{this, steps, chain_length_, &pool};
  target_->backend().run({.owner = chain_owners_[size_t(chain_length_)],
                          .state = pool.id(),
                          .steps = steps,
                          .body =
                              [](void* context) {
                                const Run& r = *static_cast<Run*>(context);
                                int t = r.length;
                                for (const Step& step : r.steps) r.head->extend(step, t++, *r.pool);
                              },
                          .context = &run});
  chain_length_ += int(steps.size());
}

// Token t of the step's chains. From the third on the states are where the pass before has left them.
void MtpHead::extend(const Step& step, int t, const StatePool& pool) {
  const int n = step.n_rows;
  View hidden = chain_hidden_;
  if (t > 1) hidden = options_.chain_after_norm ? trunk_->hidden() : trunk_->residual();
  TD_CHECK(n <= hidden.rows, "%d chains of %d go on", n, hidden.rows);
  hidden.rows = n;
  target_->backend().embed_chosen(*trunk_->embedding(), chain_tokens(t - 1, n),
                                  embedded_all_.row_range(0, n));
  project_embedded(step, hidden);
  trunk_->forward_rows(step, pool);
  trunk_->head(0, n, {});
  target_->backend().choose_greedy(trunk_->logits_on_device(), n_choices_, names_, chain_tokens(t, n));
}

void MtpHead::fetch_chains() {
  const auto tokens = std::span(chains_).first(size_t(chain_length_) * size_t(max_logit_rows()));
  target_->backend().copy_out(std::as_writable_bytes(tokens),
                              static_cast<const std::byte*>(chain_tokens_.data));
}

}  // namespace tandem
