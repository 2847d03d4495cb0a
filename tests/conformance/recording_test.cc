// Backend::run: a backend may record a step and replay it, and nobody can tell.
#include <cstring>

#include "conformance/harness.h"

namespace tandem::conformance {
namespace {

constexpr AttentionShape kShape{.n_heads = 4, .n_kv_heads = 2, .d_head = 32, .rotary_dims = 32};
constexpr int kColumns = 4 * 32 + 2 * 2 * 32, kPages = 3;

// Embeds tokens as rows [q | k | v] and attends, always from and to the same places.
class Toy {
 public:
  Toy(Backend& backend, const Weight& table, Memory& pages)
      : backend_(&backend),
        table_(&table),
        pages_(&pages),
        rows_(backend, size_t(kMaxDecodeRows) * kColumns * 4),
        angles_(backend, size_t(kMaxDecodeRows) * 32 * 4),
        out_(backend, size_t(kMaxDecodeRows) * 128 * 4),
        frequencies_(backend, Rows(1, 16, 0.1f)) {}

  // Directly, or by run(): one step of `ids` at `start`.
  Rows step(int start, const std::vector<int32_t>& ids, bool by_run, uint64_t state = 0) {
    const std::vector<int32_t> page_ids = {2, 0, 1};
    const int n = int(ids.size());
    const SeqStep seq{.n_rows = n, .start = start, .pages = page_ids};
    Body body{this, {.path = Path::decode, .n_rows = n, .seqs = {&seq, 1}}, ids};
    if (by_run) {
      backend_->run({.owner = owner_,
                     .state = state,
                     .steps = {&body.step, 1},
                     .ids = body.ids,
                     .body = [](void* b) { static_cast<Body*>(b)->toy->work(*static_cast<Body*>(b)); },
                     .context = &body});
    } else {
      work(body);
    }
    return out_.read_floats(0, n, kShape.q_dim());
  }
  // A chain from `id` on: each step's choice is the next one's token, which the host does not see before the
  // end.
  std::vector<int32_t> chain(int start, int32_t id, int n, bool by_run) {
    const std::vector<int32_t> page_ids = {2, 0, 1};
    std::vector<SeqStep> seqs;
    for (int t = 0; t < n; ++t) seqs.push_back({.n_rows = 1, .start = start + t, .pages = page_ids});
    std::vector<Step> steps;
    for (int t = 0; t < n; ++t) steps.push_back({.n_rows = 1, .seqs = {&seqs[size_t(t)], 1}});
    struct Chain {
      Toy* toy;
      std::span<const Step> steps;
      std::span<const int32_t> first;
    } body{this, steps, {&id, 1}};
    const auto work = [](void* c) {
      const Chain& chain = *static_cast<Chain*>(c);
      Toy& t = *chain.toy;
      for (size_t i = 0; i < chain.steps.size(); ++i) {
        const MutView rows = view(t.rows_, 1, kColumns);
        if (i == 0) {
          t.backend_->embed(*t.table_, chain.first, rows);
        } else {
          t.backend_->embed_chosen(*t.table_, t.token(i - 1), rows);
        }
        t.attend(chain.steps[i]);
        t.backend_->choose_greedy(view(t.out_, 1, kShape.q_dim()), kTokens, {}, t.token(i));
      }
    };
    if (by_run) {
      backend_->run(
          {.owner = chain_owner_, .steps = steps, .ids = body.first, .body = work, .context = &body});
    } else {
      work(&body);
    }
    std::vector<int32_t> tokens = chosen_.read();
    tokens.resize(size_t(n));
    return tokens;
  }
  void use(Memory& pages) { pages_ = &pages; }
  static constexpr int kTokens = 50;

 private:
  struct Body {
    Toy* toy;
    Step step;
    std::span<const int32_t> ids;
  };
  static MutView view(Memory& m, int rows, int cols) { return {m.data(), DType::f32, rows, cols, cols}; }
  MutView token(size_t i) {
    MutView one = chosen_.view().col_range(int(i), 1);
    one.stride = 1;
    return one;
  }
  void work(const Body& b) {
    backend_->embed(*table_, b.ids, view(rows_, b.step.n_rows, kColumns));
    attend(b.step);
  }
  void attend(const Step& step) {
    const int n = step.n_rows;
    const KvLayer cache{pages_->data(), backend_->kv_page_bytes(kShape)};
    const MutView rows = view(rows_, n, kColumns), angles = view(angles_, n, 32);
    backend_->rope_angles(step, frequencies_, 1, angles);
    backend_->attention_prep(step, {.shape = kShape, .projection = rows, .angles = angles, .cache = cache});
    backend_->attention(step, {.shape = kShape,
                               .q = rows.col_range(0, kShape.q_dim()),
                               .scale = 0.2f,
                               .cache = cache,
                               .out = view(out_, n, kShape.q_dim())});
  }

  Backend* backend_;
  const Weight* table_;
  Memory* pages_;
  Memory rows_, angles_, out_;
  IntsOnDevice chosen_{*backend_, 1, kMaxDecodeRows};
  OnDevice frequencies_;
  const uint64_t owner_ = new_step_owner(), chain_owner_ = new_step_owner();
};

class Recording : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Backend> backend_ = make(GetParam());
  Rng rng_{91000};
  RandomMatrix table_{rng_, Toy::kTokens, kColumns, {.dtype = DType::f32}};
  std::unique_ptr<Weight> weight_ = pack(*backend_, {&table_});
  const size_t bytes_ = kPages * backend_->kv_page_bytes(kShape);
  std::vector<int32_t> tokens(int n) {
    std::vector<int32_t> ids;
    for (int i = 0; i < n; ++i) ids.push_back(rng_.uniform(0, 49));
    return ids;
  }
};

TEST_P(Recording, AReplayedStepReadsItsOwnPositionPagesAndTokens) {
  Memory pages(*backend_, bytes_), plain_pages(*backend_, bytes_);
  Toy recorded(*backend_, *weight_, pages), plain(*backend_, *weight_, plain_pages);
  plain.step(0, tokens(32), false);  // whatever scratch the operations need is there now, and recordings last
  int start = 0;
  for (const int n : {1, 1, 1, 3, 1, 3, 3, 1, 32, 32, 32, 1, 3}) {
    SCOPED_TRACE("position " + std::to_string(start) + ", rows " + std::to_string(n));
    const std::vector<int32_t> ids = tokens(n);
    ASSERT_TRUE(same_bits(recorded.step(start, ids, true), plain.step(start, ids, false)));
    start += n;
  }
}

TEST_P(Recording, StepsOfOtherMemoryAreOfAnotherKind) {
  Memory first(*backend_, bytes_), second(*backend_, bytes_), plain_pages(*backend_, bytes_);
  Toy recorded(*backend_, *weight_, first), plain(*backend_, *weight_, plain_pages);
  const uint64_t one = new_step_owner(), two = new_step_owner();
  const std::vector<int32_t> ids = tokens(1);
  plain.step(0, ids, false);  // whatever scratch the operations need is there now, and recordings last
  for (int i = 0; i < 3; ++i) recorded.step(0, ids, true, one);
  const std::vector<std::byte> before = first.read(0, bytes_);
  recorded.use(second);
  const std::vector<int32_t> others = {(ids[0] + 1) % 50};
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(same_bits(recorded.step(0, others, true, two), plain.step(0, others, false)));
  }
  EXPECT_TRUE(same_bits(first.read(0, bytes_), before)) << "a step wrote to memory that is not its own";
  EXPECT_TRUE(same_bits(second.read(0, bytes_), plain_pages.read(0, bytes_)));
}

TEST_P(Recording, StepsOfARunAreReplayedTogether) {
  Memory pages(*backend_, bytes_), plain_pages(*backend_, bytes_);
  Toy recorded(*backend_, *weight_, pages), plain(*backend_, *weight_, plain_pages);
  plain.step(0, tokens(32), false);
  plain.chain(0, 0, 9, true);  // room for the tables of so many steps
  int start = 0;
  for (const int n : {5, 5, 5, 2, 2, 9, 2, 9, 9, 5, 60, 9}) {
    if (n > 9) {  // on to other pages
      recorded.step(start, tokens(32), true);
      start += 32;
      continue;
    }
    SCOPED_TRACE("position " + std::to_string(start) + ", steps " + std::to_string(n));
    const int32_t id = rng_.uniform(0, Toy::kTokens - 1);
    const std::vector<int32_t> got = recorded.chain(start, id, n, true);
    std::vector<std::byte> all = pages.read(0, bytes_);
    EXPECT_EQ(got, recorded.chain(start, id, n, false));
    EXPECT_TRUE(same_bits(pages.read(0, bytes_), all));
    start += n;
  }
}

// Owners come and go: what was recorded of kinds that went is made anew.
TEST_P(Recording, MoreKindsOfStepsThanABackendKeeps) {
  Memory out(*backend_, kColumns * 4), plain_out(*backend_, kColumns * 4);
  struct Body {
    Backend* backend;
    const Weight* table;
    std::vector<int32_t> ids;
    MutView row;
    void work() const { backend->embed(*table, ids, row); }
  };
  const SeqStep seq{.n_rows = 1};
  const Step step{.path = Path::decode, .n_rows = 1, .seqs = {&seq, 1}};
  const auto row = [&](uint64_t owner) {
    const std::vector<int32_t> ids = tokens(1);
    Body body{backend_.get(), weight_.get(), ids, {out.data(), DType::f32, 1, kColumns, kColumns}};
    backend_->run({.owner = owner,
                   .steps = {&step, 1},
                   .ids = body.ids,
                   .body = [](void* b) { static_cast<Body*>(b)->work(); },
                   .context = &body});
    Body{backend_.get(), weight_.get(), ids, {plain_out.data(), DType::f32, 1, kColumns, kColumns}}.work();
    return same_bits(out.read_floats(0, 1, kColumns), plain_out.read_floats(0, 1, kColumns));
  };
  const uint64_t often = new_step_owner();
  std::vector<uint64_t> others;
  for (int i = 0; i < 600; ++i) others.push_back(new_step_owner());
  for (int turn = 0; turn < 2; ++turn) {
    for (const uint64_t owner : others) {
      for (int i = 0; i < 2; ++i) ASSERT_TRUE(row(owner));
      ASSERT_TRUE(row(often));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Recording, testing::ValuesIn(all_backends()), test_name);

}  // namespace
}  // namespace tandem::conformance
