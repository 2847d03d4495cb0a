#include "cli/bench/load_figures.h"

#include <gtest/gtest.h>

#include "cli/bench/bench.h"
#include "cli/bench/load_client.h"
#include "cli/bench/load_prompts.h"

namespace tandem::bench {
namespace {

Answer answer(double start, std::vector<double> arrived, double end) {
  Answer a;
  a.start = start;
  a.arrived = std::move(arrived);
  a.end = end;
  a.tokens = int(a.arrived.size());
  a.prompt_tokens = 10;
  return a;
}

Answer failed() {
  Answer a = answer(0, {100, 200}, 300);
  a.error = "429";
  return a;
}

TEST(LoadFigures, WindowsAreThoseOfTheSpecification) {
  // Two answers that overlap from 2 to 5.
  const std::vector<Answer> answers{answer(0, {1, 2, 3, 4, 5}, 6), failed(), answer(0.5, {2, 3, 5, 7}, 8)};
  const LoadFigures f = LoadFigures::of(answers);
  EXPECT_EQ(f.n_requests, 3);
  EXPECT_EQ(f.n_errors, 1);
  EXPECT_EQ(f.tokens, 9);
  EXPECT_EQ(f.prompt_tokens, 20);
  EXPECT_DOUBLE_EQ(*f.aggregate, 9 / 6.0);
  EXPECT_DOUBLE_EQ(*f.aggregate_steady, 5 / 3.0);  // 3, 4, 5 and 3, 5
  EXPECT_DOUBLE_EQ(*f.end_to_end, 9 / 8.0);
  EXPECT_DOUBLE_EQ(*f.prefill_aggregate, 20 / 2.0);
  EXPECT_TRUE(f.coherent);
  EXPECT_EQ(decode_speeds(answers), (std::vector<double>{1, 0.6}));
  EXPECT_EQ(ttft_ms(answers), (std::vector<double>{1000, 1500}));
  EXPECT_EQ(prefill_speeds(answers), (std::vector<double>{10, 10 / 1.5}));
  EXPECT_EQ(tpot_ms(answers)[0], 1000);
}

TEST(LoadFigures, AnswersThatNeverRanTogetherHaveNoSteadyWindow) {
  const std::vector<Answer> answers{answer(0, {1, 2}, 2), answer(2, {3, 4}, 4)};
  const LoadFigures f = LoadFigures::of(answers);
  EXPECT_FALSE(f.aggregate_steady);
  EXPECT_DOUBLE_EQ(*f.aggregate, 4 / 3.0);
}

TEST(LoadFigures, EventsOfSeveralTokensCountAsMany) {
  Answer a = answer(0, {1, 2, 3}, 3), b = answer(0, {1, 2, 3}, 3);
  a.tokens = 9;
  const LoadFigures f = LoadFigures::of(std::vector<Answer>{a, b});
  EXPECT_DOUBLE_EQ(*f.aggregate_steady, (2 * 3 + 2) / 2.0);
  EXPECT_DOUBLE_EQ(decode_speeds({&a, 1})[0], 8 / 2.0);
}

TEST(LoadFigures, NothingIsMadeUpWhereNothingCame) {
  for (const std::vector<Answer>& answers : {std::vector<Answer>{}, {failed()}, {answer(1, {}, 1)}}) {
    const LoadFigures f = LoadFigures::of(answers);
    EXPECT_FALSE(f.aggregate || f.aggregate_steady || f.end_to_end || f.prefill_aggregate);
    EXPECT_TRUE(ttft_ms(answers).empty());
    EXPECT_TRUE(gaps_ms(answers, false).empty());
  }
  Answer whole = answer(1, {}, 3);  // not streamed
  whole.tokens = 10;
  const LoadFigures f = LoadFigures::of({&whole, 1});
  EXPECT_FALSE(f.aggregate);
  EXPECT_DOUBLE_EQ(*f.end_to_end, 5);
}

TEST(LoadFigures, CachedPromptTokensWereNotComputed) {
  Answer a = answer(0, {2}, 2);
  a.cached_tokens = 6;
  EXPECT_EQ(prefill_speeds({&a, 1}), std::vector<double>{2});
}

TEST(LoadFigures, EventsThatCameTogetherAreOneRound) {
  const Answer a = answer(0, {1, 1, 1.000001, 1.5, 1.5}, 2);
  EXPECT_EQ(gaps_ms({&a, 1}, false).size(), 4u);
  ASSERT_EQ(gaps_ms({&a, 1}, true).size(), 1u);
  EXPECT_NEAR(gaps_ms({&a, 1}, true)[0], 500, 1);
}

TEST(Percentile, LiesBetweenItsNeighbours) {
  const std::vector<double> values{4, 1, 3, 2};
  EXPECT_DOUBLE_EQ(percentile(values, 0), 1);
  EXPECT_DOUBLE_EQ(percentile(values, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(percentile(values, 0.99), 3.97);
  EXPECT_DOUBLE_EQ(percentile(values, 1), 4);
  EXPECT_DOUBLE_EQ(percentile({7}, 0.99), 7);
}

TEST(Endpoint, UrlsAreReadWithAndWithoutTheirVersion) {
  for (const char* url : {"http://host:81", "http://host:81/", "http://host:81/v1", "host:81/v1/"}) {
    const Result<Endpoint> e = Endpoint::parse(url);
    ASSERT_TRUE(e.ok()) << url;
    EXPECT_EQ(e->host, "host");
    EXPECT_EQ(e->port, 81);
    EXPECT_EQ(e->prefix, "");
  }
  EXPECT_EQ(Endpoint::parse("http://[::1]:9/api/v1")->host, "::1");
  EXPECT_EQ(Endpoint::parse("http://[::1]:9/api/v1")->prefix, "/api");
  EXPECT_EQ(Endpoint::parse("http://host")->port, 80);
  for (const char* url :
       {"https://host", "ftp://host", "http://", "http://host:x", "http://host:70000", ":80"}) {
    const Result<Endpoint> e = Endpoint::parse(url);
    ASSERT_FALSE(e.ok()) << url;
    EXPECT_NE(e.error().message.find(url), std::string::npos);
  }
}

// A tokenizer of one token for each byte.
Result<std::vector<TokenId>> bytes_of(const std::string& text) {
  return std::vector<TokenId>(text.begin(), text.end());
}

TEST(PromptWriter, PromptsAreOfExactLengthAndDifferFromTheFirstWordsOn) {
  for (const auto kind : {PromptWriter::Kind::natural, PromptWriter::Kind::code, PromptWriter::Kind::atom}) {
    PromptWriter writer(kind, 1);
    for (const int n : {1, 100, 5000}) {
      const Result<Prompt> a = writer.of_tokens(n, bytes_of), b = writer.of_tokens(n, bytes_of);
      ASSERT_TRUE(a.ok() && b.ok());
      EXPECT_EQ(a->ids.size(), size_t(n));
      EXPECT_NE(a->text.substr(0, 12), b->text.substr(0, 12));
    }
  }
}

}  // namespace
}  // namespace tandem::bench
