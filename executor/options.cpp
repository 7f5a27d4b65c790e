#include "executor/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>

#include "base/error.h"
#include "base/suggest.h"
#include "job/field_text.h"

namespace vramfit {

namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

std::string not_empty(std::string_view text) {
  if (text.empty()) throw InputError("must not be empty");
  return std::string(text);
}

std::string device_name(std::string_view text) {
  if (text != "auto" && text != "cpu" && text != "cuda" && text != "phantom") {
    unknown_value(text, {"auto", "cpu", "cuda", "phantom"});
  }
  return std::string(text);
}

bool is_on(std::string_view text) {
  if (text != "on" && text != "off") unknown_value(text, {"on", "off"});
  return text == "on";
}

int token_bytes(std::string_view text) {
  const auto bytes = static_cast<int>(whole_number(text, 2, 4));
  if (bytes == 3) throw InputError("must be 2 or 4");
  return bytes;
}

using Text = std::string_view;

struct Flag {
  std::string_view name, value, help;
  void (*set)(RunOptions&, Text);
};

constexpr std::array kFlags{
    Flag{"--plan", "FILE", "plan.json to run", [](RunOptions& o, Text t) { o.plan = not_empty(t); }},
    Flag{"-o", "FILE", "where rank 0 writes run.json", [](RunOptions& o, Text t) { o.output = not_empty(t); }},
    Flag{"--device", "auto|cpu|cuda|phantom", "auto: what the plan was made for; phantom: under `vramfit run` only",
         [](RunOptions& o, Text t) { o.device = device_name(t); }},
    Flag{"--ghosts", "on|off", "phantom: run this rank alone, with the others simulated (off)",
         [](RunOptions& o, Text t) { o.ghosts = is_on(t); }},
    Flag{"--steps", "N", "optimizer steps (10)",
         [](RunOptions& o, Text t) { o.train.steps = whole_number(t, 1, 1'000'000'000); }},
    Flag{"--data", "PATH",
         "token file (.bin, .npy), text file or directory of text; may be repeated (synthetic tokens)",
         [](RunOptions& o, Text t) { o.data.push_back(not_empty(t)); }},
    Flag{"--token-bytes", "2|4", "bytes per token in .bin files (by vocabulary size)",
         [](RunOptions& o, Text t) { o.token_bytes = token_bytes(t); }},
    Flag{"--weights", "random|PATH", "initial weights: random, or safetensors (random)",
         [](RunOptions& o, Text t) { o.weights = not_empty(t); }},
    Flag{"--save", "DIR", "write checkpoints to DIR/step-N: after the last step, and every --save-every steps",
         [](RunOptions& o, Text t) { o.save.directory = not_empty(t); }},
    Flag{"--save-every", "N", "with --save: a checkpoint every N steps",
         [](RunOptions& o, Text t) { o.save.every = whole_number(t, 1, 1'000'000'000); }},
    Flag{"--keep", "K", "with --save: keep the K latest checkpoints (3)",
         [](RunOptions& o, Text t) { o.save.keep = whole_number(t, 1, 1'000'000'000); }},
    Flag{"--save-full", "DIR",
         "after the last step: write DIR/model.safetensors and config.json in transformers' format",
         [](RunOptions& o, Text t) { o.save.full = not_empty(t); }},
    Flag{"--resume", "DIR", "resume from the latest valid checkpoint in DIR, on any number of ranks",
         [](RunOptions& o, Text t) { o.save.resume = not_empty(t); }},
    Flag{"--lr", "X", "peak learning rate (0.001)",
         [](RunOptions& o, Text t) { o.train.optimizer.learning_rate = real_number(t, 0, 1e6); }},
    Flag{"--warmup", "N", "steps of linear warmup (0); cosine decay to zero follows",
         [](RunOptions& o, Text t) { o.train.warmup = whole_number(t, 0, 1'000'000'000); }},
    Flag{"--clip", "X", "gradient-clipping norm (1); 0: no clipping",
         [](RunOptions& o, Text t) { o.train.clip = real_number(t, 0, 1e30); }},
    Flag{"--beta1", "X", "AdamW beta1 (0.9)",
         [](RunOptions& o, Text t) { o.train.optimizer.beta1 = real_number(t, 0, 0.9999999); }},
    Flag{"--beta2", "X", "AdamW beta2 (0.999)",
         [](RunOptions& o, Text t) { o.train.optimizer.beta2 = real_number(t, 0, 0.9999999); }},
    Flag{"--eps", "X", "AdamW epsilon (1e-8)",
         [](RunOptions& o, Text t) { o.train.optimizer.eps = real_number(t, 0, 1); }},
    Flag{"--weight-decay", "X", "AdamW weight decay, on every parameter (0.01)",
         [](RunOptions& o, Text t) { o.train.optimizer.weight_decay = real_number(t, 0, 1e6); }},
    Flag{"--seed", "N", "seed of random weights, data order and masks (0)",
         [](RunOptions& o, Text t) { o.train.seed = static_cast<std::uint64_t>(whole_number(t, 0, kMost)); }},
    Flag{"--threads", "N", "CPU threads per rank (cores / local ranks)",
         [](RunOptions& o, Text t) { o.threads = static_cast<int>(whole_number(t, 1, 4096)); }},
    Flag{"--budget", "BYTES", "CPU ranks: fail allocations beyond this (the plan's cpu-SIZE); 0: no limit",
         [](RunOptions& o, Text t) { o.budget = Bytes{whole_number(t, 0, kMost)}; }},
    Flag{"--timeout", "SECONDS", "how long ranks wait for each other (600)",
         [](RunOptions& o, Text t) { o.timeout_seconds = whole_number(t, 1, 1'000'000); }},
    Flag{"--events", "DIR", "write every allocation and free as JSON lines to DIR/rankN.jsonl",
         [](RunOptions& o, Text t) { o.events = not_empty(t); }},
    Flag{"--progress", "auto|bar|lines|none", "progress on stderr; auto: a bar on a terminal, else one line per step",
         [](RunOptions& o, Text t) { o.observe.progress = progress_style(t); }},
    Flag{"--metrics", "FILE", "append one JSON object per step: losses, speed, memory by phase",
         [](RunOptions& o, Text t) { o.observe.metrics = not_empty(t); }},
    Flag{"--trace", "FILE.json", "timeline of --trace-steps for chrome://tracing or Perfetto, one file per rank",
         [](RunOptions& o, Text t) { o.observe.trace = not_empty(t); }},
    Flag{"--trace-steps", "FIRST-LAST", "with --trace: the steps to trace (2-3)",
         [](RunOptions& o, Text t) { o.observe.trace_steps = step_range(t); }},
    Flag{"--snapshot", "FILE.pickle", "memory snapshot at the end, for PyTorch's memory_viz, one file per rank",
         [](RunOptions& o, Text t) { o.observe.snapshot = not_empty(t); }},
    Flag{"--dump-state", "DIR", "write the final parameters as DIR/parameters.safetensors",
         [](RunOptions& o, Text t) {
           o.dumps.directory = not_empty(t);
           o.dumps.parameters = true;
         }},
    Flag{"--dump-gradients", "STEP", "with --dump-state: the gradients of this step, before clipping",
         [](RunOptions& o, Text t) { o.dumps.gradients_step = whole_number(t, 1, kMost); }},
    Flag{"--dump-logits", "on|off", "with --dump-state: the logits of step 1, each rank and micro-batch",
         [](RunOptions& o, Text t) { o.dumps.logits = is_on(t); }},
};

const Flag& flag_named(std::string_view name) {
  const std::string_view known = name == "--output" ? "-o" : name;
  const auto* const found = std::ranges::find(kFlags, known, &Flag::name);
  if (found != kFlags.end()) return *found;
  std::vector<std::string> names;
  names.reserve(kFlags.size());
  for (const Flag& flag : kFlags) names.emplace_back(flag.name);
  throw InputError(fmt::format("{}: unknown flag{}", printable(name, 60), did_you_mean(name, names)));
}

/// Flags that mean nothing without another one: refused, not ignored.
struct Companion {
  std::string_view flag, needs, value;
};
constexpr std::array kCompanions{
    Companion{"--save-every", "--save", "DIR"},           Companion{"--keep", "--save", "DIR"},
    Companion{"--trace-steps", "--trace", "FILE.json"},   Companion{"--token-bytes", "--data", "PATH"},
    Companion{"--dump-gradients", "--dump-state", "DIR"}, Companion{"--dump-logits", "--dump-state", "DIR"},
};

void check_companions(const std::set<std::string_view>& given) {
  for (const Companion& row : kCompanions) {
    if (!given.contains(row.flag) || given.contains(row.needs)) continue;
    throw InputError(fmt::format("{}: needs {} {}", row.flag, row.needs, row.value));
  }
  if (given.contains("--resume") && given.contains("--weights")) {
    throw InputError("--weights: --resume takes the weights from its checkpoint; give only one of the two");
  }
}

void check(const RunOptions& options) {
  if (options.plan.empty()) throw InputError("--plan: missing; give the plan.json that `vramfit plan -o` wrote");
  if (options.ghosts && options.device != "phantom") throw InputError("--ghosts on: needs --device phantom");
  const std::int64_t steps = options.train.steps;
  if (options.train.warmup > steps) throw InputError("--warmup: longer than --steps");
  if (options.dumps.gradients_step > steps) {
    throw InputError(fmt::format("--dump-gradients: step {} comes after the last one (--steps {})",
                                 options.dumps.gradients_step, steps));
  }
}

/// Steps that were asked for have to come. Those of the default are traced as far as there are any.
void check_traced_steps(const RunOptions& options, bool are_given) {
  const StepRange& range = options.observe.trace_steps;
  const std::int64_t steps = options.train.steps;
  if (options.observe.trace.empty() || (are_given ? range.last : range.first) <= steps) return;
  throw InputError(
      fmt::format("--trace-steps: {}-{} comes after the last step (--steps {})", range.first, range.last, steps));
}

}  // namespace

RunOptions parse_options(std::span<const std::string> arguments) {
  RunOptions options;
  std::set<std::string_view> given;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string name = arguments[i];
    if (name == "--help" || name == "-h") {
      options.help = true;
      return options;
    }
    if (name == "--support") {
      options.support = true;
      return options;
    }
    const std::size_t equals = name.starts_with("--") ? name.find('=') : std::string::npos;
    std::string value;
    if (equals != std::string::npos) {
      value = name.substr(equals + 1);
      name.resize(equals);
    }
    const Flag& flag = flag_named(name);
    given.insert(flag.name);
    if (equals == std::string::npos) {
      if (i + 1 == arguments.size()) throw InputError(fmt::format("{}: needs a value ({})", name, flag.value));
      value = arguments[++i];
    }
    try {
      flag.set(options, value);
    } catch (const InputError& error) {
      throw InputError(fmt::format("{}: {}", name, error.what()));
    }
  }
  check(options);
  check_companions(given);
  check_traced_steps(options, given.contains("--trace-steps"));
  return options;
}

std::string options_help() {
  std::string text =
      "vramfit-train: runs one rank of a plan. `vramfit run` starts it; so can torchrun --no-python, srun and mpirun,\n"
      "whose variables say which rank it is (docs/launching.md).\n\n";
  text += fmt::format("  {:<28}{}\n", "--support", "print which precisions this machine computes and reduces in");
  for (const Flag& flag : kFlags) {
    text += fmt::format("  {:<27} {}\n", fmt::format("{} {}", flag.name, flag.value), flag.help);
  }
  return text;
}

}  // namespace vramfit
