// Backend: the complete list of what a device must do. Read this to know what each operation means;
// reference/ is the same text as code.
//
// Two tiers. *Primitives* are pure virtual. *Blocks* are the fused pieces that make decode fast: each has a
// default body that composes primitives (its definition), and a backend overrides it where a benchmark says
// so. Public functions are not virtual: they check shapes once, for every backend, then call the protected
// do_x.
//
// Contract for every operation of the decode path (Path::decode, 1..kMaxDecodeRows rows per sequence), but
// for delta_step under DeltaForm::closed: the result for a row depends on that row's inputs and its own cache
// alone, bit for bit, never on how many rows share the step, on the place of the row, or on the number of
// threads. The prefill path may use other orders of summation, but fixed ones: chunk boundaries lie at
// absolute multiples of kChunkTokens, and a row's bits do not depend on where a prompt was cut.
//
// Operations enqueue and return nothing; nothing allocates, waits or branches on device data inside a step
// (but in reference/, which is the readable definition and not for serving). The views of one call must not
// overlap unless a comment allows it. All activations are fp32 here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "backend/memory.h"
#include "backend/step.h"
#include "backend/weight.h"
#include "base/result.h"

namespace tandem {

// How the rows of a verify step are computed (DeltaStep). exact: token by token, so that each row has the
// bits of plain decoding. closed: from the state before the step at once. A choice of the whole backend, and
// part of the equality class of its results.
enum class DeltaForm : uint8_t { exact, closed };

// Causal convolution and gates of a Gated DeltaNet layer, for the rows of a step:
//   m = projection[:, 0:conv_dim];  u = silu(sum_t conv_weight[c][t] * window[t][c]), window = last 3 inputs,
//   then m beta = sigmoid(b);  log_decay = -exp(a_log) * softplus(a + dt_bias), both per value head
// Decode: first folds the pending tape rows into conv, reads the window across conv and the rows that this
// one follows, records m on the other tape. Prefill: advances conv in place; a sequence that starts at
// position 0 sees zeros whatever conv holds.
struct DeltaConv {
  DeltaShape shape;
  View projection;   // [rows, projection_dim]: [q k v | z | b | a]
  View conv_weight;  // [conv_dim, kConvTaps], tap kConvTaps - 1 multiplies the newest input
  View a_log;        // [1, n_v_heads]
  View dt_bias;      // [1, n_v_heads]
  DeltaState state;
  MutView qkv;        // out [rows, conv_dim]
  MutView log_decay;  // out [rows, n_v_heads]
  MutView beta;       // out [rows, n_v_heads]
};

// The gated delta rule per value head, S [d_v, d_k] (gated delta networks, recurrent form):
//   k <- k rsqrt(sum k^2 + 1e-6);  q <- q rsqrt(sum q^2 + 1e-6) d_k^-0.5;  g = exp(log_decay)
//   S <- g S;  delta = beta (v - S k);  S <- S + delta k^T;  y = S q
// Decode: folds pending tape rows into S with the same arithmetic and stores S, then runs each row on a copy
// of what the row it follows left, and records g, k, delta on the other tape: S itself stands at the last
// fold. Prefill: chunked
// form (triangular solve), S advanced in place; a sequence that starts at position 0 starts from S = 0
// whatever the slot holds.
// DeltaForm::closed: a decode step of two or more rows of a chain reads S once, with G_t the sum of the log
// decays of rows 1 .. t:
//   delta_t = beta_t (v_t - exp(G_t) S k_t - sum_{j < t} exp(G_t - G_j) (k_j . k_t) delta_j)
//   y_t = exp(G_t) S q_t + sum_{j <= t} exp(G_t - G_j) (k_j . q_t) delta_j
// by forward substitution. A row's bits then depend on where its step began and on whether it was alone, so
// verification agrees with plain decoding within rounding. Folds, steps of one row and trees stay as they
// are.
struct DeltaStep {
  DeltaShape shape;
  View qkv;        // [rows, conv_dim], after DeltaConv
  View log_decay;  // [rows, n_v_heads]
  View beta;       // [rows, n_v_heads]
  DeltaState state;
  MutView y;  // out [rows, value_dim]
};

// Head norms, rotary embedding and cache append. `projection` is [q | gate | k | v] (no gate columns when
// !gated).
//   q_h <- rms_norm(q_h) * q_norm (if given), k likewise; both rotated in their first rotary_dims dimensions,
//   half-split pairing (i, i + rotary_dims / 2), by the angles of rope_angles; k and v are stored as the
//   cache stores them.
struct AttentionPrep {
  AttentionShape shape;
  MutView projection;             // q is normalised and rotated in place
  int gate_cols = 0;              // q_dim or 0
  View q_norm = {}, k_norm = {};  // [1, d_head] or empty
  float eps = 0;
  View angles;  // [rows, rotary_dims]: cos for rotary_dims / 2 frequencies, then sin
  KvLayer cache;
};

// out_h = sum_j softmax_j(q_h . k_j * scale) v_j * sigmoid(gate_h), over the positions j that key_range
// gives; KV head h / group. K and V are read as stored, those of this step included.
struct Attention {
  AttentionShape shape;
  View q;          // [rows, q_dim], after AttentionPrep
  View gate = {};  // [rows, q_dim] before the sigmoid, or empty
  float scale = 0;
  bool bidirectional = false;  // a row also sees the rows of its sequence after it (block drafters); no trees
  int window = 0;              // > 0: only positions less than this far away
  KvLayer cache;
  MutView out;  // [rows, q_dim]
};

// Positions [first, end) that row t of `seq` attends to: in a tree, of its prefix and its own path.
struct KeyRange {
  int first = 0, end = 0;
};
inline KeyRange key_range(const Attention& a, const SeqStep& seq, int t) {
  const int position = seq.start + seq.depth(t);
  KeyRange keys{0, a.bidirectional ? seq.start + seq.n_rows : position + 1};
  if (a.window > 0) {
    keys.first = std::max(0, position - a.window + 1);
    keys.end = std::min(keys.end, position + a.window);
  }
  return keys;
}

// Grouped dynamic convolution over the rows that each sequence has in a step (a drafter's
// block):
//   y[i][c] = sum_{t < taps} (base[t][c] + dynamic[i][t groups + c / group]) x[i - t][c]  (+ residual[i][c])
// x is zero before a sequence's first row of the step: nothing comes from its context or from other
// sequences.
struct BlockConv {
  View x;              // [rows, H]
  View base;           // [taps, H]
  View dynamic;        // [rows, taps * groups]; group = H / groups
  View residual = {};  // [rows, H] or empty; may be y
  MutView y;           // out [rows, H]; not x
};

// Where the weights of a sparse mixture are. Shared parts are null for models without a shared expert.
struct MoeWeights {
  const Weight* router = nullptr;          // [E, H]
  const Weight* gate_up = nullptr;         // E x [2 I, H]: gate rows, then up rows
  const Weight* down = nullptr;            // E x [H, I]
  const Weight* shared_gate_up = nullptr;  // [2 S, H]
  const Weight* shared_down = nullptr;     // [H, S]
  const Weight* shared_gate = nullptr;     // [1, H]
  int top_k = 0;
  bool normalise = true;  // weights of the chosen experts sum to one; else they are softmax over all experts
};

// Scratch a block needs, made once by the model for the most rows it will ever pass.
struct Scratch {
  MutView norm;           // [rows, H]
  MutView wide;           // [rows, widest projection]
  MutView inner;          // [rows, widest input of an output projection]
  MutView heads;          // [rows, n_v_heads] log decay
  MutView heads2;         // [rows, n_v_heads] beta
  MutView qkv;            // [rows, conv_dim]
  MutView router;         // [rows, E]
  MutView choice;         // [rows, top_k] i32
  MutView choice_weight;  // [rows, top_k]
};

struct DeltaInputs {  // block: rms_norm, projection, delta_conv
  View x;             // [rows, H]
  View gain;          // [1, H]
  float eps = 0;
  const Weight* projection = nullptr;
  DeltaShape shape;
  View conv_weight, a_log, dt_bias;
  DeltaState state;
};

struct DeltaOutput {  // block: gated norm, output projection, residual
  DeltaShape shape;
  View gain;  // [1, d_v]
  float eps = 0;
  const Weight* projection = nullptr;
  MutView x;  // [rows, H], residual stream, updated in place
};

struct AttentionInputs {  // block: rms_norm, projection, attention_prep
  View x;
  View gain;
  float eps = 0;
  const Weight* projection = nullptr;
  AttentionShape shape;
  int gate_cols = 0;
  View q_norm = {}, k_norm = {};
  View angles;
  KvLayer cache;
};

struct AttentionOutput {  // block: attention, output projection, residual
  Attention attention;    // `out` is not looked at
  const Weight* projection = nullptr;
  MutView x;  // [rows, H], residual stream, updated in place
};

struct Mlp {  // block: rms_norm, gate and up, silu(gate) * up, down, residual
  MutView x;
  View gain;
  float eps = 0;
  const Weight* gate_up = nullptr;  // [2 F, H]: gate rows, then up rows
  const Weight* down = nullptr;     // [H, F]
};

struct Moe {  // block: rms_norm, router, top-k, experts, shared expert, residual
  MutView x;
  View gain;
  float eps = 0;
  MoeWeights weights;
};

struct Head {  // block: final norm, logits; `hidden` keeps the normalised rows (drafters read them)
  View x;      // [rows, H]
  View gain;
  float eps = 0;
  const Weight* weight = nullptr;  // [V, H]
  MutView hidden;                  // out [rows, H]
  MutView logits;                  // out [rows, V]
};

// Result of routing: ids ascending, weights to match. ids [rows, top_k] i32, weights [rows, top_k] f32.
struct MoeExperts {
  View x;  // [rows, H], normalised
  MoeWeights weights;
  View ids, choice_weights;
  MutView residual;  // [rows, H]: the mixture is added to it
};

// The largest step a model will run: what a backend sizes its own scratch by. Shapes a model lacks are all
// zero.
struct Reserve {
  int max_rows = 0;
  int max_positions = 0;
  AttentionShape attention = {};
  DeltaShape delta = {};
  std::span<const Weight* const> weights = {};
  int moe_top_k = 0;
};

// A number that no owner of steps had before: an address would come again.
uint64_t new_step_owner();

// A whole step of one model, or several that follow each other: the operations that `body` calls with
// `steps`, and the tokens it embeds.
struct StepRun {
  uint64_t owner = 0;  // who runs it, by new_step_owner(); other owners' steps are of another kind
  uint64_t state = 0;  // whose memory its sequences' state lies in, likewise
  std::span<const Step> steps = {};   // several: decode steps, each with as many rows of each sequence
  std::span<const int32_t> ids = {};  // what body passes to embed, or empty
  void (*body)(void*) = nullptr;
  void* context = nullptr;
};

// The card that a backend computes on, as its driver names it; no name where that is the host's processor.
struct DeviceCard {
  std::string name;                // "NVIDIA H200"
  int sm_mhz = 0, memory_mhz = 0;  // its highest clocks, of multiprocessors and of memory
};

class Backend {
 public:
  virtual ~Backend() = default;

  // "cpu/avx512 (2 threads)": the equality class of its results, for reports and ledgers.
  virtual std::string description() const = 0;
  virtual std::string name() const = 0;  // "reference", "cpu", ...
  virtual int threads() const = 0;
  virtual DeviceCard device_card() const { return {}; }
  // Bytes of device memory that an allocation may still take.
  virtual size_t available_bytes() const = 0;

  // Load time only. `purpose` is named in the error, with the bytes wanted and available.
  virtual Result<DeviceBuffer> allocate(size_t bytes, const std::string& purpose) = 0;
  virtual Result<std::unique_ptr<Weight>> pack(const PackRequest& request) = 0;
  // Sizes the backend's own scratch for the largest step a model will run, so that no step allocates.
  virtual Status reserve(const Reserve& largest) = 0;
  virtual size_t kv_page_bytes(const AttentionShape& shape) const = 0;

  virtual void copy_in(std::byte* device, std::span<const std::byte> host) = 0;
  virtual void copy_out(std::span<std::byte> host, const std::byte* device) = 0;
  virtual void zero(std::byte* device, size_t bytes) = 0;
  // Bandwidth of a plain read of device memory, measured now (about 50 ms); 0 where memory is the host's.
  virtual double read_gb_per_s() { return 0; }
  // The same of a copy within device memory: bytes read and bytes written.
  virtual double copy_gb_per_s() { return 0; }
  // Kernels that have been launched, or recorded, so far; 0 where nothing is launched.
  virtual uint64_t launches() const { return 0; }
  // Whether pack() takes matrices that are given by a formula (HostMatrix::random).
  virtual bool makes_random_weights() const { return false; }
  // Whether the host may read and write device memory in place between steps, so that nothing need be copied
  // out.
  virtual bool memory_is_host() const { return true; }

  // Runs whole steps. A backend may record what run.body does once per kind of step (same owner, same
  // shapes) and replay it with another step's rows: so everything in which two steps of a kind differ stands
  // in run.steps and run.ids, and what `body` leaves on the host would be left out. A run of one of these
  // steps inside `body` is a part of it.
  virtual void run(const StepRun& run) { run.body(run.context); }

  // ---- primitives ----
  // y[r] = row ids[r] of `table`, dequantised. Errors: none; ids are checked by the caller.
  void embed(const Weight& table, std::span<const int32_t> ids, MutView y);
  // The same of ids that an operation has left in device memory, [rows, 1] i32, contiguous: tokens of the
  // table, or -1, whose row of y is left as it is.
  void embed_chosen(const Weight& table, View ids, MutView y);
  // y[i] = x[rows[i]]; rows empty: y = x. y must not overlap x.
  void copy_rows(View x, std::span<const int32_t> rows, MutView y);
  // y = x w^T (+ bias). Sum per k-slice, slices added in a binary tree. y [rows, n].
  void linear(Path path, View x, const Weight& w, MutView y);
  // x_out += x w^T: the residual is added once, after the root of the tree.
  void linear_add(Path path, View x, const Weight& w, MutView residual);
  // y = x * rsqrt(mean(x^2) + eps) * gain. y may be x.
  void rms_norm(View x, View gain, float eps, MutView y);
  // y = silu(gate) * up; gate_up [rows, 2 F] gate first, y [rows, F].
  void silu_mul(View gate_up, MutView y);
  // y = rms_norm over each head of d_v columns * gain * silu(z). y may be o.
  void gated_norm(View o, View z, View gain, float eps, MutView y);
  // angles[r] = cos(p f_i) * m for i < rotary_dims / 2, then sin(p f_i) * m; p the row's position, f fp32
  // frequencies.
  void rope_angles(const Step& step, View frequencies, float m, MutView angles);
  void attention_prep(const Step& step, const AttentionPrep& args);
  void attention(const Step& step, const Attention& args);
  // After a step with `seq`: the keys and values of `rows`, a path of it from row 0 down, go to where a chain
  // has them, positions start, start + 1, .., as stored. What lay there and is not of the path is lost.
  void move_kv(const SeqStep& seq, const AttentionShape& shape, const KvLayer& cache,
               std::span<const uint8_t> rows);
  void block_conv(const Step& step, const BlockConv& args);  // no trees
  void delta_conv(const Step& step, const DeltaConv& args);
  void delta_step(const Step& step, const DeltaStep& args);
  // Folds pending tape rows into S and conv of every sequence of the step (rows are ignored): for export and
  // prefill.
  void fold_states(const Step& step, const DeltaShape& shape, const DeltaState& state);
  // Chooses top_k experts per row: highest logit first, ties to the lower id; ids ascending in the result.
  void moe_route(View logits, bool normalise, MutView ids, MutView weights);
  // residual += tree over slices of (sum over chosen experts in ascending id of weight * down slice, then the
  // shared expert's sigmoid(shared_gate x) * down slice).
  void moe_experts(Path path, const MoeExperts& args);
  // ids[r] = the token of the highest of logits[r][0 .. n), of equal ones (-0 equals 0) the first: what
  // greedy sampling chooses. -1 where one of them is NaN or infinite. ids [rows, 1] i32. Logit i is that of
  // token names[i] ([1, n or more] i32), or of token i where names is empty.
  void choose_greedy(View logits, int n, View names, MutView ids);
  // The k highest of logits[r][0 .. n), k <= n and kMostBest: values[r] and their tokens ids[r], the highest
  // first, of equal ones (-0 equals 0, and may become it) the first. ids[r][0] = -1 where one of the n is NaN
  // or infinite, and then the rest is undefined. values [rows, k], ids [rows, k] i32.
  static constexpr int kMostBest = 64;
  void choose_best(View logits, int n, MutView values, MutView ids);

  // ---- blocks ----
  void delta_inputs(const Step& step, const DeltaInputs& args,
                    Scratch& scratch);  // fills wide, qkv, heads, heads2
  void delta_output(const Step& step, const DeltaOutput& args,
                    Scratch& scratch);  // reads inner (y) and z in wide
  void attention_inputs(const Step& step, const AttentionInputs& args, Scratch& scratch);  // fills wide
  void attention_output(const Step& step, const AttentionOutput& args, Scratch& scratch);
  void mlp(const Step& step, const Mlp& args, Scratch& scratch);
  void moe(const Step& step, const Moe& args, Scratch& scratch);
  void head(const Head& args);

 protected:
  virtual void do_embed(const Weight& table, std::span<const int32_t> ids, MutView y) = 0;
  virtual void do_embed_chosen(const Weight& table, View ids, MutView y) = 0;
  virtual void do_copy_rows(View x, std::span<const int32_t> rows, MutView y) = 0;
  virtual void do_linear(Path path, View x, const Weight& w, MutView y) = 0;
  virtual void do_linear_add(Path path, View x, const Weight& w, MutView residual) = 0;
  virtual void do_rms_norm(View x, View gain, float eps, MutView y) = 0;
  virtual void do_silu_mul(View gate_up, MutView y) = 0;
  virtual void do_gated_norm(View o, View z, View gain, float eps, MutView y) = 0;
  virtual void do_rope_angles(const Step& step, View frequencies, float m, MutView angles) = 0;
  virtual void do_attention_prep(const Step& step, const AttentionPrep& args) = 0;
  virtual void do_attention(const Step& step, const Attention& args) = 0;
  virtual void do_move_kv(const SeqStep& seq, const AttentionShape& shape, const KvLayer& cache,
                          std::span<const uint8_t> rows) = 0;
  virtual void do_block_conv(const Step& step, const BlockConv& args) = 0;
  virtual void do_delta_conv(const Step& step, const DeltaConv& args) = 0;
  virtual void do_delta_step(const Step& step, const DeltaStep& args) = 0;
  virtual void do_fold_states(const Step& step, const DeltaShape& shape, const DeltaState& state) = 0;
  virtual void do_moe_route(View logits, bool normalise, MutView ids, MutView weights) = 0;
  virtual void do_moe_experts(Path path, const MoeExperts& args) = 0;
  virtual void do_choose_greedy(View logits, int n, View names, MutView ids) = 0;
  virtual void do_choose_best(View logits, int n, MutView values, MutView ids) = 0;

  virtual void do_delta_inputs(const Step& step, const DeltaInputs& args, Scratch& scratch);
  virtual void do_delta_output(const Step& step, const DeltaOutput& args, Scratch& scratch);
  virtual void do_attention_inputs(const Step& step, const AttentionInputs& args, Scratch& scratch);
  virtual void do_attention_output(const Step& step, const AttentionOutput& args, Scratch& scratch);
  virtual void do_mlp(const Step& step, const Mlp& args, Scratch& scratch);
  virtual void do_moe(const Step& step, const Moe& args, Scratch& scratch);
  virtual void do_head(const Head& args);
};

}  // namespace tandem
