// tokenizer.json and tokenizer_config.json -> Tokenizer. The files come from outside: everything is checked,
// and what would change the ids in a way that is not implemented is refused.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/mapped_file.h"
#include "format/json.h"
#include "format/printable.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace tandem {
namespace {

namespace dom = simdjson::dom;

constexpr JsonLimits kLimits{.max_bytes = size_t{256} << 20,
                             .max_depth = 32};  // published files have 7 to 35 MB
constexpr size_t kMaxMerges = size_t{1} << 22;
constexpr size_t kMaxAddedTokenBytes = 4096;
// ByteLevel's own pattern (GPT-2), used when its use_regex is true.
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Result<std::string> require_string(const JsonFields& fields, std::string_view key) {
  TD_ASSIGN_OR_RETURN(std::optional<std::string> text, fields.string(key));
  if (!text) return fields.error(key, "expected a string, found nothing");
  return *std::move(text);
}

// The objects of the list `key`; an error when it is no list of objects.
Result<std::vector<JsonFields>> objects(const JsonFields& fields, std::string_view key) {
  std::vector<JsonFields> list;
  const auto value = fields.element(key);
  if (!value) return list;
  dom::array array;
  if (value->get(array) != simdjson::SUCCESS) {
    return fields.error(key, fmt::format("expected a list of objects, found {}", describe(*value)));
  }
  for (const dom::element item : array) {
    dom::object object;
    const std::string name = fmt::format("{}[{}]", key, list.size());
    if (item.get(object) != simdjson::SUCCESS) {
      return fields.error(name, fmt::format("expected an object, found {}", describe(item)));
    }
    list.emplace_back(object, fields.file(), fields.prefix() + name + ".");
  }
  return list;
}

// A field that must be absent, null, false, 0 or "": any other value changes the ids and is not implemented.
Status require_unset(const JsonFields& fields, std::string_view key) {
  const auto value = fields.element(key);
  if (!value) return {};
  bool flag = true;
  double number = 1;
  std::string_view text = "?";
  const bool unset = (value->get(flag) == simdjson::SUCCESS && !flag) ||
                     (value->is_number() && value->get(number) == simdjson::SUCCESS && number == 0) ||
                     (value->get(text) == simdjson::SUCCESS && text.empty());
  if (unset) return {};
  return fields.error(key,
                      fmt::format("{} is not supported (expected null, false, 0 or \"\")", describe(*value)));
}

}  // namespace

class TokenizerReader {
 public:
  explicit TokenizerReader(std::string file) : file_(std::move(file)) {}

  Result<Tokenizer> read(std::span<const std::byte> text) {
    TD_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(text, file_, kLimits));
    TD_ASSIGN_OR_RETURN(const JsonFields root, JsonFields::of_root(document, file_));
    TD_ASSIGN_OR_RETURN(const std::optional<std::string> version, root.string("version"));
    if (version && *version != "1.0") {
      return root.error("version", fmt::format("expected \"1.0\", found \"{}\"", printable(*version)));
    }
    TD_ASSIGN_OR_RETURN(const auto normalizer, root.object("normalizer"));
    if (normalizer) TD_RETURN_IF_ERROR(read_normalizer(*normalizer));
    TD_ASSIGN_OR_RETURN(const auto pre_tokenizer, root.object("pre_tokenizer"));
    if (pre_tokenizer) TD_RETURN_IF_ERROR(read_pre_tokenizer(*pre_tokenizer));
    if (!byte_level_) {
      return root.error("pre_tokenizer",
                        "expected a ByteLevel step: only byte-level vocabularies are supported");
    }
    TD_ASSIGN_OR_RETURN(const auto post_processor, root.object("post_processor"));
    if (post_processor) TD_RETURN_IF_ERROR(check_post_processor(*post_processor));
    TD_ASSIGN_OR_RETURN(const auto decoder, root.object("decoder"));
    TD_RETURN_IF_ERROR(check_decoder(root, decoder));
    TD_ASSIGN_OR_RETURN(const auto model, root.object("model"));
    if (!model) return root.error("model", "expected an object, found nothing");
    TD_RETURN_IF_ERROR(read_model(*model));
    TD_ASSIGN_OR_RETURN(const auto added, objects(root, "added_tokens"));
    for (const JsonFields& token : added) TD_RETURN_IF_ERROR(read_added_token(token));
    if (t_.n_tokens() == 0) return root.error("model.vocab", "has no entries");
    t_.special_.resize(size_t(t_.n_tokens()));
    t_.is_added_.resize(size_t(t_.n_tokens()));
    return std::move(t_);
  }

  // Names of tokens in tokenizer_config.json, as far as it has them.
  static Status read_config(Tokenizer& tokenizer, std::span<const std::byte> text, const std::string& file) {
    TD_ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(text, file, kLimits));
    TD_ASSIGN_OR_RETURN(const JsonFields root, JsonFields::of_root(document, file));
    TD_RETURN_IF_ERROR(read_named(tokenizer, root, "bos_token", tokenizer.bos_));
    TD_RETURN_IF_ERROR(read_named(tokenizer, root, "eos_token", tokenizer.eos_, &tokenizer.unknown_eos_));
    return read_named(tokenizer, root, "pad_token", tokenizer.pad_);
  }

 private:
  // "<|im_end|>" or {"content": "<|im_end|>", ..}.
  static Status read_named(const Tokenizer& tokenizer, const JsonFields& root, std::string_view key,
                           std::optional<TokenId>& id, std::string* unknown = nullptr) {
    const auto value = root.element(key);
    if (!value) return {};
    std::string content;
    if (value->is_object()) {
      TD_ASSIGN_OR_RETURN(const auto token, root.object(key));
      TD_ASSIGN_OR_RETURN(content, require_string(*token, "content"));
    } else {
      TD_ASSIGN_OR_RETURN(content, require_string(root, key));
    }
    id = tokenizer.id_of(content);
    if (!id && unknown != nullptr) *unknown = content;
    return {};
  }

  Status read_normalizer(const JsonFields& fields) {
    TD_ASSIGN_OR_RETURN(const std::string type, require_string(fields, "type"));
    if (type == "NFC") {
      t_.nfc_ = true;
      return {};
    }
    if (type != "Sequence") {
      return fields.error("type", fmt::format("\"{}\" is not supported (expected NFC)", printable(type)));
    }
    TD_ASSIGN_OR_RETURN(const auto steps, objects(fields, "normalizers"));
    for (const JsonFields& step : steps) TD_RETURN_IF_ERROR(read_normalizer(step));
    return {};
  }

  Status read_pre_tokenizer(const JsonFields& fields) {
    if (byte_level_) return fields.error("type", "a step behind ByteLevel is not supported");
    TD_ASSIGN_OR_RETURN(const std::string type, require_string(fields, "type"));
    if (type == "Sequence") {
      TD_ASSIGN_OR_RETURN(const auto steps, objects(fields, "pretokenizers"));
      for (const JsonFields& step : steps) TD_RETURN_IF_ERROR(read_pre_tokenizer(step));
      return {};
    }
    if (type == "Split") return read_split(fields);
    if (type != "ByteLevel") {
      return fields.error(
          "type", fmt::format("\"{}\" is not supported (expected Split or ByteLevel)", printable(type)));
    }
    byte_level_ = true;
    TD_RETURN_IF_ERROR(require_unset(fields, "add_prefix_space"));
    TD_ASSIGN_OR_RETURN(const std::optional<bool> use_regex, fields.boolean("use_regex"));
    if (!use_regex.value_or(true)) return {};
    return t_.pretokenizer_.add_split(kByteLevelPattern, PreTokenizer::Keep::all);
  }

  Status read_split(const JsonFields& fields) {
    TD_ASSIGN_OR_RETURN(const auto pattern, fields.object("pattern"));
    if (!pattern) return fields.error("pattern", "expected an object with Regex, found none");
    TD_ASSIGN_OR_RETURN(const std::string regex, require_string(*pattern, "Regex"));
    TD_ASSIGN_OR_RETURN(const std::string behavior, require_string(fields, "behavior"));
    TD_ASSIGN_OR_RETURN(const std::optional<bool> invert, fields.boolean("invert"));
    PreTokenizer::Keep keep = PreTokenizer::Keep::all;
    if (behavior == "Removed") {
      keep = invert.value_or(false) ? PreTokenizer::Keep::matches : PreTokenizer::Keep::gaps;
    } else if (behavior != "Isolated") {
      return fields.error("behavior", fmt::format("\"{}\" is not supported (expected Isolated or Removed)",
                                                  printable(behavior)));
    }
    const Status added = t_.pretokenizer_.add_split(regex, keep);
    if (!added.ok()) return pattern->error("Regex", "not supported: " + printable(added.error().message));
    return {};
  }

  // Post-processors only add special tokens, which encode() never does; an unknown one might do more.
  static Status check_post_processor(const JsonFields& fields) {
    TD_ASSIGN_OR_RETURN(const std::string type, require_string(fields, "type"));
    if (type == "Sequence") {
      TD_ASSIGN_OR_RETURN(const auto steps, objects(fields, "processors"));
      for (const JsonFields& step : steps) TD_RETURN_IF_ERROR(check_post_processor(step));
      return {};
    }
    for (const char* known : {"ByteLevel", "TemplateProcessing", "BertProcessing", "RobertaProcessing"}) {
      if (type == known) return {};
    }
    return fields.error("type", fmt::format("\"{}\" is not supported", printable(type)));
  }

  static Status check_decoder(const JsonFields& root, const std::optional<JsonFields>& decoder) {
    if (!decoder) return root.error("decoder", "expected an object of type ByteLevel, found nothing");
    TD_ASSIGN_OR_RETURN(const std::string type, require_string(*decoder, "type"));
    if (type == "ByteLevel") return {};
    return decoder->error("type",
                          fmt::format("\"{}\" is not supported (expected ByteLevel)", printable(type)));
  }

  Status read_model(const JsonFields& model) {
    TD_ASSIGN_OR_RETURN(const std::optional<std::string> type, model.string("type"));
    if (type && *type != "BPE") {
      return model.error("type", fmt::format("\"{}\" is not supported (expected BPE)", printable(*type)));
    }
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"}) {
      TD_RETURN_IF_ERROR(require_unset(model, key));
    }
    TD_ASSIGN_OR_RETURN(const std::optional<bool> ignore_merges, model.boolean("ignore_merges"));
    t_.ignore_merges_ = ignore_merges.value_or(false);
    TD_RETURN_IF_ERROR(read_vocab(model));
    TD_RETURN_IF_ERROR(read_merges(model));
    for (int b = 0; b < 256; ++b) t_.byte_ids_[size_t(b)] = -1;
    for (int b = 0; b < 256; ++b) {
      const char byte = char(b);
      if (const auto id = t_.vocab_.find(to_printable({&byte, 1}))) t_.byte_ids_[size_t(b)] = *id;
    }
    return {};
  }

  Status read_vocab(const JsonFields& model) {
    const auto value = model.element("vocab");
    dom::object vocab;
    if (!value || value->get(vocab) != simdjson::SUCCESS) {
      return model.error("vocab",
                         fmt::format("expected an object, found {}", value ? describe(*value) : "nothing"));
    }
    t_.vocab_.reserve(std::min(vocab.size(), size_t(Vocab::kMaxIds)));
    std::string bytes;
    for (const dom::key_value_pair entry : vocab) {
      int64_t id = -1;
      if (entry.value.get(id) != simdjson::SUCCESS || id < 0 || id >= Vocab::kMaxIds) {
        return model.error("vocab",
                           fmt::format("\"{}\": expected an id in [0, {}], found {}", printable(entry.key),
                                       Vocab::kMaxIds - 1, describe(entry.value)));
      }
      const std::string_view meaning = from_printable(entry.key, bytes) ? std::string_view(bytes) : entry.key;
      const Status added = t_.vocab_.add(entry.key, TokenId(id), meaning);
      if (!added.ok()) {
        return model.error("vocab", fmt::format("\"{}\": {}", printable(entry.key), added.error().message));
      }
    }
    return {};
  }

  Status read_merges(const JsonFields& model) {
    const auto value = model.element("merges");
    dom::array merges;
    if (!value || value->get(merges) != simdjson::SUCCESS) {
      return model.error("merges",
                         fmt::format("expected a list, found {}", value ? describe(*value) : "nothing"));
    }
    if (merges.size() > kMaxMerges) {
      return model.error("merges",
                         fmt::format("{} entries, at most {} are accepted", merges.size(), kMaxMerges));
    }
    t_.merges_.reserve(merges.size());
    std::string joined;
    int32_t rank = 0;
    for (const dom::element item : merges) {
      std::string_view left, right;
      if (!split_merge(item, left, right)) {
        return model.error(
            fmt::format("merges[{}]", rank),
            fmt::format("expected \"left right\" or [\"left\", \"right\"], found {}", describe(item)));
      }
      joined.assign(left).append(right);
      const auto a = t_.vocab_.find(left), b = t_.vocab_.find(right), both = t_.vocab_.find(joined);
      if (!a || !b || !both) {
        return model.error(fmt::format("merges[{}]", rank),
                           fmt::format("\"{}\" is not in the vocabulary", printable(!a   ? left
                                                                                    : !b ? right
                                                                                         : joined)));
      }
      t_.merges_.add(*a, *b, {rank, *both});
      ++rank;
    }
    return {};
  }

  static bool split_merge(dom::element item, std::string_view& left, std::string_view& right) {
    std::string_view text;
    if (item.get(text) == simdjson::SUCCESS) {
      const size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
        return false;
      left = text.substr(0, space);
      right = text.substr(space + 1);
      return !left.empty() && !right.empty();
    }
    dom::array pair;
    if (item.get(pair) != simdjson::SUCCESS || pair.size() != 2) return false;
    return pair.at(0).get(left) == simdjson::SUCCESS && pair.at(1).get(right) == simdjson::SUCCESS &&
           !left.empty() && !right.empty();
  }

  Status read_added_token(const JsonFields& fields) {
    AddedToken token;
    TD_ASSIGN_OR_RETURN(const int64_t id, fields.require_integer("id", 0, Vocab::kMaxIds - 1));
    token.id = TokenId(id);
    TD_ASSIGN_OR_RETURN(token.content, require_string(fields, "content"));
    if (token.content.size() > kMaxAddedTokenBytes) {
      return fields.error("content", fmt::format("{} bytes long, at most {} are accepted",
                                                 token.content.size(), kMaxAddedTokenBytes));
    }
    if (token.content.empty()) return {};  // the reference ignores it as well
    TD_RETURN_IF_ERROR(read_flag(fields, "special", token.special));
    TD_RETURN_IF_ERROR(read_flag(fields, "single_word", token.single_word));
    TD_RETURN_IF_ERROR(read_flag(fields, "lstrip", token.lstrip));
    TD_RETURN_IF_ERROR(read_flag(fields, "rstrip", token.rstrip));
    token.normalized = !token.special;  // the reference's default
    TD_RETURN_IF_ERROR(read_flag(fields, "normalized", token.normalized));

    std::string pattern = token.content;
    if (std::string normal; token.normalized && t_.nfc_ && normalize_nfc(token.content, normal, nullptr)) {
      pattern = std::move(normal);
    }
    const std::optional<TokenId> known = t_.vocab_.find(token.content);
    if (known && *known == token.id) {
      t_.vocab_.set_bytes(token.id, pattern);
    } else {
      const Status added = t_.vocab_.add(token.content, token.id, pattern);
      if (!added.ok()) {
        return fields.error("content",
                            fmt::format("\"{}\": {}", printable(token.content), added.error().message));
      }
    }
    const size_t n = size_t(t_.n_tokens());
    t_.special_.resize(n);
    t_.is_added_.resize(n);
    t_.special_[size_t(token.id)] = token.special;
    t_.is_added_[size_t(token.id)] = true;
    (token.normalized ? t_.normalized_matcher_ : t_.raw_matcher_).add(token, pattern);
    t_.added_.push_back(std::move(token));
    return {};
  }

  static Status read_flag(const JsonFields& fields, std::string_view key, bool& flag) {
    TD_ASSIGN_OR_RETURN(const std::optional<bool> value, fields.boolean(key));
    flag = value.value_or(flag);
    return {};
  }

  std::string file_;
  Tokenizer t_;
  bool byte_level_ = false;
};

Result<Tokenizer> Tokenizer::load(const std::string& folder) {
  const std::string path = folder + "/tokenizer.json";
  TD_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  TD_ASSIGN_OR_RETURN(Tokenizer tokenizer, TokenizerReader(path).read(file.bytes()));
  const std::string config_path = folder + "/tokenizer_config.json";
  if (!is_absent(config_path)) {
    TD_ASSIGN_OR_RETURN(const MappedFile config, MappedFile::open(config_path));
    TD_RETURN_IF_ERROR(TokenizerReader::read_config(tokenizer, config.bytes(), config_path));
  }
  return tokenizer;
}

Result<Tokenizer> Tokenizer::parse(std::string_view tokenizer_json, std::string_view config) {
  TD_ASSIGN_OR_RETURN(Tokenizer tokenizer,
                      TokenizerReader("tokenizer.json").read(std::as_bytes(std::span(tokenizer_json))));
  if (!config.empty()) {
    TD_RETURN_IF_ERROR(
        TokenizerReader::read_config(tokenizer, std::as_bytes(std::span(config)), "tokenizer_config.json"));
  }
  return tokenizer;
}

}  // namespace tandem
