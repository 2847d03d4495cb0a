// The checked front of every operation, and the blocks composed from primitives: the definition each override
// must meet.
#include "backend/backend.h"

#include <algorithm>
#include <atomic>

#include "base/check.h"

namespace tandem {
namespace {

void check_f32(View v, int rows, int cols, const char* what) {
  TD_CHECK(v.data != nullptr && v.dtype == DType::f32 && v.rows == rows && v.cols == cols && v.stride >= cols,
           "%s is [%d, %d] stride %lld dtype %d, want f32 [%d, %d]", what, v.rows, v.cols,
           (long long)v.stride, int(v.dtype), rows, cols);
}

void check_tree(Path path, const SeqStep& seq) {
  TD_CHECK(path == Path::decode && seq.parents.size() == size_t(seq.n_rows) && seq.parents[0] == -1,
           "a tree of %zu parents, the first %d, for %d rows of path %d", seq.parents.size(), seq.parents[0],
           seq.n_rows, int(path));
  for (int i = 1; i < seq.n_rows; ++i) {
    int above = i - 1;  // up from the row before, to the one that this row follows
    while (above > 0 && above != seq.parents[size_t(i)]) above = seq.parents[size_t(above)];
    TD_CHECK(above == seq.parents[size_t(i)], "row %d of a tree follows row %d: not in depth-first order", i,
             seq.parents[size_t(i)]);
  }
}

void check_step(const Step& step) {
  int rows = 0;
  for (const SeqStep& seq : step.seqs) {
    TD_CHECK(seq.first_row == rows && seq.n_rows > 0, "sequence rows start at %d, want %d", seq.first_row,
             rows);
    TD_CHECK(step.path == Path::prefill || seq.n_rows <= kMaxDecodeRows, "%d decode rows, at most %d",
             seq.n_rows, kMaxDecodeRows);
    TD_CHECK(step.path == Path::decode || seq.pending.empty(), "%zu pending tape rows in a prefill step",
             seq.pending.size());
    TD_CHECK(seq.start > 0 || seq.pending.empty(), "%zu pending tape rows at position 0", seq.pending.size());
    if (!seq.parents.empty()) check_tree(step.path, seq);
    rows += seq.n_rows;
  }
  TD_CHECK(rows == step.n_rows, "sequences have %d rows, the step %d", rows, step.n_rows);
}

void check_pages(const Step& step) {
  for (const SeqStep& seq : step.seqs) {
    const size_t want = size_t(seq.start + seq.n_rows + kPageTokens - 1) / kPageTokens;
    TD_CHECK(seq.pages.size() >= want, "%zu pages for %d positions, want %zu", seq.pages.size(),
             seq.start + seq.n_rows, want);
  }
}

void check_tape(const Step& step, const DeltaState& state) {
  for (const SeqStep& seq : step.seqs) {
    TD_CHECK(step.path == Path::prefill || seq.n_rows <= state.tape_rows, "%d decode rows, tape of %d",
             seq.n_rows, state.tape_rows);
  }
}

void check_delta(const DeltaShape& s, const DeltaState& state) {
  TD_CHECK(s.n_k_heads > 0 && s.n_v_heads % s.n_k_heads == 0, "%d value heads over %d key heads", s.n_v_heads,
           s.n_k_heads);
  TD_CHECK(state.s && state.conv && state.tape_g && state.tape_k && state.tape_delta && state.tape_conv,
           "delta state without memory");
}

void check_attention(const Step& step, const Attention& a) {
  check_step(step);
  check_pages(step);
  check_f32(a.q, step.n_rows, a.shape.q_dim(), "attention q");
  if (!a.gate.empty()) check_f32(a.gate, step.n_rows, a.shape.q_dim(), "attention gate");
  TD_CHECK(a.shape.n_heads % a.shape.n_kv_heads == 0, "%d heads over %d KV heads", a.shape.n_heads,
           a.shape.n_kv_heads);
  for (const SeqStep& seq : step.seqs) {
    TD_CHECK(!a.bidirectional || seq.parents.empty(), "bidirectional attention over a tree of %d rows",
             seq.n_rows);
  }
}

MutView part(MutView v, int rows, int cols) {
  TD_CHECK(v.rows >= rows && v.cols >= cols, "scratch [%d, %d], want [%d, %d]", v.rows, v.cols, rows, cols);
  v.rows = rows;
  v.cols = cols;
  return v;
}

}  // namespace

uint64_t new_step_owner() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

void Backend::embed(const Weight& table, std::span<const int32_t> ids, MutView y) {
  check_f32(y, int(ids.size()), table.k(), "embed y");
  do_embed(table, ids, y);
}

void Backend::embed_chosen(const Weight& table, View ids, MutView y) {
  check_f32(y, ids.rows, table.k(), "embed_chosen y");
  TD_CHECK(ids.dtype == DType::i32 && ids.cols == 1 && ids.stride == 1, "chosen ids [%d, %d] stride %lld",
           ids.rows, ids.cols, (long long)ids.stride);
  do_embed_chosen(table, ids, y);
}

void Backend::copy_rows(View x, std::span<const int32_t> rows, MutView y) {
  check_f32(x, x.rows, x.cols, "copy_rows x");
  check_f32(y, rows.empty() ? x.rows : int(rows.size()), x.cols, "copy_rows y");
  for (const int32_t r : rows) TD_CHECK(r >= 0 && r < x.rows, "copy_rows: row %d of %d", r, x.rows);
  do_copy_rows(x, rows, y);
}

void Backend::linear(Path path, View x, const Weight& w, MutView y) {
  check_f32(x, x.rows, w.k(), "linear x");
  check_f32(y, x.rows, w.n(), "linear y");
  TD_CHECK(w.n_experts() == 1, "linear over a stack of %d experts", w.n_experts());
  do_linear(path, x, w, y);
}

void Backend::linear_add(Path path, View x, const Weight& w, MutView residual) {
  check_f32(x, x.rows, w.k(), "linear_add x");
  check_f32(residual, x.rows, w.n(), "linear_add residual");
  TD_CHECK(w.n_experts() == 1, "linear_add over a stack of %d experts", w.n_experts());
  do_linear_add(path, x, w, residual);
}

void Backend::rms_norm(View x, View gain, float eps, MutView y) {
  check_f32(x, x.rows, gain.cols, "rms_norm x");
  check_f32(gain, 1, gain.cols, "rms_norm gain");
  check_f32(y, x.rows, x.cols, "rms_norm y");
  do_rms_norm(x, gain, eps, y);
}

void Backend::silu_mul(View gate_up, MutView y) {
  check_f32(gate_up, y.rows, 2 * y.cols, "silu_mul gate_up");
  check_f32(y, y.rows, y.cols, "silu_mul y");
  do_silu_mul(gate_up, y);
}

void Backend::gated_norm(View o, View z, View gain, float eps, MutView y) {
  check_f32(o, o.rows, o.cols, "gated_norm o");
  check_f32(z, o.rows, o.cols, "gated_norm z");
  check_f32(y, o.rows, o.cols, "gated_norm y");
  TD_CHECK(gain.cols > 0 && o.cols % gain.cols == 0, "gated_norm: %d columns, heads of %d", o.cols,
           gain.cols);
  do_gated_norm(o, z, gain, eps, y);
}

void Backend::rope_angles(const Step& step, View frequencies, float m, MutView angles) {
  check_step(step);
  check_f32(angles, step.n_rows, 2 * frequencies.cols, "rope_angles");
  do_rope_angles(step, frequencies, m, angles);
}

void Backend::attention_prep(const Step& step, const AttentionPrep& a) {
  check_step(step);
  check_pages(step);
  check_f32(a.projection, step.n_rows, a.shape.q_dim() + a.gate_cols + 2 * a.shape.kv_dim(),
            "attention projection");
  check_f32(a.angles, step.n_rows, a.shape.rotary_dims, "attention angles");
  TD_CHECK(a.gate_cols == 0 || a.gate_cols == a.shape.q_dim(), "%d gate columns", a.gate_cols);
  TD_CHECK(a.q_norm.empty() == a.k_norm.empty(), "q_norm and k_norm come together (%d)",
           int(a.q_norm.empty()));
  do_attention_prep(step, a);
}

void Backend::attention(const Step& step, const Attention& a) {
  check_attention(step, a);
  check_f32(a.out, step.n_rows, a.shape.q_dim(), "attention out");
  do_attention(step, a);
}

void Backend::move_kv(const SeqStep& seq, const AttentionShape& shape, const KvLayer& cache,
                      std::span<const uint8_t> rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const int above = i == 0 ? -1 : rows[i - 1];
    TD_CHECK(rows[i] < seq.n_rows && seq.parent(rows[i]) == above, "row %d of %d is not below row %d",
             rows[i], seq.n_rows, above);
  }
  do_move_kv(seq, shape, cache, rows);
}

void Backend::block_conv(const Step& step, const BlockConv& a) {
  check_step(step);
  check_f32(a.x, step.n_rows, a.x.cols, "block_conv x");
  check_f32(a.base, a.base.rows, a.x.cols, "block_conv base");
  check_f32(a.dynamic, step.n_rows, a.dynamic.cols, "block_conv dynamic");
  check_f32(a.y, step.n_rows, a.x.cols, "block_conv y");
  if (!a.residual.empty()) check_f32(a.residual, step.n_rows, a.x.cols, "block_conv residual");
  const int taps = a.base.rows;
  TD_CHECK(taps > 0 && a.dynamic.cols > 0 && a.dynamic.cols % taps == 0 &&
               a.x.cols % (a.dynamic.cols / taps) == 0 && a.x.data != a.y.data,
           "block_conv: %d taps, %d dynamic coefficients a row, %d channels, in place %d", taps,
           a.dynamic.cols, a.x.cols, int(a.x.data == a.y.data));
  for (const SeqStep& seq : step.seqs) {
    TD_CHECK(seq.parents.empty(), "block_conv over a tree of %d rows", seq.n_rows);
  }
  do_block_conv(step, a);
}

void Backend::delta_conv(const Step& step, const DeltaConv& a) {
  check_step(step);
  check_delta(a.shape, a.state);
  check_tape(step, a.state);
  check_f32(a.projection, step.n_rows, a.shape.projection_dim(), "delta projection");
  check_f32(a.conv_weight, a.shape.conv_dim(), kConvTaps, "conv_weight");
  check_f32(a.a_log, 1, a.shape.n_v_heads, "a_log");
  check_f32(a.dt_bias, 1, a.shape.n_v_heads, "dt_bias");
  check_f32(a.qkv, step.n_rows, a.shape.conv_dim(), "delta qkv");
  check_f32(a.log_decay, step.n_rows, a.shape.n_v_heads, "delta log_decay");
  check_f32(a.beta, step.n_rows, a.shape.n_v_heads, "delta beta");
  do_delta_conv(step, a);
}

void Backend::delta_step(const Step& step, const DeltaStep& a) {
  check_step(step);
  check_delta(a.shape, a.state);
  check_tape(step, a.state);
  check_f32(a.qkv, step.n_rows, a.shape.conv_dim(), "delta qkv");
  check_f32(a.log_decay, step.n_rows, a.shape.n_v_heads, "delta log_decay");
  check_f32(a.beta, step.n_rows, a.shape.n_v_heads, "delta beta");
  check_f32(a.y, step.n_rows, a.shape.value_dim(), "delta y");
  do_delta_step(step, a);
}

void Backend::fold_states(const Step& step, const DeltaShape& shape, const DeltaState& state) {
  check_delta(shape, state);
  do_fold_states(step, shape, state);
}

void Backend::moe_route(View logits, bool normalise, MutView ids, MutView weights) {
  check_f32(logits, logits.rows, logits.cols, "router logits");
  check_f32(weights, logits.rows, ids.cols, "router weights");
  TD_CHECK(ids.dtype == DType::i32 && ids.rows == logits.rows && ids.cols <= logits.cols,
           "router ids [%d, %d]", ids.rows, ids.cols);
  do_moe_route(logits, normalise, ids, weights);
}

void Backend::moe_experts(Path path, const MoeExperts& a) {
  const MoeWeights& w = a.weights;
  check_f32(a.x, a.residual.rows, w.gate_up->k(), "moe x");
  check_f32(a.residual, a.x.rows, w.down->n(), "moe residual");
  TD_CHECK(w.gate_up->n() == 2 * w.down->k() && w.gate_up->n_experts() == w.down->n_experts(),
           "experts gate_up [%d, %d], down [%d, %d]", w.gate_up->n(), w.gate_up->k(), w.down->n(),
           w.down->k());
  TD_CHECK(a.ids.cols == w.top_k && a.choice_weights.cols == w.top_k, "%d choices, top_k %d", a.ids.cols,
           w.top_k);
  if (w.shared_down != nullptr) {
    // The shared expert joins the routed ones slice by slice, before the tree.
    TD_CHECK(w.shared_gate_up->n() == 2 * w.shared_down->k() && w.shared_gate->n() == 1,
             "shared gate_up %d, down %d", w.shared_gate_up->n(), w.shared_down->k());
    TD_CHECK(w.shared_down->n_slices() == w.down->n_slices(), "shared down in %d slices, experts in %d",
             w.shared_down->n_slices(), w.down->n_slices());
  }
  do_moe_experts(path, a);
}

void Backend::choose_greedy(View logits, int n, View names, MutView ids) {
  check_f32(logits, logits.rows, logits.cols, "logits to choose from");
  TD_CHECK(n > 0 && n <= logits.cols && ids.dtype == DType::i32 && ids.rows == logits.rows && ids.cols == 1,
           "the highest of %d of %d logits a row, ids [%d, %d] for %d rows", n, logits.cols, ids.rows,
           ids.cols, logits.rows);
  TD_CHECK(names.empty() || (names.dtype == DType::i32 && names.rows == 1 && names.cols >= n),
           "names [%d, %d] of %d logits", names.rows, names.cols, n);
  do_choose_greedy(logits, n, names, ids);
}

void Backend::choose_best(View logits, int n, MutView values, MutView ids) {
  check_f32(logits, logits.rows, logits.cols, "logits to choose from");
  check_f32(values, logits.rows, ids.cols, "values of the best logits");
  TD_CHECK(ids.dtype == DType::i32 && ids.rows == logits.rows && ids.cols <= std::min(n, kMostBest) &&
               ids.cols > 0 && n <= logits.cols,
           "the best %d of %d of %d logits a row", ids.cols, n, logits.cols);
  do_choose_best(logits, n, values, ids);
}

void Backend::delta_inputs(const Step& step, const DeltaInputs& args, Scratch& scratch) {
  do_delta_inputs(step, args, scratch);
}

void Backend::delta_output(const Step& step, const DeltaOutput& args, Scratch& scratch) {
  do_delta_output(step, args, scratch);
}

void Backend::attention_inputs(const Step& step, const AttentionInputs& args, Scratch& scratch) {
  do_attention_inputs(step, args, scratch);
}

void Backend::attention_output(const Step& step, const AttentionOutput& args, Scratch& scratch) {
  check_attention(step, args.attention);
  check_f32(args.x, step.n_rows, args.projection->n(), "attention_output x");
  TD_CHECK(args.projection->k() == args.attention.shape.q_dim(), "attention of %d columns for a weight of %d",
           args.attention.shape.q_dim(), args.projection->k());
  do_attention_output(step, args, scratch);
}

void Backend::mlp(const Step& step, const Mlp& args, Scratch& scratch) { do_mlp(step, args, scratch); }

void Backend::moe(const Step& step, const Moe& args, Scratch& scratch) { do_moe(step, args, scratch); }

void Backend::head(const Head& args) {
  check_f32(args.hidden, args.x.rows, args.x.cols, "head hidden");
  check_f32(args.logits, args.x.rows, args.weight->n(), "head logits");
  do_head(args);
}

void Backend::do_delta_inputs(const Step& step, const DeltaInputs& a, Scratch& s) {
  const int rows = step.n_rows;
  const MutView norm = part(s.norm, rows, a.x.cols);
  const MutView projection = part(s.wide, rows, a.shape.projection_dim());
  rms_norm(a.x, a.gain, a.eps, norm);
  linear(step.path, norm, *a.projection, projection);
  delta_conv(step, {.shape = a.shape,
                    .projection = projection,
                    .conv_weight = a.conv_weight,
                    .a_log = a.a_log,
                    .dt_bias = a.dt_bias,
                    .state = a.state,
                    .qkv = part(s.qkv, rows, a.shape.conv_dim()),
                    .log_decay = part(s.heads, rows, a.shape.n_v_heads),
                    .beta = part(s.heads2, rows, a.shape.n_v_heads)});
}

void Backend::do_delta_output(const Step& step, const DeltaOutput& a, Scratch& s) {
  const int rows = step.n_rows;
  const MutView y = part(s.inner, rows, a.shape.value_dim());
  const MutView z =
      part(s.wide, rows, a.shape.projection_dim()).col_range(a.shape.conv_dim(), a.shape.value_dim());
  gated_norm(y, z, a.gain, a.eps, y);
  linear_add(step.path, y, *a.projection, a.x);
}

void Backend::do_attention_inputs(const Step& step, const AttentionInputs& a, Scratch& s) {
  const int rows = step.n_rows;
  const MutView norm = part(s.norm, rows, a.x.cols);
  const MutView projection = part(s.wide, rows, a.shape.q_dim() + a.gate_cols + 2 * a.shape.kv_dim());
  rms_norm(a.x, a.gain, a.eps, norm);
  linear(step.path, norm, *a.projection, projection);
  attention_prep(step, {.shape = a.shape,
                        .projection = projection,
                        .gate_cols = a.gate_cols,
                        .q_norm = a.q_norm,
                        .k_norm = a.k_norm,
                        .eps = a.eps,
                        .angles = a.angles,
                        .cache = a.cache});
}

void Backend::do_attention_output(const Step& step, const AttentionOutput& a, Scratch& s) {
  Attention attention = a.attention;
  attention.out = part(s.inner, step.n_rows, attention.shape.q_dim());
  this->attention(step, attention);
  linear_add(step.path, attention.out, *a.projection, a.x);
}

void Backend::do_mlp(const Step& step, const Mlp& a, Scratch& s) {
  const int rows = step.n_rows;
  const MutView norm = part(s.norm, rows, a.x.cols);
  const MutView gate_up = part(s.wide, rows, a.gate_up->n());
  const MutView inner = part(s.inner, rows, a.down->k());
  rms_norm(a.x, a.gain, a.eps, norm);
  linear(step.path, norm, *a.gate_up, gate_up);
  silu_mul(gate_up, inner);
  linear_add(step.path, inner, *a.down, a.x);
}

void Backend::do_moe(const Step& step, const Moe& a, Scratch& s) {
  const int rows = step.n_rows;
  const MoeWeights& w = a.weights;
  const MutView norm = part(s.norm, rows, a.x.cols);
  const MutView logits = part(s.router, rows, w.router->n());
  const MutView ids = part(s.choice, rows, w.top_k);
  const MutView weights = part(s.choice_weight, rows, w.top_k);
  rms_norm(a.x, a.gain, a.eps, norm);
  linear(step.path, norm, *w.router, logits);
  moe_route(logits, w.normalise, ids, weights);
  moe_experts(step.path, {.x = norm, .weights = w, .ids = ids, .choice_weights = weights, .residual = a.x});
}

void Backend::do_head(const Head& a) {
  rms_norm(a.x, a.gain, a.eps, a.hidden);
  // Logits always come from the decode path, in blocks of at most kMaxDecodeRows rows.
  for (int first = 0; first < a.x.rows; first += kMaxDecodeRows) {
    const int n = std::min(kMaxDecodeRows, a.x.rows - first);
    linear(Path::decode, a.hidden.row_range(first, n), *a.weight, a.logits.row_range(first, n));
  }
}

}  // namespace tandem
