#include "text/pretokenizer.h"

#include "text/pretokenizer_regex.h"

namespace tandem {

Status PreTokenizer::add_split(const std::string& pattern, Keep keep) {
  Step step{.rules = known_pattern(pattern), .regex = nullptr, .keep = keep};
  if (!step.rules) {
    TD_ASSIGN_OR_RETURN(step.regex, SplitRegex::compile(pattern));
  }
  steps_.push_back(std::move(step));
  return {};
}

Status PreTokenizer::cut(std::string_view text, std::vector<std::string_view>& pieces) const {
  pieces.clear();
  if (!text.empty()) pieces.push_back(text);
  std::vector<std::string_view> cut;
  for (const Step& step : steps_) {
    cut.clear();
    for (const std::string_view piece : pieces) TD_RETURN_IF_ERROR(cut_one(step, piece, cut));
    pieces.swap(cut);
  }
  return {};
}

Status PreTokenizer::cut_one(const Step& step, std::string_view text, std::vector<std::string_view>& pieces) {
  if (step.rules) {  // matches everything: there are no gaps
    if (step.keep == Keep::gaps) return {};
    for (size_t at = 0; at < text.size();) {
      const size_t end = scan_piece(text, at, *step.rules);
      pieces.push_back(text.substr(at, end - at));
      at = end;
    }
    return {};
  }
  size_t done = 0;
  const auto keep = [&](size_t begin, size_t end) {
    if (end > begin) pieces.push_back(text.substr(begin, end - begin));
  };
  TD_RETURN_IF_ERROR(step.regex->for_each(text, [&](size_t begin, size_t end) {
    if (step.keep != Keep::matches) keep(done, begin);
    if (step.keep != Keep::gaps) keep(begin, end);
    done = end;
  }));
  if (step.keep != Keep::matches) keep(done, text.size());
  return {};
}

}  // namespace tandem
