#include "text/pretokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "random_text.h"
#include "text/pretokenizer_regex.h"

namespace tandem {
namespace {

const std::string kContractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|";
const std::string kTail = R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kQwen2 =
    kContractions + R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)" + kTail;
const std::string kQwen35 =
    kContractions + R"([^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*)" + kTail;
const std::string kLlama3 =
    kContractions + R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)" + kTail;

using Pieces = std::vector<std::string>;

Pieces scanned(const std::string& pattern, const std::string& text) {
  const auto rules = known_pattern(pattern);
  EXPECT_TRUE(rules);
  Pieces pieces;
  for (size_t at = 0; at < text.size();) {
    const size_t end = scan_piece(text, at, *rules);
    EXPECT_GT(end, at);
    pieces.push_back(text.substr(at, end - at));
    at = end;
  }
  return pieces;
}

Pieces matched(const SplitRegex& regex, const std::string& text) {
  Pieces pieces;
  const Status status = regex.for_each(
      text, [&](size_t begin, size_t end) { pieces.push_back(text.substr(begin, end - begin)); });
  EXPECT_TRUE(status.ok()) << status.error().message;
  return pieces;
}

const SplitRegex& compiled(const std::string& pattern) {
  static std::map<std::string, std::shared_ptr<const SplitRegex>> cache;
  auto& entry = cache[pattern];
  if (!entry) entry = *SplitRegex::compile(pattern);
  return *entry;
}

RC_GTEST_PROP(Scanner, CutsAsTheQwen2PatternDoes, ()) {
  const std::string text = *any_text();
  RC_ASSERT(scanned(kQwen2, text) == matched(compiled(kQwen2), text));
}

RC_GTEST_PROP(Scanner, CutsAsTheQwen35PatternDoes, ()) {
  const std::string text = *any_text();
  RC_ASSERT(scanned(kQwen35, text) == matched(compiled(kQwen35), text));
}

RC_GTEST_PROP(Scanner, CutsAsTheLlama3PatternDoes, ()) {
  const std::string text = *any_text();
  RC_ASSERT(scanned(kLlama3, text) == matched(compiled(kLlama3), text));
}

TEST(Scanner, CutsTheCasesThatDifferBetweenTheFamilies) {
  EXPECT_EQ(scanned(kQwen2, "हिन्दी 1234"), (Pieces{"ह", "िन", "्द", "ी", " ", "1", "2", "3", "4"}));
  EXPECT_EQ(scanned(kQwen35, "हिन्दी 1234"), (Pieces{"हिन्दी", " ", "1", "2", "3", "4"}));
  EXPECT_EQ(scanned(kLlama3, "x 1234"), (Pieces{"x", " ", "123", "4"}));
  EXPECT_EQ(scanned(kQwen2, "it's WE'LL o'ſ"), (Pieces{"it", "'s", " WE", "'LL", " o", "'ſ"}));
  EXPECT_EQ(scanned(kQwen2, "a   b \n\n  c  "), (Pieces{"a", "  ", " b", " \n\n", " ", " c", "  "}));
  EXPECT_EQ(scanned(kQwen2, " ...\r\n\r\nx"), (Pieces{" ...\r\n\r\n", "x"}));
}

Pieces cut(const PreTokenizer& pretokenizer, const std::string& text) {
  std::vector<std::string_view> pieces;
  const Status status = pretokenizer.cut(text, pieces);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return Pieces(pieces.begin(), pieces.end());
}

TEST(PreTokenizer, KeepsMatchesGapsOrBothAndCutsInSteps) {
  PreTokenizer all, matches, gaps, steps;
  ASSERT_TRUE(all.add_split(R"(\d+)", PreTokenizer::Keep::all).ok());
  ASSERT_TRUE(matches.add_split(R"(\d+)", PreTokenizer::Keep::matches).ok());
  ASSERT_TRUE(gaps.add_split(R"(\d+)", PreTokenizer::Keep::gaps).ok());
  ASSERT_TRUE(steps.add_split(R"(\d{1,2})", PreTokenizer::Keep::all).ok());
  ASSERT_TRUE(steps.add_split(kQwen2, PreTokenizer::Keep::all).ok());
  EXPECT_EQ(cut(all, "ab12c3"), (Pieces{"ab", "12", "c", "3"}));
  EXPECT_EQ(cut(matches, "ab12c3"), (Pieces{"12", "3"}));
  EXPECT_EQ(cut(gaps, "ab12c3"), (Pieces{"ab", "c"}));
  EXPECT_EQ(cut(steps, "a b123"), (Pieces{"a", " b", "1", "2", "3"}));
  EXPECT_EQ(cut(steps, ""), Pieces{});
  EXPECT_EQ(cut(PreTokenizer{}, "a b"), (Pieces{"a b"}));
}

TEST(SplitRegex, AcceptsTheConstructsOfPublishedPatterns) {
  // GPT-4o, DeepSeek, a Han class, look-behind, possessive and lazy repeats, hexadecimal escapes.
  for (const char* pattern :
       {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)",
        "[一-龥぀-ゟ゠-ヿ]+", R"([\p{Han}]+)", R"((?<=\d)(?=(?:\d{3})+(?!\d)))",
        R"(\p{N}{1,3}?|a++|b{2,}|\x41\x{1F600}|\u00e9)", R"((a|(?>b+)|(?<!c)d)*?.)"}) {
    const auto regex = SplitRegex::compile(pattern);
    EXPECT_TRUE(regex.ok()) << pattern << ": " << regex.error().message;
  }
}

TEST(SplitRegex, RefusesByNameWhatItWouldReadDifferently) {
  const std::pair<const char*, const char*> cases[] = {
      {R"(\bword\b)", "at byte 0: an escape"},
      {R"(a\w)", "at byte 1: an escape"},
      {"^a", "anchors"},
      {"a$", "anchors"},
      {"[[:alpha:]]", "a class inside a class"},
      {"[a-z&&[aeiou]]", "an intersection"},
      {"(?<name>a)", "a group that is none of"},
      {"(?m)a", "a group that is none of"},
      {"(a", "a group without its ')'"},
      {"a)", "a ')' without its group"},
      {"*a", "nothing to repeat"},
      {"a{x}", "opens no {n,m}"},
      {"a{2}+", "a quantifier on a quantifier"},
      {R"((a)\1)", "an escape"},
      {R"(\p{Klingon})", "unknown name"},
      {R"(\p{Cs})", "a property without characters"},
      {R"([\s-z])", "a range that starts at a class"},
      {"[z-a]", "a range that ends before it starts"},
      {"[a", "a class without its ']'"},
      {R"((?i:[a-z]))", "a class inside (?i: )"},
      {"(?i:é)", "outside ASCII inside (?i: )"},
      {R"(\x{D800})", "names no character"},
      {"(?<=a+)b", "PCRE2 refuses it"},
      {"a\\", "at the end"},
      {"\xFF", "invalid UTF-8"},
  };
  for (const auto& [pattern, reason] : cases) {
    const auto regex = SplitRegex::compile(pattern);
    ASSERT_FALSE(regex.ok()) << pattern;
    EXPECT_NE(regex.error().message.find(reason), std::string::npos)
        << pattern << ": " << regex.error().message;
  }
  EXPECT_FALSE(SplitRegex::compile(std::string(5000, 'a')).ok());
}

TEST(SplitRegex, ReportsAPatternThatWouldRunForEver) {
  const auto regex = SplitRegex::compile("(?:a|aa)+b|(?:(?:a*)*)*c");
  ASSERT_TRUE(regex.ok()) << regex.error().message;
  const Status status = (*regex)->for_each(std::string(200, 'a'), [](size_t, size_t) {});
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("gave up"), std::string::npos) << status.error().message;
}

TEST(SplitRegex, FindsEmptyMatchesAsTheReferenceDoes) {
  EXPECT_EQ(matched(compiled(R"(\d*)"), "a12b"), (Pieces{"", "12", ""}));
  EXPECT_EQ(matched(compiled("(?=b)"), "abb"), (Pieces{"", ""}));
}

}  // namespace
}  // namespace tandem
