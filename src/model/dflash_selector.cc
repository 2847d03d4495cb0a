#include "model/dflash_selector.h"

#include <fmt/format.h>

#include "base/check.h"

namespace tandem {

Result<std::unique_ptr<DflashSelector>> DflashSelector::load(TensorSource& source,
                                                             const DrafterConfig& config, Backend& backend,
                                                             int max_rows) {
  std::unique_ptr<DflashSelector> s(new DflashSelector(config, backend));
  const int n_vocab = config.network.vocab_size, d = config.network.d_model;
  const std::string module = "candidate_selector.";
  const auto pack = [&](const std::string& name, const SourceMatrix& m) {
    const RowRun run{&m.matrix, 0, m.matrix.n};
    return backend.pack({.name = name, .rows = {&run, 1}});
  };
  TD_ASSIGN_OR_RETURN(const SourceMatrix before,
                      source.table(module + "predecessor_codebook", n_vocab, s->rank_));
  TD_ASSIGN_OR_RETURN(s->predecessor_, pack("predecessor codebook", before));
  source.done_with(before.matrix);
  TD_ASSIGN_OR_RETURN(const SourceMatrix after,
                      source.table(module + "successor_codebook", n_vocab, s->rank_));
  TD_ASSIGN_OR_RETURN(s->successor_, pack("successor codebook", after));
  source.done_with(after.matrix);
  TD_ASSIGN_OR_RETURN(const SourceMatrix hidden, source.matrix(module + "hidden_projection", s->rank_, d));
  TD_ASSIGN_OR_RETURN(s->projection_, pack("selector projection", hidden));

  const int n_ids = max_rows * (s->top_k_ + 1);
  for (const auto& [rows, n] :
       {std::pair(&s->hidden_, max_rows), {&s->before_, n_ids}, {&s->after_, n_ids}}) {
    const size_t floats = size_t(n) * size_t(s->rank_);
    TD_ASSIGN_OR_RETURN(rows->memory, backend.allocate(floats * sizeof(float), "the drafter's selector"));
    rows->all = rows->memory.view(DType::f32, n, s->rank_);
    if (!backend.memory_is_host()) rows->copy.resize(floats);
  }
  const Weight* weights[] = {s->projection_.get()};
  TD_RETURN_IF_ERROR(backend.reserve({.max_rows = max_rows, .weights = weights}));
  return s;
}

Status DflashSelector::check(TensorSource& source, const DrafterConfig& config) {
  const int n_vocab = config.network.vocab_size, rank = config.v2->selector_rank;
  for (const char* name : {"predecessor_codebook", "successor_codebook"}) {
    TD_ASSIGN_OR_RETURN(const SourceMatrix table,
                        source.table(fmt::format("candidate_selector.{}", name), n_vocab, rank));
    source.done_with(table.matrix);
  }
  TD_ASSIGN_OR_RETURN(const SourceMatrix projection,
                      source.matrix("candidate_selector.hidden_projection", rank, config.network.d_model));
  source.done_with(projection.matrix);
  return {};
}

std::span<const float> DflashSelector::on_host(Rows& rows, int n) {
  const size_t floats = size_t(n) * size_t(rank_);
  if (backend_->memory_is_host()) return {static_cast<const float*>(rows.all.data), floats};
  const auto copy = std::span(rows.copy).first(floats);
  backend_->copy_out(std::as_writable_bytes(copy), rows.memory.data());
  return copy;
}

std::span<const float> DflashSelector::project(View hidden) {
  TD_CHECK(hidden.rows <= hidden_.all.rows, "%d rows, at most %d", hidden.rows, hidden_.all.rows);
  backend_->linear(Path::decode, hidden, *projection_, hidden_.all.row_range(0, hidden.rows));
  return on_host(hidden_, hidden.rows);
}

std::span<const float> DflashSelector::gather(const Weight& codebook, std::span<const TokenId> ids,
                                              Rows& rows) {
  TD_CHECK(int(ids.size()) <= rows.all.rows, "%zu rows of a codebook, at most %d", ids.size(), rows.all.rows);
  for (const TokenId id : ids) TD_CHECK(id >= 0 && id < codebook.n(), "token %d of %d", id, codebook.n());
  backend_->embed(codebook, ids, rows.all.row_range(0, int(ids.size())));
  return on_host(rows, int(ids.size()));
}

std::span<const float> DflashSelector::predecessors(std::span<const TokenId> ids) {
  return gather(*predecessor_, ids, before_);
}

std::span<const float> DflashSelector::successors(std::span<const TokenId> ids) {
  return gather(*successor_, ids, after_);
}

}  // namespace tandem
