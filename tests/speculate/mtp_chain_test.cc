// Greedy chains of an MTP head are chosen by the backend, token after token without the host. Their tokens
// are those of a head that draws from its best logit alone, which the host does.
#include <gtest/gtest.h>

#include "model/mtp_checkpoint.h"
#include "speculate/mtp_target.h"
#ifdef TANDEM_CUDA_EMULATED
#include "backend/cuda/cuda_backend.h"
#else
#include "support/backends.h"
#endif

namespace tandem {
namespace {

std::vector<std::unique_ptr<Backend>> backends() {
  std::vector<std::unique_ptr<Backend>> all;
#ifdef TANDEM_CUDA_EMULATED
  all.push_back(value_or_throw(make_cuda_backend(DeltaForm::exact)));
#else
  for (const BackendOptions& options : all_backends()) all.push_back(value_or_throw(make_backend(options)));
#endif
  return all;
}

// Rounds of several sequences that want chains of any length, all of them or a few.
void compare(Target& target, MtpDrafter& greedy, MtpDrafter& drawn, int n_tokens, int rounds) {
  const SamplingParams best, draw_best{.temperature = 1, .top_k = 1};
  MtpDrafter* const all[] = {&greedy, &drawn};
  Rng rng{3};
  constexpr int kSequences = 3;
  for (int i = 0; i < kSequences; ++i) {
    target.begin(random_tokens(rng, 5 + 7 * i, target.n_vocab()), {});
    target.watch(i, greedy, best, n_tokens);
    target.watch(i, drawn, draw_best, n_tokens);
    target.prefill(i, 64, all);
  }
  for (int r = 0; r < rounds; ++r) {
    std::vector<Draft> drafts(kSequences), by_host(kSequences);
    std::vector<DraftRequest> requests;
    const bool together = r % 2 == 0;  // steps that recur
    for (int i = 0; i < kSequences; ++i) {
      if (!together && rng() % 3 == 0) continue;
      requests.push_back({.slot = i,
                          .max = together ? 4 : uniform(rng, 1, 6),
                          .text = target.text(i),
                          .draft = &drafts[size_t(i)]});
    }
    std::shuffle(requests.begin(), requests.end(), rng);
    greedy.propose(requests);
    for (DraftRequest& request : requests) {
      EXPECT_EQ(request.draft->n, request.max);
      request.draft = &by_host[size_t(request.slot)];
    }
    drawn.propose(requests);
    for (int i = 0; i < kSequences; ++i) {
      const Draft &got = drafts[size_t(i)], &want = by_host[size_t(i)];
      ASSERT_EQ(text_of(got), text_of(want)) << "round " << r << ", sequence " << i;
      target.round(i, {got.tokens.data(), size_t(got.n)}, uniform(rng, 0, got.n), all);
    }
  }
  for (int i = kSequences; i-- > 0;) target.end(i, all);
}

TEST(MtpChains, AreThoseThatTheHostChooses) {
  TempFolder folder;
  write_mtp_checkpoint({.family = "qwen3_5"}, folder);
  for (std::unique_ptr<Backend>& backend : backends()) {
    SCOPED_TRACE(backend->description());
    Target target(folder.path(), std::move(backend));
    std::vector<TokenId> every_other;
    for (TokenId id = 1; id < target.n_vocab(); id += 2) every_other.push_back(id);
    const int n_tokens = target.n_vocab() * 3 / 4;
    for (const MtpOptions options : {MtpOptions{true, true}, MtpOptions{true, false}}) {
      compare(target, *target.drafter(options), *target.drafter(options), 0, 8);
      if (HasFatalFailure()) return;
    }
    compare(target, *target.drafter({}, every_other), *target.drafter({}, every_other), n_tokens, 6);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace tandem
