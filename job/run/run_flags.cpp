#include "job/run/run_flags.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "job/fields/field_text.h"

namespace vramfit {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMostSteps = 1'000'000'000;

using Text = std::string_view;
using Options = RunOptions;
using Group = RunFlagGroup;

std::string not_empty(Text text) {
  if (text.empty()) throw InputError("must not be empty");
  return std::string(text);
}

std::string device_name(Text text) {
  if (text != "auto" && text != "cpu" && text != "cuda" && text != "phantom") {
    unknown_value(text, {"auto", "cpu", "cuda", "phantom"});
  }
  return std::string(text);
}

bool is_on(Text text) {
  if (text != "on" && text != "off") unknown_value(text, {"on", "off"});
  return text == "on";
}

int token_bytes(Text text) {
  const auto bytes = static_cast<int>(whole_number(text, 2, 4));
  if (bytes == 3) throw InputError("must be 2 or 4");
  return bytes;
}

// In the order in which help shows them; the options of optimizers come before --threads.
constexpr std::array kOwnFlags{
    RunFlag{"--plan", "FILE", "plan.json to run", Group::internal, [](Options& o, Text t) { o.plan = not_empty(t); }},
    RunFlag{"--data", "PATH",
            "Token file (.bin, .npy), text file or directory of text; may be repeated. Default: synthetic tokens",
            Group::run, [](Options& o, Text t) { o.data.push_back(not_empty(t)); },
            [](const Options& o) { return fmt::format("{}", o.data); }},
    RunFlag{"--device", "auto|cpu|cuda|phantom",
            "Where to run; phantom: simulated GPUs, under `vramfit run` only. Default: what the plan was made for",
            Group::run, [](Options& o, Text t) { o.device = device_name(t); }},
    RunFlag{"--ghosts", "on|off", "phantom: run only this rank, with the others simulated. Default: off",
            Group::internal, [](Options& o, Text t) { o.ghosts = is_on(t); }},
    RunFlag{"--steps", "N", "Optimizer steps. Default: 10", Group::run,
            [](Options& o, Text t) { o.train.steps = whole_number(t, 1, kMostSteps); },
            [](const Options& o) { return fmt::to_string(o.train.steps); }, true},
    RunFlag{"--token-bytes", "2|4", "Bytes per token in .bin files. Default: what the vocabulary's size needs",
            Group::run, [](Options& o, Text t) { o.token_bytes = token_bytes(t); },
            [](const Options& o) { return fmt::to_string(o.token_bytes); }},
    RunFlag{"--weights", "random|PATH", "Initial weights: random, or a safetensors file or folder. Default: random",
            Group::run, [](Options& o, Text t) { o.weights = not_empty(t); },
            [](const Options& o) { return o.weights; }},
    RunFlag{"--adapters", "DIR",
            "Initial adapters, as PEFT writes them; they set --method, rank, alpha, dropout and targets unless these "
            "are given",
            Group::run, [](Options& o, Text t) { o.adapters = not_empty(t); },
            [](const Options& o) { return o.adapters; }},
    RunFlag{"--lr", "X", "Peak learning rate. Default: 0.001", Group::optimizer,
            [](Options& o, Text t) { o.train.optimizer.learning_rate = real_number(t, 0, 1e6); },
            [](const Options& o) { return fmt::to_string(o.train.optimizer.learning_rate); }, true},
    RunFlag{"--warmup", "N", "Steps of linear warmup; cosine decay to zero follows. Default: 0", Group::optimizer,
            [](Options& o, Text t) { o.train.warmup = whole_number(t, 0, kMostSteps); },
            [](const Options& o) { return fmt::to_string(o.train.warmup); }, true},
    RunFlag{"--clip", "X", "Gradient-clipping norm; 0: no clipping. Default: 1, or 0 if the plan has no clipping",
            Group::optimizer,
            [](Options& o, Text t) {
              o.train.clip = real_number(t, 0, 1e30);
              o.train.clip_is_given = true;
            },
            [](const Options& o) { return fmt::to_string(o.train.clip); }, true},
    RunFlag{"--seed", "N", "Seed of random weights, data order and masks. Default: 0", Group::run,
            [](Options& o, Text t) { o.train.seed = static_cast<std::uint64_t>(whole_number(t, 0, kMost)); },
            [](const Options& o) { return fmt::to_string(o.train.seed); }, true},
    RunFlag{"--threads", "N", "CPU threads per rank. Default: cores / ranks on this machine", Group::run,
            [](Options& o, Text t) { o.threads = static_cast<int>(whole_number(t, 1, 4096)); }},
    RunFlag{"--budget", "BYTES", "CPU ranks: allocations beyond this fail; 0: no limit. Default: the plan's cpu-SIZE",
            Group::run, [](Options& o, Text t) { o.budget = Bytes{whole_number(t, 0, kMost)}; }},
    RunFlag{"--timeout", "SECONDS", "How long ranks wait for each other. Default: 600", Group::run,
            [](Options& o, Text t) { o.timeout_seconds = whole_number(t, 1, 1'000'000); }},
    RunFlag{"--save", "DIR", "Write checkpoints to DIR/step-N: after the last step, and every --save-every steps",
            Group::checkpoints, [](Options& o, Text t) { o.save.directory = not_empty(t); },
            [](const Options& o) { return o.save.directory; }},
    RunFlag{"--save-every", "N", "With --save: a checkpoint every N steps", Group::checkpoints,
            [](Options& o, Text t) { o.save.every = whole_number(t, 1, kMostSteps); },
            [](const Options& o) { return fmt::to_string(o.save.every); }},
    RunFlag{"--keep", "K", "With --save: keep the K latest checkpoints. Default: 3", Group::checkpoints,
            [](Options& o, Text t) { o.save.keep = whole_number(t, 1, kMostSteps); },
            [](const Options& o) { return fmt::to_string(o.save.keep); }},
    RunFlag{"--save-full", "DIR",
            "After the last step: write DIR/model.safetensors and config.json in transformers' format",
            Group::checkpoints, [](Options& o, Text t) { o.save.full = not_empty(t); },
            [](const Options& o) { return o.save.full; }},
    RunFlag{"--save-adapters", "DIR",
            "After the last step: write DIR/adapter_model.safetensors and adapter_config.json as PEFT does",
            Group::checkpoints, [](Options& o, Text t) { o.save.adapters = not_empty(t); },
            [](const Options& o) { return o.save.adapters; }},
    RunFlag{"--resume", "DIR", "Resume from the latest valid checkpoint in DIR, on any number of ranks",
            Group::checkpoints, [](Options& o, Text t) { o.save.resume = not_empty(t); },
            [](const Options& o) { return o.save.resume; }},
    RunFlag{"--progress", "auto|bar|lines|none",
            "Progress on stderr; auto: a bar on a terminal, else one line per step. Default: auto", Group::output,
            [](Options& o, Text t) { o.observe.progress = progress_style(t); }},
    RunFlag{"--metrics", "FILE", "Append one JSON object per step: losses, speed, memory by phase", Group::output,
            [](Options& o, Text t) { o.observe.metrics = not_empty(t); }},
    RunFlag{"--trace", "FILE.json", "Timeline of --trace-steps for chrome://tracing or Perfetto, one file per rank",
            Group::output, [](Options& o, Text t) { o.observe.trace = not_empty(t); }},
    RunFlag{"--trace-steps", "FIRST-LAST", "With --trace: the steps to trace. Default: 2-3", Group::output,
            [](Options& o, Text t) { o.observe.trace_steps = step_range(t); }},
    RunFlag{"--snapshot", "FILE.pickle", "Memory snapshot at the end, for PyTorch's memory_viz, one file per rank",
            Group::output, [](Options& o, Text t) { o.observe.snapshot = not_empty(t); }},
    RunFlag{"--events", "DIR", "Write every allocation and free of each rank as JSON lines to DIR/rankN.jsonl",
            Group::output, [](Options& o, Text t) { o.events = not_empty(t); }},
    RunFlag{"--dump-state", "DIR", "Write the final parameters as DIR/parameters.safetensors", Group::output,
            [](Options& o, Text t) {
              o.dumps.directory = not_empty(t);
              o.dumps.parameters = true;
            },
            [](const Options& o) { return o.dumps.directory; }},
    RunFlag{"--dump-gradients", "STEP", "With --dump-state: the gradients of this step, before clipping", Group::output,
            [](Options& o, Text t) { o.dumps.gradients_step = whole_number(t, 1, kMost); },
            [](const Options& o) { return fmt::to_string(o.dumps.gradients_step); }},
    RunFlag{"--dump-logits", "on|off", "With --dump-state: the logits of step 1, each rank and micro-batch",
            Group::output, [](Options& o, Text t) { o.dumps.logits = is_on(t); },
            [](const Options& o) { return fmt::to_string(o.dumps.logits); }},
    RunFlag{"-o", "FILE", "Write the run record (run.json), by rank 0", Group::output,
            [](Options& o, Text t) { o.output = not_empty(t); }},
};

RunFlag flag_of(const OptimizerFlag& option) {
  return {.name = option.flag,
          .values = "X",
          .help = option.help,
          .group = Group::optimizer,
          .set = nullptr,
          .must_match_at_resume = true,
          .option = &option};
}

std::vector<RunFlag> all_flags() {
  std::vector<RunFlag> flags(kOwnFlags.begin(), kOwnFlags.end());
  auto place = std::ranges::find(flags, "--threads", &RunFlag::name);
  for (const OptimizerFlag& option : optimizer_flags()) place = flags.insert(place, flag_of(option)) + 1;
  return flags;
}

void set(RunOptions& options, const RunFlag& flag, Text value) {
  if (flag.option == nullptr) return flag.set(options, value);
  options.train.optimizer.values[flag.option->option] = real_number(value, 0, flag.option->most);
}

const RunFlag& flag_named(std::string_view name) {
  const std::string_view known = name == "--output" ? "-o" : name;
  const auto flags = run_flags();
  const auto found = std::ranges::find(flags, known, &RunFlag::name);
  if (found != flags.end()) return *found;
  std::vector<std::string> names;
  names.reserve(flags.size());
  for (const RunFlag& flag : flags) names.emplace_back(flag.name);
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
  if (given.contains("--resume") && given.contains("--adapters")) {
    throw InputError("--adapters: --resume takes the adapters from its checkpoint; give only one of the two");
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

std::span<const RunFlag> run_flags() {
  static const std::vector<RunFlag> kFlags = all_flags();
  return kFlags;
}

std::optional<std::string> shared_text(const RunFlag& flag, const RunOptions& options) {
  if (flag.option == nullptr) return flag.shared == nullptr ? std::nullopt : std::optional(flag.shared(options));
  const auto& values = options.train.optimizer.values;
  const auto found = values.find(flag.option->option);
  return found == values.end() ? std::nullopt : std::optional(fmt::to_string(found->second));
}

RunOptions parse_run_flags(std::span<const std::string> arguments) {
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
    const RunFlag& flag = flag_named(name);
    given.insert(flag.name);
    if (equals == std::string::npos) {
      if (i + 1 == arguments.size()) throw InputError(fmt::format("{}: needs a value ({})", name, flag.values));
      value = arguments[++i];
    }
    try {
      set(options, flag, value);
    } catch (const InputError& error) {
      throw InputError(fmt::format("{}: {}", name, error.what()));
    }
  }
  check(options);
  check_companions(given);
  check_traced_steps(options, given.contains("--trace-steps"));
  return options;
}

std::string run_flags_help() {
  std::string text =
      "vramfit-train: runs one rank of a plan. `vramfit run` starts it; so can torchrun --no-python, srun and mpirun,\n"
      "whose variables say which rank it is (docs/launching.md).\n\n";
  text += fmt::format("  {:<28}{}\n", "--support", "print which precisions this machine computes and reduces in");
  text +=
      fmt::format("  {:<28}{}\n", "--calibrate FILE", "write how fast this machine is; `vramfit calibrate` starts it");
  for (const RunFlag& flag : run_flags()) {
    text += fmt::format("  {:<27} {}\n", fmt::format("{} {}", flag.name, flag.values), flag.help);
  }
  return text;
}

ProgressStyle progress_style(std::string_view text) {
  if (text == "auto") return ProgressStyle::automatic;
  if (text == "bar") return ProgressStyle::bar;
  if (text == "lines") return ProgressStyle::lines;
  if (text == "none") return ProgressStyle::none;
  unknown_value(text, {"auto", "bar", "lines", "none"});
}

StepRange step_range(std::string_view text) {
  const std::size_t dash = text.find('-');
  StepRange range;
  range.first = whole_number(text.substr(0, dash), 1, kMostSteps);
  range.last = dash == std::string_view::npos ? range.first : whole_number(text.substr(dash + 1), 1, kMostSteps);
  if (range.last < range.first) {
    throw InputError(fmt::format("\"{}\": the last step comes before the first", printable(text)));
  }
  return range;
}

}  // namespace vramfit
