#include "text/unicode.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>

#include "random_text.h"
#include "text/unicode_added.h"

namespace tandem {
namespace {

// An independent decoder with the same rule (one U+FFFD per maximal invalid part).
std::string icu_lossy(const std::string& bytes) {
  std::string out;
  icu::UnicodeString::fromUTF8(bytes).toUTF8String(out);
  return out;
}

std::string lossy(const std::string& bytes) {
  std::string out;
  Utf8Stream stream;
  stream.feed(bytes, out);
  stream.finish(out);
  return out;
}

RC_GTEST_PROP(Utf8Stream, ReplacesWhatIcuReplaces, ()) {
  const std::string bytes = *any_bytes();
  RC_ASSERT(lossy(bytes) == icu_lossy(bytes));
}

RC_GTEST_PROP(Utf8Stream, PiecesGiveTheSameTextAndNeverHalfACharacter, ()) {
  const std::string bytes = *any_bytes();
  Utf8Stream stream;
  std::string text;
  for (size_t at = 0; at < bytes.size();) {
    const size_t n = *rc::gen::inRange<size_t>(1, 5);
    std::string piece;
    stream.feed(std::string_view(bytes).substr(at, n), piece);
    RC_ASSERT(!first_invalid_utf8(piece));
    RC_ASSERT(stream.n_held() <= 3u);
    text += piece;
    at += n;
  }
  stream.finish(text);
  RC_ASSERT(text == lossy(bytes));
}

RC_GTEST_PROP(Utf8, FirstInvalidByteIsWhereTheValidPrefixEnds, ()) {
  const std::string bytes = *any_bytes();
  const auto bad = first_invalid_utf8(bytes);
  const std::string valid = bytes.substr(0, bad.value_or(bytes.size()));
  RC_ASSERT(icu_lossy(valid) == valid);
  if (bad) {  // no longer prefix is valid
    for (size_t n = *bad + 1; n <= bytes.size() && n <= *bad + 4; ++n) {
      RC_ASSERT(icu_lossy(bytes.substr(0, n)) != bytes.substr(0, n));
    }
  }
}

TEST(Utf8, EncodesAndReadsEveryCodePoint) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string s;
    append_utf8(c, s);
    ASSERT_EQ(first_invalid_utf8(s), std::nullopt) << std::hex << uint32_t(c);
    ASSERT_EQ(code_point_at(s, 0).value, c);
    ASSERT_EQ(code_point_before(s, s.size()).value, c);
    ASSERT_EQ(code_point_at(s, 0).n_bytes, s.size());
  }
}

TEST(Utf8, RefusesSurrogatesOverlongFormsAndTooLargeValues) {
  for (const char* bytes : {"\xED\xA0\x80", "\xC0\x80", "\xE0\x80\x80", "\xF0\x80\x80\x80",
                            "\xF4\x90\x80\x80", "\xF8\x88\x80\x80\x80", "\x80", "\xFF"}) {
    EXPECT_EQ(first_invalid_utf8(std::string("ab") + bytes), 2u);
  }
}

TEST(CharClass, FollowsTheReferencesRegexEngine) {
  EXPECT_EQ(char_class(U'\u180E'), CharClass::other)
      << "Mongolian vowel separator: not white space since Unicode 6.3";
  EXPECT_EQ(char_class(U'\u0085'), CharClass::white);
  EXPECT_EQ(char_class(U'\u200B'), CharClass::other);
  EXPECT_EQ(char_class(U'\u001C'), CharClass::other);
  EXPECT_EQ(char_class(U'\u0E48'), CharClass::mark);
  EXPECT_EQ(char_class(U'½'), CharClass::number);
  EXPECT_EQ(char_class(U'Ⅻ'), CharClass::number);
  EXPECT_EQ(char_class(U'\U0001123F'), CharClass::letter) << "Unicode 15";
  EXPECT_EQ(char_class(U'\U00013805'), CharClass::letter) << "Unicode 16";
  EXPECT_EQ(char_class(U'\U0001CCF0'), CharClass::number) << "Unicode 16";
  EXPECT_EQ(char_class(U'\u0897'), CharClass::mark) << "Unicode 16";
  EXPECT_EQ(char_class(U'\U0001F469'), CharClass::other);
}

TEST(CharClass, AgreesWithIcuOnAsciiAndLatin1) {
  for (UChar32 c = 0; c < 0x100; ++c) {
    const CharClass k = char_class(char32_t(c));
    EXPECT_EQ(k == CharClass::letter, (U_GET_GC_MASK(c) & U_GC_L_MASK) != 0) << c;
    EXPECT_EQ(k == CharClass::number, (U_GET_GC_MASK(c) & U_GC_N_MASK) != 0) << c;
    EXPECT_EQ(is_white_space(char32_t(c)), u_isUWhiteSpace(c)) << c;
  }
}

TEST(CharClass, WhiteSpaceIsUnicodesPropertyEverywhere) {
  for (UChar32 c = 0; c <= 0x10FFFF; ++c) ASSERT_EQ(is_white_space(char32_t(c)), u_isUWhiteSpace(c)) << c;
}

TEST(AddedCharacters, AreAscendingAndUnknownToIcuOrTheSame) {
  uint32_t next = 0;
  for (const AddedCharacters& a : kAddedCharacters) {
    EXPECT_GE(a.first, next);
    EXPECT_GE(a.last, a.first);
    next = a.last + 1;
    for (uint32_t c = a.first; c <= a.last; ++c) {
      const uint32_t icu = U_GET_GC_MASK(UChar32(c));
      EXPECT_TRUE(icu == U_GC_CN_MASK || icu == a.category_mask) << std::hex << c;
    }
  }
}

TEST(CodePointsWith, KnowsCategoriesScriptsAndNothingElse) {
  const auto digits = code_points_with("Nd");
  ASSERT_TRUE(digits);
  EXPECT_EQ(digits->front().first, U'0');
  EXPECT_EQ(digits->front().last, U'9');
  EXPECT_TRUE(code_points_with("Letter"));
  EXPECT_TRUE(code_points_with("Han"));
  EXPECT_FALSE(code_points_with("Nonsense"));
  EXPECT_FALSE(code_points_with("L}a[b"));
  EXPECT_FALSE(code_points_with(""));
}

RC_GTEST_PROP(CodePointsWith, AgreesWithCharClass, ()) {
  static const auto letters = *code_points_with("L"), marks = *code_points_with("M"),
                    numbers = *code_points_with("N");
  const char32_t c = *any_code_point();
  const auto in = [&](const std::vector<CodePointRange>& set) {
    return std::any_of(set.begin(), set.end(),
                       [&](const CodePointRange& r) { return r.first <= c && c <= r.last; });
  };
  RC_ASSERT(in(letters) == (char_class(c) == CharClass::letter));
  RC_ASSERT(in(marks) == (char_class(c) == CharClass::mark));
  RC_ASSERT(in(numbers) == (char_class(c) == CharClass::number));
}

TEST(NormalizeNfc, ComposesReordersAndLeavesNormalTextAlone) {
  std::string out = "untouched";
  EXPECT_FALSE(normalize_nfc("plain ASCII", out, nullptr));
  EXPECT_FALSE(normalize_nfc("é 漢字 한", out, nullptr));
  EXPECT_EQ(out, "untouched");
  EXPECT_TRUE(normalize_nfc("e\u0301", out, nullptr));
  EXPECT_EQ(out, "é");
  EXPECT_TRUE(normalize_nfc("\u212B", out, nullptr));
  EXPECT_EQ(out, "Å");
  EXPECT_TRUE(normalize_nfc("\u1100\u1161\u11A8", out, nullptr));
  EXPECT_EQ(out, "각");
  EXPECT_TRUE(normalize_nfc("q\u0307\u0323", out, nullptr));
  EXPECT_EQ(out, "q\u0323\u0307");
}

// Long runs of marks are sorted by us and not by ICU. Every kind of mark: of several classes, with a
// decomposition of its own, younger than Unicode 9.
RC_GTEST_PROP(NormalizeNfc, LongRunsOfMarksGiveWhatIcuGives, ()) {
  const std::vector<std::string> marks{"\u0300", "\u0315", "\u0323", "\u0344", "\u0340", "\u0F73",
                                       "\u3099", "\u0C3C", "\u05B0", "x",      "\u00E9"};
  const int n = *rc::gen::inRange(60, 400), first_kinds = *rc::gen::inRange(2, 12);
  std::string text = "e";
  for (const int kind : *rc::gen::container<std::vector<int>>(size_t(n), rc::gen::inRange(0, first_kinds))) {
    text += marks[size_t(std::min(kind, 10))];
    if (kind >= 9) text += "\u0323\u0301\u0323";
  }
  std::string ours, theirs;
  const bool changed = normalize_nfc(text, ours, nullptr);
  UErrorCode status = U_ZERO_ERROR;
  const icu::UnicodeSet known(UNICODE_STRING_SIMPLE("[:Age=9.0:]"), status);
  const icu::FilteredNormalizer2 nfc(*icu::Normalizer2::getNFCInstance(status), known);
  icu::UnicodeString normal;
  nfc.normalize(icu::UnicodeString::fromUTF8(text), normal, status).toUTF8String(theirs);
  RC_ASSERT(bool(U_SUCCESS(status)));
  RC_ASSERT((changed ? ours : text) == theirs);
}

TEST(NormalizeNfc, TimeIsLinearInARunOfMarks) {
  std::string text = "e", out;
  for (int i = 0; i < 500'000; ++i) text += "\u0315\u0300";  // inserted one by one: minutes
  for (int i = 0; i < 100'000; ++i) text += "\u0F73";        // 129, 130, 129, ..
  std::vector<ByteRange> ranges{{0, 1}, {5, 7}, {text.size() + 1, text.size() + 2}};
  text += " z";
  ASSERT_TRUE(normalize_nfc(text, out, &ranges));
  EXPECT_EQ(out.size(), text.size() + 300'000 - 1) << "each U+0F73 is two marks, one U+0300 goes into the e";
  ASSERT_EQ(ranges.size(), 2u) << "a range in the run stands for all that moved, the e with it";
  EXPECT_EQ(ranges[1].begin, out.size() - 1);
  EXPECT_EQ(ranges[1].end, out.size());
}

TEST(NormalizeNfc, DoesNotMoveCharactersYoungerThanUnicode9) {
  std::string out;
  normalize_nfc("\u212B \u0300\u0C3C", out, nullptr);  // U+0C3C: Unicode 14, would sort before U+0300
  EXPECT_EQ(out, "Å \u0300\u0C3C");
}

TEST(NormalizeNfc, MovesRangesWithTheirBytes) {
  //                   0123 4  6  8    (e + U+0301 at 3..6 becomes 2 bytes)
  const std::string text = "ab e\u0301 cd";
  std::vector<ByteRange> ranges{{0, 2}, {4, 6}, {7, 9}};  // "ab", the accent alone, "cd"
  std::string out;
  ASSERT_TRUE(normalize_nfc(text, out, &ranges));
  ASSERT_EQ(out, "ab é cd");
  ASSERT_EQ(ranges.size(), 3u);
  EXPECT_EQ(out.substr(ranges[0].begin, ranges[0].end - ranges[0].begin), "ab");
  EXPECT_EQ(out.substr(ranges[1].begin, ranges[1].end - ranges[1].begin), "é");
  EXPECT_EQ(out.substr(ranges[2].begin, ranges[2].end - ranges[2].begin), "cd");
}

}  // namespace
}  // namespace tandem
