// tandem bench serve: an OpenAI endpoint under load, and what serving costs over the bare engine.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "cli/bench/bench.h"
#include "cli/bench/load_client.h"
#include "cli/bench/load_engine.h"
#include "cli/bench/load_figures.h"
#include "cli/bench/load_prompts.h"
#include "cli/model_flags.h"
#include "cli/serving.h"

namespace tandem::bench {
namespace {

constexpr const char* kCommand = "bench serve";

constexpr const char* kExamples =
    "tandem bench serve --model models/tandem-demo --threads 1 --concurrency 1,16\n"
    "tandem bench serve --url http://127.0.0.1:8080 --pp 512,4096 --tg 128 --concurrency 1,2,4,8\n"
    "tandem bench serve --url http://127.0.0.1:8080 --depth 0,4096,32768 --json\n"
    "tandem bench serve --url http://127.0.0.1:8080 --rate 4 --requests 200 --prompts code";

constexpr double kMaxDisagreement = 0.05;  // between the server's figures and ours
constexpr int kOpenRequests = 32;
constexpr int kMostAtOnce = 64;  // that a model served here answers

struct Flags {
  BenchFlags common;
  SpeculationFlags speculation;
  std::optional<std::string> url;
  std::string api_key, served_name, prompts = "natural";
  std::vector<int> pp{128}, tg{128}, depth{0};
  std::optional<std::vector<int>> concurrency;
  std::optional<int> requests;
  std::optional<double> rate;
  std::optional<bool> stream;
  bool cached = false;

  bool streams() const { return stream.value_or(true); }
  std::vector<int> concurrencies() const {
    if (rate) return {std::min(requests.value_or(kOpenRequests), kMostAtOnce)};
    return concurrency.value_or(std::vector<int>{1});
  }
  int n_requests(int at_once) const { return requests.value_or(rate ? kOpenRequests : at_once); }
  PromptWriter::Kind kind() const {
    if (prompts == "code") return PromptWriter::Kind::code;
    return prompts == "atom" ? PromptWriter::Kind::atom : PromptWriter::Kind::natural;
  }
};

int greatest(const std::vector<int>& values) { return *std::max_element(values.begin(), values.end()); }

std::optional<int> parse(Flags& flags, Arguments args) {
  Options options(kCommand,
                  "Sends completions to an endpoint of the OpenAI API, each with text of its own, and "
                  "measures what comes back, on this side. With --model it serves that model here and gives "
                  "the same load to a bare engine in turns: overhead = 1 - served / bare tokens per second.",
                  kExamples);
  options.add("--url", &flags.url, "URL", "The endpoint, http://HOST:PORT");
  options.add("--api-key", &flags.api_key, "KEY", "For the endpoint");
  options.add("--served-model-name", &flags.served_name, "NAME",
              "Which of the endpoint's models [the first]");
  options.add("-m,--model", &flags.common.models, "DIR",
              "Instead of --url: serve this model here, on a free port; may be repeated");
  options.section("Load");
  options.add("--pp", &flags.pp, "N,M", "Prompt tokens [128]", {.min = 1, .max = 1 << 20});
  options.add("--tg", &flags.tg, "N,M", "Generated tokens [128]", {.min = 1, .max = 1 << 20});
  options.add("--concurrency", &flags.concurrency, "1,8", "Requests at once, the next when one ends [1]",
              {.min = 1, .max = 4096});
  options.add("--depth", &flags.depth, "N,M",
              "Tokens that were sent before, which the prompt goes on from [0]", {.min = 0, .max = 1 << 22});
  options.add("--requests", &flags.requests, "N",
              fmt::format("In each repetition [as many as run at once; {} with --rate]", kOpenRequests),
              {.min = 1, .max = 100000});
  options.add("--rate", &flags.rate, "R",
              "Send R requests per second at random times, whatever runs, instead of --concurrency",
              {.min = 1e-3, .max = 1e6});
  options.toggle("--stream", flags.stream, "Answers come token by token [on]");
  options.add("--prompts", &flags.prompts, "KIND",
              "natural, code or atom: one letter again and again, which flatters drafters [natural]",
              {.choices = {"natural", "code", "atom"}});
  options.flag("--cached", flags.cached, "The same prompts in every repetition, sent once before");
  flags.speculation.add_to(options);
  options.section("Device");
  add_backend_choice(options, flags.common.backend);
  flags.common.models.clear();
  flags.common.columns = {"test",
                          "concurrency",
                          "requests",
                          "errors",
                          "tokens_per_s",
                          "aggregate_tokens_per_s",
                          "ttft_ms_p50",
                          "ttft_ms_p99",
                          "tpot_ms_p50",
                          "inter_token_ms_p99",
                          "cached_tokens",
                          "server_tokens_per_s",
                          "client_cpu_share",
                          "bare_tokens_per_s",
                          "overhead"};
  flags.common.add_to(options, 3, "--repeat");
  if (const auto code = options.parse(args)) return code;
  if (flags.url.has_value() == !flags.common.models.empty())
    return misuse(kCommand, "expected one of --url URL and --model DIR");
  if (flags.rate && flags.concurrency) return misuse(kCommand, "--rate and --concurrency exclude each other");
  if (!flags.url && greatest(flags.concurrencies()) > kMostAtOnce)
    return misuse(kCommand, fmt::format("--concurrency: with --model, {} at most", kMostAtOnce));
  if (const Status status = flags.speculation.check(); !status.ok())
    return misuse(kCommand, status.error().message);
  return std::nullopt;
}

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json percentile_or_null(const std::vector<double>& values, double p) {
  return values.empty() ? Json(nullptr) : Json(percentile(values, p));
}

// The loads of one point, a result for each repetition.
struct Point {
  std::string test;  // "pp512 tg128 @ d4096"
  int concurrency = 1, depth = 0, pp = 0, tg = 0;
  std::vector<LoadResult> served, bare;  // bare: empty without an engine
};

// What a request got from the whole: streams are judged by their events, answers that come whole by their
// end.
std::optional<double> delivered(const LoadResult& result, bool streams) {
  const LoadFigures f = LoadFigures::of(result.answers);
  return streams ? f.aggregate : f.end_to_end;
}

template <class Get>
Json median_of(const std::vector<LoadResult>& results, const Get& get) {
  std::vector<double> values;
  for (const LoadResult& r : results) {
    if (const std::optional<double> v = get(r)) values.push_back(*v);
  }
  return percentile_or_null(values, 0.5);
}

// The load beside its terms, then figures: medians over the repetitions of what belongs to all requests
// together, percentiles over all requests of all repetitions.
Json row_of_point(const Flags& flags, const Point& point, Json row) {
  std::vector<Answer> answers;
  LoadFigures sums;
  std::string error;
  double cpu = 0;
  int in_flight = 0;
  bool coherent = true;
  for (const LoadResult& r : point.served) {
    answers.insert(answers.end(), r.answers.begin(), r.answers.end());
    cpu = std::max(cpu, r.client_cpu_share);
    in_flight = std::max(in_flight, r.max_in_flight);
    coherent = coherent && LoadFigures::of(r.answers).coherent;
  }
  std::vector<double> server_speeds, disagreements, server_ttft, accepted;
  for (const Answer& a : answers) {
    if (!a.ok() && error.empty()) error = a.error;
    if (!a.ok() || !a.server_tokens_per_s) continue;
    server_speeds.push_back(*a.server_tokens_per_s);
    if (a.server_ttft_ms) server_ttft.push_back(*a.server_ttft_ms);
    if (a.mean_accepted) accepted.push_back(*a.mean_accepted);
    for (const double ours : decode_speeds({&a, 1}))
      disagreements.push_back(std::abs(*a.server_tokens_per_s / ours - 1));
  }
  sums = LoadFigures::of(answers);
  const auto all = [&](auto member) {
    return median_of(point.served, [&](const LoadResult& r) { return LoadFigures::of(r.answers).*member; });
  };
  row["test"] = point.test;
  row["prompts"] = flags.prompts;
  row["stream"] = flags.streams();
  row["cached"] = flags.cached;
  row["rate_per_s"] = or_null(flags.rate);
  row["concurrency"] = flags.rate ? in_flight : point.concurrency;
  row["depth"] = point.depth;
  row["pp"] = point.pp;
  row["tg"] = point.tg;
  row["requests"] = sums.n_requests;
  row["errors"] = sums.n_errors;
  row["first_error"] = error.empty() ? Json(nullptr) : Json(error);
  row["prompt_tokens"] = sums.prompt_tokens;
  row["cached_tokens"] = sums.cached_tokens;
  row["generated_tokens"] = sums.tokens;
  const std::vector<double> speeds = decode_speeds(answers);
  row["tokens_per_s"] = percentile_or_null(speeds, 0.5);
  row["tokens_per_s_min"] = percentile_or_null(speeds, 0);
  row["tokens_per_s_max"] = percentile_or_null(speeds, 1);
  row["aggregate_tokens_per_s"] = all(&LoadFigures::aggregate);
  row["steady_tokens_per_s"] = all(&LoadFigures::aggregate_steady);
  row["end_to_end_tokens_per_s"] = all(&LoadFigures::end_to_end);
  row["prefill_tokens_per_s"] = percentile_or_null(prefill_speeds(answers), 0.5);
  row["prefill_aggregate_tokens_per_s"] = all(&LoadFigures::prefill_aggregate);
  const std::vector<double> ttft = ttft_ms(answers), tpot = tpot_ms(answers);
  const std::vector<double> gaps = gaps_ms(answers, false), rounds = gaps_ms(answers, true);
  for (const auto& [name, p] : {std::pair{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}})
    row[fmt::format("ttft_ms_{}", name)] = percentile_or_null(ttft, p);
  for (const auto& [name, p] : {std::pair{"p50", 0.5}, {"p99", 0.99}}) {
    row[fmt::format("tpot_ms_{}", name)] = percentile_or_null(tpot, p);
    row[fmt::format("inter_token_ms_{}", name)] = percentile_or_null(gaps, p);
    row[fmt::format("round_ms_{}", name)] = percentile_or_null(rounds, p);
  }
  row["server_tokens_per_s"] = percentile_or_null(server_speeds, 0.5);
  row["server_ttft_ms_p50"] = percentile_or_null(server_ttft, 0.5);
  row["mean_accepted"] = percentile_or_null(accepted, 0.5);
  row["server_disagrees"] =
      disagreements.empty() ? Json(nullptr) : Json(median(disagreements) > kMaxDisagreement);
  row["coherent"] = coherent;
  row["client_cpu_share"] = cpu;
  if (point.bare.empty()) return row;
  std::vector<double> overheads;
  for (size_t i = 0; i < point.bare.size(); ++i) {
    const auto served = delivered(point.served[i], flags.streams());
    const auto bare = delivered(point.bare[i], flags.streams());
    if (served && bare) overheads.push_back(1 - *served / *bare);
  }
  row["bare_tokens_per_s"] =
      median_of(point.bare, [&](const LoadResult& r) { return delivered(r, flags.streams()); });
  row["overhead"] = percentile_or_null(overheads, 0.5);
  row["overhead_p10"] = percentile_or_null(overheads, 0.1);
  row["overhead_p90"] = percentile_or_null(overheads, 0.9);
  return row;
}

// Points on one endpoint, and on a bare engine where there is one.
class Sweep {
 public:
  Sweep(const Flags& flags, LoadClient& client, RequestForm form, Tokenise tokenise, Engine* bare, Json row)
      : flags_(flags),
        client_(client),
        form_(std::move(form)),
        tokenise_(std::move(tokenise)),
        bare_(bare),
        row_(std::move(row)),
        writer_(flags.kind(), std::random_device()()) {}

  Status run(std::vector<Json>& rows) {
    for (const int at_once : flags_.concurrencies()) {
      TD_RETURN_IF_ERROR(warm_up(at_once));
      for (const int depth : flags_.depth) {
        bool first = true;
        for (const int pp : flags_.pp) {
          for (const int tg : flags_.tg) TD_RETURN_IF_ERROR(point(at_once, depth, pp, tg, first, rows));
        }
      }
    }
    return {};
  }

 private:
  Result<Prompt> prompt_of(int n_tokens) {
    if (tokenise_) return writer_.of_tokens(n_tokens, tokenise_);
    return Prompt{.ids = {}, .text = writer_.text(size_t(n_tokens * bytes_per_token_))};
  }

  Result<std::vector<Prompt>> prompts_of(int n, int n_tokens) {
    std::vector<Prompt> prompts;
    for (int i = 0; i < n; ++i) {
      TD_ASSIGN_OR_RETURN(Prompt prompt, prompt_of(n_tokens));
      prompts.push_back(std::move(prompt));
    }
    return prompts;
  }

  // Connections, pages and the lengths of drafts; and where nobody tokenises, how long a token is.
  Status warm_up(int at_once) {
    Load load{.max_tokens = std::min(flags_.tg.front(), 16), .concurrency = at_once, .arrivals = {}};
    TD_ASSIGN_OR_RETURN(load.prompts, prompts_of(at_once, flags_.pp.front()));
    const LoadResult result = client_.run(load, form_);
    if (bare_ != nullptr) run_on_engine(*bare_, load);
    const Answer& a = result.answers.front();
    if (!tokenise_ && a.ok() && a.prompt_tokens > 0)
      bytes_per_token_ = double(load.prompts.front().text.size()) / a.prompt_tokens;
    return {};
  }

  // One load on both, the one or the other first.
  void run_both(const Load& load, int repetition, Point& point) {
    const auto serve = [&] { point.served.push_back(client_.run(load, form_)); };
    if (bare_ == nullptr) return serve();
    if (repetition % 2 == 0) serve();
    point.bare.push_back(run_on_engine(*bare_, load));
    if (repetition % 2 != 0) serve();
  }

  std::vector<double> arrivals(int n) {
    std::vector<double> times;
    if (!flags_.rate) return times;
    std::exponential_distribution<double> gap(*flags_.rate);
    double t = 0;
    for (int i = 0; i < n; ++i) times.push_back(t += gap(arrival_random_));
    return times;
  }

  // first: of this depth, whose loading gets a row of its own then.
  Status point(int at_once, int depth, int pp, int tg, bool& first, std::vector<Json>& rows) {
    const std::string behind = depth > 0 ? fmt::format(" @ d{}", depth) : "";
    Point context{.test = fmt::format("load d{}", depth),
                  .concurrency = at_once,
                  .pp = depth,
                  .tg = 1,
                  .served = {},
                  .bare = {}};
    Point point{.test = fmt::format("pp{} tg{}{}", pp, tg, behind),
                .concurrency = at_once,
                .depth = depth,
                .pp = pp,
                .tg = tg,
                .served = {},
                .bare = {}};
    const int n = flags_.n_requests(at_once);
    std::vector<Prompt> prompts;
    for (int repetition = flags_.cached ? -1 : 0; repetition < flags_.common.rounds; ++repetition) {
      if (prompts.empty() || !flags_.cached) {
        TD_ASSIGN_OR_RETURN(prompts, prompts_of(n, depth + pp));
        if (depth > 0) run_both(beginnings(prompts, depth, pp, at_once), repetition, context);
      }
      const Load load{.prompts = prompts, .max_tokens = tg, .concurrency = at_once, .arrivals = arrivals(n)};
      if (repetition >= 0) {
        run_both(load, repetition, point);
      } else {
        Point dropped;
        run_both(load, repetition, dropped);
      }
    }
    if (depth > 0 && first) rows.push_back(row_of_point(flags_, context, row_));
    first = false;
    rows.push_back(row_of_point(flags_, point, row_));
    return {};
  }

  static Load beginnings(const std::vector<Prompt>& prompts, int depth, int pp, int at_once) {
    Load load{.prompts = prompts, .max_tokens = 1, .concurrency = at_once, .arrivals = {}};
    for (Prompt& p : load.prompts) {
      p.text.resize(p.text.size() * size_t(depth) / size_t(depth + pp));
      if (!p.ids.empty()) p.ids.resize(size_t(depth));
    }
    return load;
  }

  const Flags& flags_;
  LoadClient& client_;
  const RequestForm form_;
  const Tokenise tokenise_;
  Engine* const bare_;
  const Json row_;
  PromptWriter writer_;
  std::mt19937_64 arrival_random_{1};  // the same times for every point of the same rate
  double bytes_per_token_ = 4;
};

// The endpoint's way from text to ids, if it has one.
Tokenise tokeniser_of(LoadClient& client, const std::string& model) {
  const auto tokenise = [&client, model](const std::string& text) -> Result<std::vector<TokenId>> {
    Json body{{"prompt", text}, {"content", text}};
    if (!model.empty()) body["model"] = model;
    TD_ASSIGN_OR_RETURN(const LoadClient::Reply reply, client.call("/tokenize", body.dump()));
    const Json json = Json::parse(reply.body, nullptr, false);
    std::vector<TokenId> ids;
    if (json.is_object() && json.contains("tokens") && json["tokens"].is_array()) {
      for (const Json& id : json["tokens"]) {
        if (id.is_number_integer()) ids.push_back(id.get<TokenId>());
      }
    }
    if (reply.status != 200 || ids.empty())
      return Error{fmt::format("/tokenize: {}: {}", reply.status, reply.body.substr(0, 200))};
    return ids;
  };
  if (!tokenise("a").ok()) return {};
  return tokenise;
}

// Median seconds of a request that computes nothing; the name of the first model. Errors: nobody there.
struct Greeting {
  double latency_s = 0;
  std::string model;
};

Result<Greeting> greet(LoadClient& client) {
  Greeting greeting;
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) {
    TD_ASSIGN_OR_RETURN(const LoadClient::Reply reply, client.call("/v1/models"));
    seconds.push_back(reply.seconds);
    const Json json = Json::parse(reply.body, nullptr, false);
    if (reply.status == 200 && json.is_object() && json.contains("data") && json["data"].is_array() &&
        !json["data"].empty() && json["data"][0].is_object())
      greeting.model = json["data"][0].value("id", "");
  }
  greeting.latency_s = median(seconds);
  return greeting;
}

Status bench_endpoint(const Flags& flags, std::vector<Json>& rows) {
  TD_ASSIGN_OR_RETURN(Endpoint endpoint, Endpoint::parse(*flags.url));
  endpoint.api_key = flags.api_key;
  TD_ASSIGN_OR_RETURN(const std::unique_ptr<LoadClient> client, LoadClient::create(endpoint));
  TD_ASSIGN_OR_RETURN(const Greeting greeting, greet(*client));
  const std::string name = flags.served_name.empty() ? greeting.model : flags.served_name;
  Json row = row_of("serve", name, *flags.url, 0);
  row["latency_ms"] = greeting.latency_s * 1e3;
  Sweep sweep(flags, *client, {.model = name, .stream = flags.streams()}, tokeniser_of(*client, name),
              nullptr, std::move(row));
  return sweep.run(rows);
}

Status bench_model(const Flags& flags, const std::string& name, int threads, std::vector<Json>& rows) {
  const ServingOptions defaults;
  TD_ASSIGN_OR_RETURN(LoadedModel model,
                      load(flags.common, kCommand, name, threads,
                           {.max_rows = defaults.prefill_chunk, .max_logit_rows = kMaxDecodeRows}));
  if (!model.tokenizer) return Error{name + ": no tokenizer.json, so there is no text to serve"};
  // One more than asked for: the context holds the last token too.
  const int positions = greatest(flags.depth) + greatest(flags.pp) + greatest(flags.tg) + 1;
  TD_RETURN_IF_ERROR(check_context(model, positions));
  ServingOptions options;
  options.port = 0;
  options.names = {served_name_of(name)};
  options.max_running = greatest(flags.concurrencies());
  options.max_queue = 100000;
  options.context = positions;
  TD_ASSIGN_OR_RETURN(const ServingEngine bare, ServingEngine::create(model, flags.speculation, options));
  TD_ASSIGN_OR_RETURN(const std::unique_ptr<Serving> serving,
                      Serving::start(model, flags.speculation, options));
  TD_ASSIGN_OR_RETURN(
      const std::unique_ptr<LoadClient> client,
      LoadClient::create({.host = "127.0.0.1", .port = serving->port(), .prefix = {}, .api_key = {}}));
  TD_ASSIGN_OR_RETURN(const Greeting greeting, greet(*client));
  Json row = row_of("serve", model.name, *model.backend);
  row["latency_ms"] = greeting.latency_s * 1e3;
  const auto tokenise = [&](const std::string& text) {
    return model.tokenizer->encode(text, SpecialTokens::plain);
  };
  Sweep sweep(flags, *client, {.model = {}, .stream = flags.streams()}, tokenise, bare.engine.get(),
              std::move(row));
  return sweep.run(rows);
}

Result<std::vector<Json>> bench(const Flags& flags) {
  std::vector<Json> rows;
  if (flags.url) {
    TD_RETURN_IF_ERROR(bench_endpoint(flags, rows));
    return rows;
  }
  for (const std::string& name : flags.common.models) {
    for (const int threads : flags.common.thread_counts())
      TD_RETURN_IF_ERROR(bench_model(flags, name, threads, rows));
  }
  return rows;
}

}  // namespace

int run_serve(Arguments args) {
  Flags flags;
  if (const auto code = parse(flags, args)) return *code;
  const Result<std::vector<Json>> rows = bench(flags);
  const int code = report(flags.common, kCommand, rows);
  if (!rows.ok()) return code;
  bool any = false;
  std::string error;
  for (const Json& row : *rows) {
    const std::string test = row["test"].get<std::string>();
    any = any || row["errors"] < row["requests"];
    if (row["first_error"].is_string()) error = row["first_error"].get<std::string>();
    if (row["server_disagrees"] == true) {
      warn(kCommand, fmt::format("{}: the server's own tokens per second differ from what was seen here by "
                                 "more than {:.0f}%",
                                 test, kMaxDisagreement * 100));
    }
    if (row["coherent"] == false)
      warn(kCommand, fmt::format("{}: the aggregate is more than its requests' speeds allow", test));
  }
  return any ? code : fail(kCommand, "every request failed: " + error);
}

}  // namespace tandem::bench
