// The template interpreter on its own: limits, errors, and where the bytes of a text come from. That it
// renders what jinja2 renders is the business of tools/template_diff.
#include "text/jinja_template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "text/jinja_json.h"

namespace tandem::jinja {
namespace {

using Json = nlohmann::ordered_json;

Result<Text> render_text(const std::string& source, const Json& variables = Json::object(),
                         const Limits& limits = {}) {
  TD_ASSIGN_OR_RETURN(const Template parsed, Template::parse("t.jinja", source));
  const Value dict = from_json(variables);
  return parsed.render(dict.dict(), limits, std::nullopt);
}

// The text, or "error: ...".
std::string render(const std::string& source, const Json& variables = Json::object(),
                   const Limits& limits = {}) {
  const Result<Text> text = render_text(source, variables, limits);
  return text.ok() ? text->bytes() : "error: " + text.error().message;
}

// The text with its content in [ ].
std::string marked(const std::string& source, const Json& variables) {
  const Result<Text> text = render_text(source, variables);
  if (!text.ok()) return "error: " + text.error().message;
  std::string out;
  std::size_t begin = 0;
  for (const Text::Run& run : text->runs()) {
    const std::string part = text->bytes().substr(begin, run.end - begin);
    out += run.origin == Origin::content ? "[" + part + "]" : part;
    begin = run.end;
  }
  return out;
}

std::string repeated(const std::string& what, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += what;
  return out;
}

#define EXPECT_ERROR(expression, part)                                   \
  do {                                                                   \
    const std::string td_rendered = (expression);                        \
    EXPECT_TRUE(td_rendered.starts_with("error: ")) << td_rendered;      \
    EXPECT_NE(td_rendered.find(part), std::string::npos) << td_rendered; \
  } while (0)

// --- errors

TEST(Jinja, ErrorsNameTemplateAndLine) {
  EXPECT_ERROR(render("a\nb\n{{ x.y }}"), "t.jinja:3: 'x' is undefined");
  EXPECT_ERROR(render("a\n{% if x %}"), "t.jinja:2: ");
  EXPECT_ERROR(render("{{ 1 +\n\n}}"), "t.jinja:3: expected an expression, found '}}'");
  EXPECT_ERROR(render("\n\n{{ raise_exception('needs a user') }}"), "t.jinja:3: needs a user");
  EXPECT_ERROR(render("{% for m in ms %}\n{{ m | nope }}{% endfor %}", {{"ms", Json::array({1})}}),
               "t.jinja:2: there is no filter named 'nope'");
}

TEST(Jinja, ABlockThatIsNeverClosedIsReportedWhereItOpens) {
  EXPECT_ERROR(render("\n{% for x in y %}\n\n\nend"), "t.jinja:2: the block opened here is never closed");
}

TEST(Jinja, TemplatesThatAreNotUtf8AreRefused) { EXPECT_ERROR(render("a\xFF"), "not valid UTF-8"); }

TEST(Jinja, ContentIsNeverReadAsTemplate) {
  EXPECT_EQ(render("{{ x }}{{ x|trim }}{% set y = x ~ '' %}{{ y }}", {{"x", "{{ 1/0 }}{% raw %}"}}),
            repeated("{{ 1/0 }}{% raw %}", 3));
}

TEST(Jinja, NothingThatATemplateGetsCanBeModified) {
  EXPECT_ERROR(render("{{ x.append(1) }}", {{"x", Json::array({1})}}), "unsafe");
  EXPECT_ERROR(render("{{ x.update({}) }}", {{"x", {{"a", 1}}}}), "unsafe");
  EXPECT_ERROR(render("{{ ''.__class__ }}{{ ''.__class__.x }}"), "unsafe");
}

// --- limits

TEST(Jinja, EndlessWorkHitsTheStepLimit) {
  const std::string loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
  EXPECT_ERROR(render(loops), "20000000 steps");
  EXPECT_ERROR(render("{% for a in range(100) %}{{ a }}{% endfor %}", Json::object(), {.steps = 50}),
               "50 steps");
}

TEST(Jinja, RecursionHitsTheDepthLimit) {
  EXPECT_ERROR(render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), "levels at run time");
  EXPECT_ERROR(render("{% macro m(x) %}{{ ([x]|map('string')|list)[0] ~ m(x) }}{% endmacro %}{{ m(1) }}"),
               "levels at run time");
}

TEST(Jinja, RecursionAsDeepAsJsonSchemasNeedWorks) {
  EXPECT_EQ(
      render("{% macro m(n) %}{% if n %}{% for x in [n] %}{{ m(n - 1) }}{% endfor %}{% else %}end{% endif %}"
             "{% endmacro %}{{ m(30) }}"),
      "end");
}

TEST(Jinja, DeepTemplatesAreRefusedBeforeTheyRun) {
  const std::string deep = "nests deeper than 200 levels";
  EXPECT_ERROR(render("{{ " + repeated("(", 100000) + "1" + repeated(")", 100000) + " }}"), deep);
  EXPECT_ERROR(render("{{ " + repeated("[", 100000) + repeated("]", 100000) + " }}"), deep);
  EXPECT_ERROR(render("{{ " + repeated("-", 100000) + "1 }}"), deep);
  EXPECT_ERROR(render("{{ " + repeated("not ", 100000) + "1 }}"), deep);
  EXPECT_ERROR(render("{{ 1" + repeated(" + 1", 100000) + " }}"), deep);
  EXPECT_ERROR(render("{{ 1" + repeated("|abs", 100000) + " }}"), deep);
  EXPECT_ERROR(render("{{ a" + repeated(".b", 100000) + " }}"), deep);
  EXPECT_ERROR(render("{{ a" + repeated("()", 100000) + " }}"), deep);
  EXPECT_ERROR(render("{{ 1" + repeated(" if 1 else 1", 100000) + " }}"), deep);
  EXPECT_ERROR(render(repeated("{% if 1 %}", 100000)), deep);
  EXPECT_ERROR(
      render("{% for " + repeated("(", 100000) + "a" + repeated(")", 100000) + " in b %}{% endfor %}"), deep);
}

TEST(Jinja, ManyBranchesAreNotDeep) {
  EXPECT_EQ(render("{% if 0 %}" + repeated("{% elif 0 %}", 5000) + "{% else %}last{% endif %}"), "last");
}

TEST(Jinja, StringsTooLargeAreRefusedBeforeTheyAreBuilt) {
  const auto small = [](const std::string& source) {
    return render(source, Json::object(), {.built_bytes = std::size_t{1} << 20});
  };
  const std::string limit = "1048576 bytes of strings";
  EXPECT_ERROR(render("{{ 'x' * 100000000000 }}"), "bytes of strings");
  EXPECT_ERROR(render("{{ 'x' * (2 ** 100) }}"), "bytes of strings");
  EXPECT_ERROR(small("{{ ('x' * 9999).replace('x', 'x' * 9999) }}"), limit);
  EXPECT_ERROR(small("{{ (['x' * 9999] * 9999) | join }}"), limit);
  EXPECT_ERROR(small("{{ ('a\n' * 9999) | indent(9999) }}"), limit);
  EXPECT_ERROR(small("{% set ns = namespace(s='xx') %}"
                     "{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}"),
               limit);
  EXPECT_ERROR(render("{{ '%9999999999d' % 1 }}"), "larger than 1000");
}

TEST(Jinja, OutputTooLongIsRefused) {
  EXPECT_ERROR(
      render("{% for i in range(100) %}0123456789{% endfor %}", Json::object(), {.output_bytes = 999}),
      "longer than 999 bytes");
  EXPECT_EQ(render("{% for i in range(100) %}0123456789{% endfor %}", Json::object(), {.output_bytes = 1000})
                .size(),
            1000u);
}

TEST(Jinja, ListsTooLargeAreRefused) {
  EXPECT_ERROR(render("{{ range(100001) | length }}"), "100000 items");
  EXPECT_EQ(render("{{ range(100000) | length }}"), "100000");
  EXPECT_ERROR(render("{{ [1] * 100000000000 }}"), "steps");
}

TEST(Jinja, ValuesThatNestOrGrowWithoutEndAreRefused) {
  EXPECT_ERROR(
      render("{% set ns = namespace(x=1) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}"),
      "deeper than 100 levels");
  // Each step doubles what a walk over the value costs, with two new elements only.
  EXPECT_ERROR(
      render(
          "{% set ns = namespace(x=1) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"),
      "more than 20000000 elements");
}

TEST(Jinja, ANamespaceMayHoldItselfButNotBePrinted) {
  const std::string cycle = "{% set ns = namespace() %}{% set ns.self = [ns] %}";
  EXPECT_EQ(render(cycle + "{{ ns.self[0].self[0] == ns }}"), "True");
  EXPECT_ERROR(render(cycle + "{{ ns }}"), "levels");
  EXPECT_ERROR(render(cycle + "{{ ns | tojson }}"), "not JSON serializable");
}

TEST(Jinja, AMacroOutlivesTheBlockThatDefinedIt) {
  EXPECT_EQ(
      render("{% set ns = namespace() %}{% for x in [1, 2] %}{% macro m() %}{{ x }}{{ y }}{% endmacro %}"
             "{% set y = x * 10 %}{% set ns.m = m %}{% endfor %}{{ ns.m() }}"),
      "220");
}

TEST(Jinja, InputDeeperThanTheLimitIsRefused) {
  Json deep = 1;
  for (int i = 0; i < 101; ++i) deep = Json::array({deep});
  EXPECT_THROW((void)from_json(deep), Failure);
}

// --- numbers

TEST(Jinja, IntegersStayExactAndApartFromFloats) {
  const Json variables = {{"u", 18446744073709551615u}, {"i", -9223372036854775807 - 1}, {"f", 1.0}};
  EXPECT_EQ(render("{{ u }} {{ u + 1 }} {{ i - 1 }} {{ f }} {{ [u, f] | tojson }}", variables),
            "18446744073709551615 18446744073709551616 -9223372036854775809 1.0 [18446744073709551615, 1.0]");
  EXPECT_ERROR(render("{{ u * u * u }}", variables), "127 bits");
}

// --- where text comes from

TEST(JinjaOrigin, ConcatenationKeepsTheOriginOfEachByte) {
  EXPECT_EQ(marked("<{{ x }}>{{ '(' + x + ')' }}{{ '<' ~ x ~ 1 ~ none ~ '>' }}", {{"x", "c"}}),
            "<[c]>([c])<[c]1None>");
  EXPECT_EQ(marked("{{ 'a' 'b' ~ 'c' }}{{ ['t', x] | join('-') }}{{ '-'.join([x, 't']) }}", {{"x", "c"}}),
            "abct-[cc]-t");
}

TEST(JinjaOrigin, CuttingKeepsTheOriginOfEachByte) {
  const Json x = {{"x", " c,d "}};
  EXPECT_EQ(marked("{{ ('a ' + x + ' b') | trim }}", x), "a [ c,d ] b");
  EXPECT_EQ(marked("{{ (' ' + x + ' ').strip() }}", x), "[c,d]");
  EXPECT_EQ(marked("{{ ('a,' + x).split(',')[1] }}{{ ('a,' + x).split(',')[0] }}", x), "[ c]a");
  EXPECT_EQ(marked("{{ ('ab' + x + 'cd')[1:4] }}{{ ('ab' + x)[::-1] }}{{ ('ab' + x)[0] }}", x),
            "b[ c d,c ]baa");
  EXPECT_EQ(marked("{% for c in 'a' + x %}{{ c }}{% endfor %}", x), "a[ c,d ]");
  EXPECT_EQ(marked("{{ ('a\n' + x) | indent(1) }}", x), "a\n [ c,d ]");
}

TEST(JinjaOrigin, VariablesBlocksAndMacrosKeepTheOriginOfEachByte) {
  EXPECT_EQ(marked("{% set y %}<{{ x }}>{% endset %}{{ y }}", {{"x", "c"}}), "<[c]>");
  EXPECT_EQ(marked("{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(x) }}{{ m('t') }}", {{"x", "c"}}),
            "<[c]><t>");
  EXPECT_EQ(marked("{% set ns = namespace(a='') %}{% for c in x %}{% set ns.a = ns.a ~ '|' ~ c %}{% endfor "
                   "%}{{ ns.a }}",
                   {{"x", "cd"}}),
            "|[c]|[d]");
  EXPECT_EQ(marked("{% for k, v in x | items %}{{ k }}={{ v }};{% endfor %}", {{"x", {{"k", "v"}}}}),
            "[k]=[v];");
}

TEST(JinjaOrigin, RewritingGivesContentIfAnyOfItWas) {
  EXPECT_EQ(marked("{{ x | upper }}{{ 't' | upper }}{{ ('t' + x) | upper }}", {{"x", "c"}}), "[C]T[TC]");
  EXPECT_EQ(marked("{{ 'ab'.replace('a', x) }}{{ 'ab'.replace('a', 'x') }}{{ 'ab'.replace('z', x) }}",
                   {{"x", "c"}}),
            "[cb]xbab");
  EXPECT_EQ(marked("{{ x | tojson }}{{ [1] | tojson }}{{ [x] }}{{ ['t'] }}", {{"x", "c"}}),
            "[\"c\"[1]['c']['t']]");
  EXPECT_EQ(marked("{{ '%s|%s' % (x, 't') }}{{ '{}|{}'.format(x, 't') }}", {{"x", "c"}}), "[c]|t[c]|t");
}

TEST(JinjaOrigin, NumbersAreNobodysText) {
  EXPECT_EQ(marked("<|image_{{ n }}|>{{ b }}", {{"n", 3}, {"b", true}}), "<|image_3|>True");
}

}  // namespace
}  // namespace tandem::jinja
