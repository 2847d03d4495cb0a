// After reserve(), no operation of a step allocates: every operation once, with shapes up to the reserved
// ones.
#include <array>

#include "cpu_ops_test_util.h"
#include "support/count_allocations.h"

namespace tandem::cpu {
namespace {

// n x k of 8-bit codes in groups of 64, all scales 1/16, all biases 0.
struct Quantised {
  std::vector<std::byte> codes, scales, biases;
  HostMatrix host;
  Quantised(Random& random, int n, int k)
      : codes(size_t(n) * size_t(k)), scales(size_t(n) * size_t(k / 64) * 4), biases(scales.size()) {
    for (std::byte& c : codes) c = std::byte(pick(random, 0, 255));
    const float scale = 1.0f / 16;
    for (size_t i = 0; i < scales.size(); i += 4) std::memcpy(&scales[i], &scale, 4);
    host = {.name = "w",
            .n = n,
            .k = k,
            .data = codes.data(),
            .bits = 8,
            .group = 64,
            .scale_dtype = DType::f32,
            .scales = scales.data(),
            .biases = biases.data()};
  }
  std::unique_ptr<Weight> pack(Backend& backend, int n_experts, int n_slices) const {
    const RowRun run{&host, 0, host.n};
    auto packed = backend.pack(
        {.name = "w", .rows = {&run, 1}, .n_experts = n_experts, .n_slices = n_slices, .bias = {}});
    EXPECT_TRUE(packed.ok());
    return std::move(packed).value();
  }
};

TEST(CpuStep, AllocatesNothingAfterReserve) {
  Random random(1);
  constexpr int kRows = 40, kHidden = 128, kInner = 128, kExperts = 6, kTopK = 2;
  constexpr AttentionShape kAttention{4, 2, 32, 16};
  constexpr DeltaShape kDelta{2, 4, 32, 16};
  const int n_pages = 40;  // three splits
  const Quantised in(random, 2 * kInner, kHidden), out(random, kHidden, kInner), table(random, 300, kHidden);
  const Quantised gate_up(random, kExperts * 2 * kInner, kHidden), down(random, kExperts * kHidden, kInner),
      gate(random, 1, kHidden), router(random, kExperts, kHidden);
  for (const NamedBackend& b : all_backends()) {
    Backend& backend = *b.backend;
    const auto w_in = in.pack(backend, 1, 1), w_out = out.pack(backend, 1, 2),
               w_table = table.pack(backend, 1, 1);
    const auto w_gate_up = gate_up.pack(backend, kExperts, 1), w_down = down.pack(backend, kExperts, 2);
    const auto w_gate = gate.pack(backend, 1, 1), w_router = router.pack(backend, 1, 1);
    const std::array<const Weight*, 7> weights{w_in.get(),   w_out.get(),  w_table.get(), w_gate_up.get(),
                                               w_down.get(), w_gate.get(), w_router.get()};
    ASSERT_TRUE(backend
                    .reserve({.max_rows = kRows,
                              .max_positions = n_pages * kPageTokens,
                              .attention = kAttention,
                              .delta = kDelta,
                              .weights = weights,
                              .moe_top_k = kTopK})
                    .ok());

    Rows x = normal_rows(random, kRows, kHidden), norm(kRows, kHidden), wide(kRows, 2 * kInner),
         inner(kRows, kInner), logits(kRows, kExperts), choice_weights(kRows, kTopK);
    const Rows gain = normal_rows(random, 1, kHidden), head_gain = normal_rows(random, 1, kDelta.d_v);
    std::vector<int32_t> ids(kRows, 299), choice(kRows * kTopK);
    const MutView choice_view{choice.data(), DType::i32, kRows, kTopK, kTopK};
    std::vector<int32_t> pages;
    for (int i = 0; i < n_pages; ++i) pages.push_back(i);
    std::vector<std::byte> cache(backend.kv_page_bytes(kAttention) * size_t(n_pages));
    const KvLayer kv{cache.data(), backend.kv_page_bytes(kAttention)};
    Rows projection = normal_rows(random, kRows, 2 * kAttention.q_dim() + 2 * kAttention.kv_dim()),
         angles(kRows, kAttention.rotary_dims), attended(kRows, kAttention.q_dim());
    const Rows frequencies(1, kAttention.rotary_dims / 2, 0.1f), q_norm(1, kAttention.d_head, 1);
    Rows delta_in = normal_rows(random, kRows, kDelta.projection_dim()), qkv(kRows, kDelta.conv_dim()),
         log_decay(kRows, kDelta.n_v_heads), beta(kRows, kDelta.n_v_heads), y(kRows, kDelta.value_dim());
    const Rows conv_weight = normal_rows(random, kDelta.conv_dim(), kConvTaps), a_log(1, kDelta.n_v_heads),
               dt_bias(1, kDelta.n_v_heads);
    std::vector<float> memory[6];
    const auto floats = [&](int i, int n) {
      memory[i].assign(size_t(n), 0.0f);
      return memory[i].data();
    };
    const int tape = 2 * kMaxDecodeRows;
    const DeltaState state{.s = floats(0, kDelta.n_v_heads * kDelta.d_v * kDelta.d_k),
                           .conv = floats(1, 3 * kDelta.conv_dim()),
                           .tape_g = floats(2, tape * kDelta.n_v_heads),
                           .tape_k = floats(3, tape * kDelta.key_dim()),
                           .tape_delta = floats(4, tape * kDelta.value_dim()),
                           .tape_conv = floats(5, tape * kDelta.conv_dim())};
    const uint8_t pending[] = {0, 2};

    const int64_t before = allocations_so_far();
    for (const Path path : {Path::prefill, Path::decode}) {
      const int n = path == Path::prefill ? kRows : kMaxDecodeRows;
      const SeqStep seq{.first_row = 0,
                        .n_rows = n,
                        .start = n_pages * kPageTokens - kRows,
                        .pending = path == Path::prefill ? std::span<const uint8_t>{} : std::span(pending),
                        .pages = pages};
      const Step step{.path = path, .n_rows = n, .seqs = {&seq, 1}};
      const auto rows = [&](Rows& r) { return r.mut().row_range(0, n); };
      backend.embed(*w_table, std::span(ids).first(size_t(n)), rows(x));
      backend.rms_norm(rows(x), gain.view(), 1e-6f, rows(norm));
      backend.linear(path, rows(norm), *w_in, rows(wide));
      backend.silu_mul(rows(wide), rows(inner));
      backend.linear_add(path, rows(inner), *w_out, rows(x));
      backend.linear(path, rows(norm), *w_router, rows(logits));
      backend.moe_route(rows(logits), true, choice_view.row_range(0, n), rows(choice_weights));
      backend.moe_experts(path, {.x = rows(norm),
                                 .weights = {.gate_up = w_gate_up.get(),
                                             .down = w_down.get(),
                                             .shared_gate_up = w_in.get(),
                                             .shared_down = w_out.get(),
                                             .shared_gate = w_gate.get(),
                                             .top_k = kTopK},
                                 .ids = choice_view.row_range(0, n),
                                 .choice_weights = rows(choice_weights),
                                 .residual = rows(x)});
      backend.rope_angles(step, frequencies.view(), 1, rows(angles));
      backend.attention_prep(step, {.shape = kAttention,
                                    .projection = rows(projection),
                                    .gate_cols = kAttention.q_dim(),
                                    .q_norm = q_norm.view(),
                                    .k_norm = q_norm.view(),
                                    .eps = 1e-6f,
                                    .angles = rows(angles),
                                    .cache = kv});
      backend.attention(step, {.shape = kAttention,
                               .q = rows(projection).col_range(0, kAttention.q_dim()),
                               .gate = rows(projection).col_range(kAttention.q_dim(), kAttention.q_dim()),
                               .scale = 0.1f,
                               .cache = kv,
                               .out = rows(attended)});
      backend.delta_conv(step, {.shape = kDelta,
                                .projection = rows(delta_in),
                                .conv_weight = conv_weight.view(),
                                .a_log = a_log.view(),
                                .dt_bias = dt_bias.view(),
                                .state = state,
                                .qkv = rows(qkv),
                                .log_decay = rows(log_decay),
                                .beta = rows(beta)});
      backend.delta_step(step, {.shape = kDelta,
                                .qkv = rows(qkv),
                                .log_decay = rows(log_decay),
                                .beta = rows(beta),
                                .state = state,
                                .y = rows(y)});
      backend.gated_norm(rows(y), rows(delta_in).col_range(0, kDelta.value_dim()), head_gain.view(), 1e-6f,
                         rows(y));
      backend.fold_states(step, kDelta, state);
    }
    EXPECT_EQ(allocations_so_far(), before) << b.name;
  }
}

}  // namespace
}  // namespace tandem::cpu
