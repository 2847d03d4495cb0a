// Greedy chains of an MTP head are chosen by the backend, token after token without the host, and draws of a
// top-k are made from the best logits alone. Their tokens are those that the host chooses from the whole row,
// as it does for drafters whose distributions are wanted.
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
void compare(Target& target, MtpDrafter& by_backend, MtpDrafter& by_host, const SamplingParams& sampling,
             int n_tokens, int rounds) {
  SamplingParams of_host = sampling;
  if (sampling.temperature == 0) of_host = {.temperature = 1, .top_k = 1};
  MtpDrafter* const all[] = {&by_backend, &by_host};
  Rng rng{3};
  constexpr int kSequences = 3;
  for (int i = 0; i < kSequences; ++i) {
    target.begin(random_tokens(rng, 5 + 7 * i, target.n_vocab()), {});
    target.watch(i, by_backend, sampling, n_tokens, false);
    target.watch(i, by_host, of_host, n_tokens, true);
    target.prefill(i, 64, all);
  }
  for (int r = 0; r < rounds; ++r) {
    std::vector<Draft> drafts(kSequences), drafts_of_host(kSequences);
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
    by_backend.propose(requests);
    for (DraftRequest& request : requests) {
      EXPECT_EQ(request.draft->n, request.max);
      request.draft = &drafts_of_host[size_t(request.slot)];
    }
    by_host.propose(requests);
    for (int i = 0; i < kSequences; ++i) {
      const Draft &got = drafts[size_t(i)], &want = drafts_of_host[size_t(i)];
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
      compare(target, *target.drafter(options), *target.drafter(options), {}, 0, 6);
      if (HasFatalFailure()) return;
    }
    compare(target, *target.drafter({}, every_other), *target.drafter({}, every_other), {}, n_tokens, 4);
    if (HasFatalFailure()) return;
    const SamplingParams drawn{.temperature = 0.8f, .top_k = 12, .top_p = 0.95, .seed = 4};
    compare(target, *target.drafter(), *target.drafter(), drawn, n_tokens, 4);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace tandem
