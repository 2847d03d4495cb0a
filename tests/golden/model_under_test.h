// A model on a backend, driven step by step: what golden and row-independence tests need.
#pragma once

#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/registry.h"
#include "format/checkpoint.h"
#include "format/config.h"
#include "model/checkpoint_source.h"
#include "model/load.h"
#include "state/state_pool.h"

namespace tandem {

template <class T>
T value_or_throw(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().message);
  return *std::move(result);
}

inline void ok_or_throw(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.error().message);
}

class ModelUnderTest {
 public:
  ModelUnderTest(const std::string& folder, const BackendOptions& backend, const DecoderLimits& limits = {})
      : ModelUnderTest(folder, value_or_throw(make_backend(backend)), limits) {}
  ModelUnderTest(const std::string& folder, std::unique_ptr<Backend> backend,
                 const DecoderLimits& limits = {})
      : backend_(std::move(backend)) {
    config_ = value_or_throw(load_model_config(folder));
    const Checkpoint checkpoint = value_or_throw(Checkpoint::open(folder));
    CheckpointSource source = value_or_throw(CheckpointSource::create(checkpoint, config_, nullptr));
    decoder_ = value_or_throw(load_decoder(source, config_, *backend_, limits, nullptr));
  }

  Decoder& decoder() { return *decoder_; }
  Backend& backend() { return *backend_; }
  int n_vocab() const { return decoder_->shape().n_vocab; }

  StatePool make_pool(int max_sequences, int max_positions, int tape_rows = kMaxDecodeRows) {
    return value_or_throw(StatePool::create(
        *backend_, decoder_->state_shape(),
        {.max_sequences = max_sequences, .max_positions = max_positions, .tape_rows = tape_rows}));
  }

  // Feeds prompt tokens in chunks of `chunk` rows; appends the logits of every row to `logits` if given.
  void prefill(StatePool& pool, SequenceState& state, std::span<const TokenId> ids, int chunk = 512,
               std::vector<float>* logits = nullptr) {
    for (size_t done = 0; done < ids.size();) {
      const int start = state.length();
      const int end = std::min(int(start - done + ids.size()), (start + chunk) / kChunkTokens * kChunkTokens);
      const int n = end - start;
      ok_or_throw(state.begin_prefill(n));
      const SeqStep seq = state.rows(0);
      decoder_->forward({.path = Path::prefill, .n_rows = n, .seqs = std::span(&seq, 1)},
                        ids.subspan(done, size_t(n)), pool);
      state.end_prefill();
      if (logits != nullptr) append_logits(n, *logits);
      done += size_t(n);
    }
  }

  // One decode step of ids.size() rows of one sequence, of which `keep` are committed; logits of all rows.
  std::vector<float> verify(StatePool& pool, SequenceState& state, std::span<const TokenId> ids, int keep) {
    ok_or_throw(state.begin_verify(int(ids.size())));
    const SeqStep seq = state.rows(0);
    decoder_->forward({.path = Path::decode, .n_rows = int(ids.size()), .seqs = std::span(&seq, 1)}, ids,
                      pool);
    state.commit(keep);
    std::vector<float> logits;
    append_logits(int(ids.size()), logits);
    return logits;
  }

  void append_logits(int n, std::vector<float>& out) {
    const int most = decoder_->limits().max_logit_rows;
    for (int first = 0; first < n; first += most) {
      const int rows = std::min(most, n - first);
      const std::span<const float> logits = decoder_->logits(first, rows);
      out.insert(out.end(), logits.begin(), logits.end());
    }
  }

 private:
  std::unique_ptr<Backend> backend_;
  ModelConfig config_;
  std::unique_ptr<Decoder> decoder_;
};

inline TokenId argmax(std::span<const float> row) {
  size_t best = 0;
  for (size_t i = 1; i < row.size(); ++i) {
    if (row[i] > row[best]) best = i;
  }
  return TokenId(best);
}

}  // namespace tandem
