// tandem chat: a conversation on the terminal, or line by line through a pipe.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "cli/answer.h"
#include "cli/command.h"
#include "cli/conversation.h"
#include "cli/interrupt.h"
#include "cli/model_flags.h"
#include "cli/options.h"
#include "cli/output.h"

namespace tandem {
namespace {

constexpr const char* kCommand = "chat";

constexpr const char* kExamples =
    "tandem chat --model models/tandem-demo\n"
    "tandem chat --model DIR --system 'Answer in one sentence.' --temperature 0.7 --no-think\n"
    "printf 'write function add\\n/exit\\n' | tandem chat --model models/tandem-demo";

// A conversation grows: without --context it gets this much room, or the model's whole context if smaller.
constexpr int kDefaultContext = 8192;

struct Flags {
  ModelFlags model;
  SamplingFlags sampling;
  SpeculationFlags speculation;
  std::optional<std::string> system;
  std::optional<bool> thinking;
};

std::optional<int> parse(Flags& flags, Arguments args) {
  Options options(
      kCommand,
      "Talks with a model: a line is a message; /clear forgets the conversation, /exit or the end of "
      "the input ends it, Ctrl-C ends an answer.",
      kExamples);
  flags.model.add_model(options);
  options.section("Chat");
  options.add("--system", &flags.system, "TEXT", "The system message");
  options.toggle("--think", flags.thinking, "Ask the template for thinking, or for none");
  flags.sampling.max_tokens = 1024;
  flags.sampling.add_to(options);
  flags.speculation.add_to(options);
  flags.model.add_backend(options);
  flags.model.add_limits(options);
  if (const auto code = options.parse(args)) return code;
  for (const Status& status : {flags.model.check(), flags.sampling.check(), flags.speculation.check()}) {
    if (!status.ok()) return misuse(kCommand, status.error().message);
  }
  return std::nullopt;
}

// Lines of standard input, read without stdio so that Ctrl-C at the prompt is noticed.
class Lines {
 public:
  enum class End { line, input, interrupt };

  // The next line without its newline. Errors: the system's reason.
  Result<End> next(std::string& line) {
    while (true) {
      if (const size_t end = buffer_.find('\n', n_searched_); end != std::string::npos) {
        line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        n_searched_ = 0;
        return End::line;
      }
      n_searched_ = buffer_.size();
      if (n_searched_ > kMaxLine) {
        return Error{
            fmt::format("standard input: a line of more than {} bytes, expected a message", kMaxLine)};
      }
      char block[1 << 16];
      const ssize_t n = ::read(STDIN_FILENO, block, sizeof block);
      if (n < 0 && errno == EINTR) {
        if (interrupted()) return End::interrupt;
        continue;
      }
      if (n < 0) return Error{fmt::format("standard input: {}", std::strerror(errno))};
      if (n == 0) {
        line = std::move(buffer_);
        buffer_.clear();
        n_searched_ = 0;
        return line.empty() ? End::input : End::line;
      }
      buffer_.append(block, size_t(n));
    }
  }

 private:
  static constexpr size_t kMaxLine = size_t{64} << 20;  // far more than any context holds
  std::string buffer_;
  size_t n_searched_ = 0;  // bytes of the buffer known to hold no end of a line
};

constexpr const char* kSpaces = " \t\r";

// Without the white space at its end: commands, and lines of files from Windows.
std::string_view trimmed(std::string_view line) {
  const size_t end = line.find_last_not_of(kSpaces);
  return line.substr(0, end == line.npos ? 0 : end + 1);
}

// A first word of a slash and letters: "/help", not "/etc/hosts".
bool is_command(std::string_view line) {
  const std::string_view word = line.substr(0, line.find_first_of(kSpaces));
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  return word.size() > 1 && word[0] == '/' && std::all_of(word.begin() + 1, word.end(), is_letter);
}

class Chat {
 public:
  // context: positions that the engine has for one conversation.
  Chat(const Flags& flags, const LoadedModel& model, Engine& engine, int context)
      : flags_(flags),
        model_(model),
        engine_(engine),
        context_(context),
        conversation_(flags.system, flags.thinking),
        terminal_(is_terminal(STDIN_FILENO) && is_terminal(STDOUT_FILENO)) {}

  int run() {
    if (terminal_)
      say(fmt::format("{}: /clear forgets, /exit ends, Ctrl-C stops an answer\n",
                      terminal_safe(model_.name)));
    std::string line;
    while (true) {
      watch_interrupt();
      if (told_to_end()) return out_.finish(kCommand, kInterrupted);
      if (terminal_) out_.write("> ");
      if (const int code = out_.finish(kCommand, kDone); code != kDone) return code;
      const Result<Lines::End> end = lines_.next(line);
      if (!end.ok()) return fail(kCommand, end.error().message);
      if (*end == Lines::End::line) {
        if (line.ends_with('\r')) line.pop_back();
        if (trimmed(line) == "/exit") return kDone;
        if (trimmed(line) == "/clear") {
          conversation_.clear();
        } else if (is_command(trimmed(line))) {
          fail(kCommand,
               fmt::format("{} is no command: /clear forgets the conversation, /exit ends it; begin "
                           "with a space what the model is to read",
                           line.substr(0, line.find_first_of(kSpaces))));
          // As below.
          if (!terminal_) return kFailed;
        } else if (!trimmed(line).empty()) {
          if (const Status status = answer(line); !status.ok()) {
            conversation_.drop_last();
            // On a terminal one goes on; a script must learn of it.
            fail(kCommand, status.error().message);
            if (!terminal_) return kFailed;
          }
        }
        continue;
      }
      if (terminal_) out_.write("\n");
      return out_.finish(kCommand, *end == Lines::End::interrupt ? int{kInterrupted} : int{kDone});
    }
  }

 private:
  Status answer(const std::string& line) {
    conversation_.add_user(line);
    TD_ASSIGN_OR_RETURN(std::vector<TokenId> prompt, conversation_.prompt(model_));
    if (prompt.size() >= size_t(context_)) {
      return Error{
          fmt::format("with this message the conversation has {} tokens, the context holds {} and the answer "
                      "needs at least "
                      "one: /clear forgets the conversation, a larger --context makes room",
                      prompt.size(), context_)};
    }
    Request request{.prompt = std::move(prompt),
                    .sampling = flags_.sampling.params(model_),
                    .max_tokens = flags_.sampling.max_tokens,
                    .top_logprobs = std::nullopt};
    TD_ASSIGN_OR_RETURN(const Answer answer, run_answer(engine_, &*model_.tokenizer, std::move(request),
                                                        flags_.sampling.stop, [&](std::string_view piece) {
                                                          out_.write(piece);
                                                          return out_.flush().ok();
                                                        }));
    conversation_.add_assistant(*answer.text);
    out_.write("\n");
    TD_RETURN_IF_ERROR(out_.flush());
    if (terminal_) {
      say(fmt::format("[{}]\n", figures(answer, flags_.sampling.max_tokens)));
      const std::string line = figures(answer.stats.speculation);
      if (!line.empty()) say("[" + line + "]\n");
    }
    return {};
  }

  const Flags& flags_;
  const LoadedModel& model_;
  Engine& engine_;
  const int context_;
  Conversation conversation_;
  const bool terminal_;
  Lines lines_;
  Output out_;
};

}  // namespace

int run_chat(Arguments args) {
  Flags flags;
  if (const auto code = parse(flags, args)) return *code;
  if (const Status status = flags.model.check_reads_text(); !status.ok())
    return fail(kCommand, status.error().message);
  Result<LoadedModel> model = flags.model.load(kCommand, kMaxDecodeRows);
  if (!model.ok()) return fail(kCommand, model.error().message);
  if (!model->tokenizer) return fail(kCommand, model->name + ": no tokenizer.json, so there is no chat");
  if (!model->chat_template) return fail(kCommand, model->chat_template_error.message);
  Result<int> context = flags.model.context_of(*model);
  if (!context.ok()) return fail(kCommand, context.error().message);
  if (!flags.model.context) *context = std::min(*context, kDefaultContext);
  EngineOptions options{.max_sequences = 1,
                        .max_positions = *context,
                        .prefill_chunk = flags.model.prefill_chunk,
                        .n_text_tokens = model->n_text_tokens()};
  const Result<SpeculationFlags::Drafters> drafters =
      flags.speculation.load(*model, {.max_positions = options.max_positions});
  if (!drafters.ok()) return fail(kCommand, drafters.error().message);
  flags.speculation.apply(*drafters, options);
  const Result<std::unique_ptr<Engine>> engine = Engine::create(*model->decoder, options);
  if (!engine.ok()) return fail(kCommand, engine.error().message);
  return Chat(flags, *model, **engine, *context).run();
}

}  // namespace tandem
