// Filters of text, numbers and any value. Those of sequences are in jinja_filters_sequence.cc.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "text/jinja_args.h"
#include "text/jinja_builtins.h"
#include "text/jinja_numbers.h"
#include "text/jinja_operators.h"
#include "text/jinja_print.h"

namespace tandem::jinja {

namespace {

// --- text

Value filter_trim(Interpreter& in, const Value& x, const Args& args) {
  return strip(in, in.text_of(x), Side::both, Bound("trim", args, {"chars"}).get(0));
}

template <Case kCase>
Value filter_case(Interpreter& in, const Value& x, const Args& args) {
  const Bound none("the filter", args, {});
  return change_case(in, in.text_of(x), kCase);
}

Value filter_title(Interpreter& in, const Value& x, const Args& args) {
  const Bound none("title", args, {});
  const Text text = in.text_of(x);
  const std::string& bytes = text.bytes();
  in.budget().charge_bytes(3 * bytes.size());
  std::string out;
  const auto separates = [](char32_t c) {
    return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  for (std::size_t i = 0; i < bytes.size();) {
    std::size_t end = i + code_point_size(bytes, i);
    if (separates(code_point_at(bytes, i))) {
      out.append(bytes, i, end - i);
    } else {
      out += to_upper(std::string_view(bytes).substr(i, end - i));
      const std::size_t rest = end;
      while (end < bytes.size() && !separates(code_point_at(bytes, end))) end += code_point_size(bytes, end);
      out += to_lower(std::string_view(bytes).substr(rest, end - rest));
    }
    i = end;
  }
  return Value(Text(std::move(out), text.origin()));
}

Value filter_string(Interpreter& in, const Value& x, const Args& args) {
  const Bound none("the filter", args, {});
  return Value(in.text_of(x));
}

Value filter_escape(Interpreter& in, const Value& x, const Args& args) {
  const Bound none("escape", args, {});
  const Text text = in.text_of(x);
  in.budget().charge_bytes(5, text.size());
  std::string out;
  for (const char c : text.bytes()) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return Value(Text(std::move(out), text.origin()));
}

Value filter_replace(Interpreter& in, const Value& x, const Args& args) {
  const Bound bound("replace", args, {"old", "new", "count"});
  return replace(in, in.text_of(x), in.text_of(bound.required(0)), in.text_of(bound.required(1)),
                 bound.get(2) == nullptr ? Int{-1} : bound.integer(2, -1));
}

Value filter_indent(Interpreter& in, const Value& x, const Args& args) {
  const Bound bound("indent", args, {"width", "first", "blank"});
  if (!x.is_string()) fail(fmt::format("indent needs a string, not {}", type_name(x)));
  Text indention;
  if (bound.has(0) && bound.required(0).is_string()) {
    indention = bound.text(0);
  } else {
    const Int width = std::clamp<Int>(bound.integer(0, 4), 0, 1'000'000);
    indention = Text(std::string(static_cast<std::size_t>(width), ' '), Origin::templated);
  }
  Text text = x.text();
  text.append("\n", Origin::templated);
  const std::vector<Text> lines = split_lines(text, false);
  in.budget().charge_steps(lines.size());
  in.budget().charge_bytes(text.size());
  in.budget().charge_bytes(lines.size(), indention.size());
  Text out;
  if (bound.flag(1, false)) out.append(indention);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      out.append("\n", Origin::templated);
      if (!lines[i].empty() || bound.flag(2, false)) out.append(indention);
    }
    out.append(lines[i]);
  }
  return Value(std::move(out));
}

Value filter_format(Interpreter& in, const Value& x, const Args& args) {
  if (args.keyword.empty())
    return Value(format_percent(in.text_of(x), make_tuple(args.positional), in.budget()));
  if (!args.positional.empty()) fail("format takes positional or keyword arguments, not both");
  Dict values;
  for (const auto& [name, value] : args.keyword) values.set(Value(Text(name, Origin::templated)), value);
  return Value(format_percent(in.text_of(x), make_dict(std::move(values)), in.budget()));
}

Value filter_tojson(Interpreter& in, const Value& x, const Args& args) {
  const Bound bound("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound.flag(0, false);
  style.sort_keys = bound.flag(3, false);
  if (const Value* indent = bound.get(1)) {
    style.indent =
        indent->is_string()
            ? indent->bytes()
            : std::string(static_cast<std::size_t>(std::clamp<Int>(bound.integer(1, 0), 0, 1000)), ' ');
    style.item_separator = ",";
  }
  if (const Value* separators = bound.get(2)) {
    const Values pair = iterate(*separators);
    if (pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) {
      fail("tojson: 'separators' must be a pair of strings");
    }
    style.item_separator = pair[0].bytes();
    style.key_separator = pair[1].bytes();
  }
  return Value(Text(to_json(x, style, in.budget()), Origin::content));
}

// --- numbers

Value filter_int(Interpreter&, const Value& x, const Args& args) {
  const Bound bound("int", args, {"default", "base"});
  const Int base = bound.integer(1, 10);
  if (x.is_undefined()) x.fail_undefined();
  std::optional<Int> result;
  if (x.is_integral()) result = x.integral();
  if (x.is_string()) result = parse_int(x.bytes(), static_cast<int>(std::clamp<Int>(base, 0, 37)));
  if (!result) {
    const std::optional<double> real = x.is_float()    ? std::optional(x.number())
                                       : x.is_string() ? parse_float(x.bytes())
                                                       : std::nullopt;
    if (real && !std::isnan(*real)) {
      if (std::abs(*real) >= 0x1p126) fail("int: the number is beyond 126 bits");
      result = static_cast<Int>(*real);
    }
  }
  return result ? Value(*result) : bound.has(0) ? bound.required(0) : Value::integer(0);
}

Value filter_float(Interpreter&, const Value& x, const Args& args) {
  const Bound bound("float", args, {"default"});
  if (x.is_undefined()) x.fail_undefined();
  if (x.is_number()) return Value(x.number());
  if (x.is_string()) {
    if (const auto real = parse_float(x.bytes())) return Value(*real);
  }
  return bound.has(0) ? bound.required(0) : Value(0.0);
}

Value filter_abs(Interpreter&, const Value& x, const Args& args) {
  const Bound none("abs", args, {});
  if (x.is_integral()) return x.integral() < 0 ? negate(x) : Value(x.integral());
  if (x.is_float()) return Value(std::fabs(x.number()));
  fail(fmt::format("abs needs a number, not {}", type_name(x)));
}

Value filter_round(Interpreter&, const Value& x, const Args& args) {
  const Bound bound("round", args, {"precision", "method"});
  if (!x.is_number()) fail(fmt::format("round needs a number, not {}", type_name(x)));
  const Int precision = bound.integer(0, 0);
  if (precision < -30 || precision > 300) fail("round: 'precision' must be between -30 and 300");
  const std::string method = bound.has(1) ? bound.text(1).bytes() : "common";
  if (method == "common") return round_number(x, static_cast<int>(precision));
  if (method != "ceil" && method != "floor") fail("round: 'method' must be common, ceil or floor");
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = x.number() * scale;
  if (!std::isfinite(scaled)) fail("round: the number is too large");
  return Value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

// --- any value

Value filter_default(Interpreter&, const Value& x, const Args& args) {
  const Bound bound("default", args, {"default_value", "boolean"});
  if (!x.is_undefined() && !(bound.flag(1, false) && !truthy(x))) return x;
  return bound.has(0) ? bound.required(0) : Value(Text());
}

Value filter_attr(Interpreter& in, const Value& x, const Args& args) {
  const Bound bound("attr", args, {"name"});
  const std::string& name = bound.text(0).bytes();
  // Unlike x.name, never an element of a mapping.
  if (x.is_dict() && find_method(x, name) == MethodAccess::none) {
    return Value::undefined(fmt::format("'dict object' has no attribute '{}'", name));
  }
  return in.attribute(x, name);
}

}  // namespace

Filter find_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, Filter> kFilters = {
      {"abs", filter_abs},
      {"attr", filter_attr},
      {"capitalize", filter_case<Case::capitalize>},
      {"d", filter_default},
      {"default", filter_default},
      {"e", filter_escape},
      {"escape", filter_escape},
      {"float", filter_float},
      {"format", filter_format},
      {"indent", filter_indent},
      {"int", filter_int},
      {"lower", filter_case<Case::lower>},
      {"replace", filter_replace},
      {"round", filter_round},
      {"safe", filter_string},
      {"string", filter_string},
      {"title", filter_title},
      {"tojson", filter_tojson},
      {"trim", filter_trim},
      {"upper", filter_case<Case::upper>},
  };
  const auto it = kFilters.find(name);
  return it == kFilters.end() ? find_sequence_filter(name) : it->second;
}

Value Interpreter::apply_filter(const std::string& name, const Value& subject, const Args& args) {
  const Filter filter = find_filter(name);
  if (filter == nullptr) fail(fmt::format("there is no filter named '{}'", name));
  const Budget::Level level(budget_);
  return filter(*this, subject, args);
}

}  // namespace tandem::jinja
