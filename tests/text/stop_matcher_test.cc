#include "text/stop_matcher.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace tandem {
namespace {

StopMatcher matcher(const std::vector<std::string>& stops,
                    StopMatcher::StopText text = StopMatcher::StopText::leave_out) {
  auto m = StopMatcher::create(stops, text);
  EXPECT_TRUE(m.ok()) << m.error().message;
  return *m;
}

TEST(StopMatcher, GivesOutTextBeforeTheStopStringAndNotTheString) {
  StopMatcher m = matcher({"STOP"});
  const auto out = m.feed("abc STOP def");
  EXPECT_EQ(out.text, "abc ");
  EXPECT_EQ(out.matched, 0u);
}

TEST(StopMatcher, IncludesTheStopStringOnRequest) {
  StopMatcher m = matcher({"STOP"}, StopMatcher::StopText::include);
  EXPECT_EQ(m.feed("abc ST").text, "abc ");
  EXPECT_EQ(m.feed("OP def").text, "STOP");
}

TEST(StopMatcher, HoldsBackTheBeginningOfAStopStringAcrossPieces) {
  StopMatcher m = matcher({"\n\nUser:"});
  EXPECT_EQ(m.feed("hello\n").text, "hello");
  EXPECT_EQ(m.n_held(), 1u);
  EXPECT_EQ(m.feed("\nUs").text, "");
  EXPECT_EQ(m.n_held(), 4u);
  const auto out = m.feed("er: x");
  EXPECT_EQ(out.text, "");
  EXPECT_EQ(out.matched, 0u);
}

TEST(StopMatcher, ReleasesExactlyWhatCanNoLongerMatch) {
  StopMatcher m = matcher({"aab"});
  EXPECT_EQ(m.feed("aa").text, "");
  EXPECT_EQ(m.feed("a").text, "a");  // "aa" may still become "aab"
  EXPECT_EQ(m.feed("c").text, "aac");
  EXPECT_EQ(m.finish(), "");
}

TEST(StopMatcher, FinishFlushesWhatWasHeld) {
  StopMatcher m = matcher({"###"});
  EXPECT_EQ(m.feed("a##").text, "a");
  EXPECT_EQ(m.finish(), "##");
}

TEST(StopMatcher, EarliestCompletionWinsAndOnATieTheLongest) {
  EXPECT_EQ(matcher({"abcdef", "cd"}).feed("xabcdefx").text, "xab") << "cd completes first";
  const auto tie = matcher({"cd", "bcd", "d"}).feed("xabcdx");
  EXPECT_EQ(tie.text, "xa");
  EXPECT_EQ(tie.matched, 1u);
}

TEST(StopMatcher, WithoutStopStringsHoldsNothing) {
  StopMatcher m = matcher({});
  EXPECT_EQ(m.feed("anything").text, "anything");
  EXPECT_EQ(m.finish(), "");
}

TEST(StopMatcher, RefusesEmptyAndInvalidStopStrings) {
  const auto empty = StopMatcher::create({"a", ""});
  ASSERT_FALSE(empty.ok());
  EXPECT_NE(empty.error().message.find("stop[1]"), std::string::npos) << empty.error().message;
  EXPECT_FALSE(StopMatcher::create({"a\xFF"}).ok());
}

// The definition: try every end of a match in turn, at each the longest string.
struct Definition {
  std::string text;
  std::optional<size_t> length;  // of the matched string
};
Definition by_definition(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<size_t> longest;
    for (const std::string& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0) {
        longest = std::max(longest.value_or(0), stop.size());
      }
    }
    if (longest) return {text.substr(0, end - *longest), longest};
  }
  return {text, std::nullopt};
}

RC_GTEST_PROP(StopMatcher, AnyCutOfAnyTextGivesWhatTheDefinitionSays, ()) {
  const auto letters = [](int from) {
    return rc::gen::map(
        rc::gen::container<std::string>(rc::gen::elementOf(std::string("ab"))),
        [from](std::string s) { return s.size() > 6 ? s.substr(0, 6) : s + std::string(from, 'a'); });
  };
  const auto stops = *rc::gen::container<std::vector<std::string>>(letters(1));
  const std::string text = *rc::gen::container<std::string>(rc::gen::elementOf(std::string("aabc")));
  const Definition expected = by_definition(stops, text);

  StopMatcher m = matcher(stops);
  std::string given;
  std::optional<size_t> matched;
  for (size_t at = 0; at < text.size() && !matched;) {
    const size_t n = *rc::gen::inRange<size_t>(1, 4);
    const auto out = m.feed(std::string_view(text).substr(at, n));
    at = std::min(at + n, text.size());
    given += out.text;
    matched = out.matched;
    if (!matched) {  // held back: the longest suffix that is a proper prefix of a stop string, no more
      size_t longest = 0;
      for (const std::string& stop : stops) {
        for (size_t k = 1; k < stop.size() && k <= at; ++k) {
          if (text.compare(at - k, k, stop, 0, k) == 0) longest = std::max(longest, k);
        }
      }
      RC_ASSERT(m.n_held() == longest);
      RC_ASSERT(given.size() + longest == at);
    }
  }
  if (!matched) given += m.finish();
  RC_ASSERT(given == expected.text);
  RC_ASSERT(matched.has_value() == expected.length.has_value());
  if (matched) RC_ASSERT(stops[*matched].size() == *expected.length);
}

}  // namespace
}  // namespace tandem
