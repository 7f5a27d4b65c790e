#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/suggest.h"
#include "cli/commands/commands.h"
#include "cli/executor_program.h"
#include "cli/files.h"
#include "cli/format/estimate_text.h"
#include "cli/help.h"
#include "cli/job_flags.h"
#include "cli/launch/launch.h"
#include "cli/launch/node_commands.h"
#include "cli/model.h"
#include "cli/private_folder.h"
#include "cli/run_phantom.h"
#include "cli/run_plan.h"
#include "job/field_text.h"
#include "job/job_fields.h"
#include "program/plan_reader.h"

namespace vramfit {
namespace {

// Flags that vramfit-train reads itself; it also checks their values.
struct PassedFlag {
  std::string_view name, values, help;
  const char* heading = kRunFlags;
};
constexpr std::array kPassedFlags{
    PassedFlag{"--device", "auto|cpu|cuda|phantom",
               "Where to run; phantom: simulated GPUs. Default: what the plan was made for"},
    PassedFlag{"--steps", "N", "Optimizer steps. Default: 10"},
    PassedFlag{"--token-bytes", "2|4", "Bytes per token in .bin files. Default: by vocabulary size"},
    PassedFlag{"--weights", "random|PATH", "Initial weights: random, or safetensors. Default: random"},
    PassedFlag{"--lr", "X", "Peak learning rate. Default: 0.001", kOptimizerFlags},
    PassedFlag{"--warmup", "N", "Steps of linear warmup; cosine decay to zero follows. Default: 0", kOptimizerFlags},
    PassedFlag{"--clip", "X", "Gradient-clipping norm; 0: no clipping. Default: 1", kOptimizerFlags},
    PassedFlag{"--seed", "N", "Seed of random weights, data order and masks. Default: 0"},
    PassedFlag{"--beta1", "X", "AdamW beta1. Default: 0.9", kOptimizerFlags},
    PassedFlag{"--beta2", "X", "AdamW beta2. Default: 0.999", kOptimizerFlags},
    PassedFlag{"--eps", "X", "AdamW epsilon. Default: 1e-8", kOptimizerFlags},
    PassedFlag{"--weight-decay", "X", "AdamW weight decay, on every parameter. Default: 0.01", kOptimizerFlags},
    PassedFlag{"--threads", "N", "CPU threads per rank. Default: cores / ranks"},
    PassedFlag{"--budget", "BYTES",
               "CPU ranks: fail allocations beyond this; 0: no limit. Default: the plan's cpu-SIZE"},
    PassedFlag{"--timeout", "SECONDS", "How long ranks wait for each other. Default: 600"},
    PassedFlag{"--save", "DIR", "Write checkpoints to DIR/step-N: after the last step, and every --save-every steps",
               kCheckpointFlags},
    PassedFlag{"--save-every", "N", "With --save: a checkpoint every N steps", kCheckpointFlags},
    PassedFlag{"--keep", "K", "With --save: keep the K latest checkpoints. Default: 3", kCheckpointFlags},
    PassedFlag{"--save-full", "DIR", "After the last step: write the whole model in transformers' format",
               kCheckpointFlags},
    PassedFlag{"--resume", "DIR", "Resume from the latest valid checkpoint in DIR, on any number of ranks",
               kCheckpointFlags},
    PassedFlag{"--progress", "auto|bar|lines|none",
               "Progress on stderr; auto: a bar on a terminal, else one line per step. Default: auto", kOutputFlags},
    PassedFlag{"--metrics", "FILE", "Append one JSON object per step: losses, speed, memory by phase", kOutputFlags},
    PassedFlag{"--trace", "FILE.json", "Timeline of --trace-steps for chrome://tracing or Perfetto, one file per rank",
               kOutputFlags},
    PassedFlag{"--trace-steps", "FIRST-LAST", "With --trace: the steps to trace. Default: 2-3", kOutputFlags},
    PassedFlag{"--snapshot", "FILE.pickle", "Memory snapshot at the end, for PyTorch's memory_viz, one file per rank",
               kOutputFlags},
    PassedFlag{"--dump-state", "DIR", "Write the final parameters", kOutputFlags},
    PassedFlag{"--dump-gradients", "STEP", "With --dump-state: the gradients of this step", kOutputFlags},
};

struct RunFlags {
  JobFlags job;
  std::vector<std::string> data;
  std::array<std::string, kPassedFlags.size()> passed;
  std::string output, events, ranks;
  bool dump_logits = false;
};

const std::string& passed(const RunFlags& flags, std::string_view name) {
  const auto* row = std::ranges::find(kPassedFlags, name, &PassedFlag::name);
  return flags.passed.at(static_cast<std::size_t>(row - kPassedFlags.begin()));
}

std::vector<std::string> executor_arguments(const RunFlags& flags, const std::string& plan) {
  std::vector<std::string> arguments{"--plan", plan};
  const auto add = [&](std::string_view name, const std::string& value) {
    arguments.emplace_back(name);
    arguments.push_back(value);
  };
  for (const std::string& path : flags.data) add("--data", path);
  for (std::size_t i = 0; i < kPassedFlags.size(); ++i) {
    if (!flags.passed.at(i).empty()) add(kPassedFlags.at(i).name, flags.passed.at(i));
  }
  if (!flags.events.empty()) add("--events", flags.events);
  if (flags.dump_logits) add("--dump-logits", "on");
  return arguments;
}

bool on_phantoms(const RunFlags& flags) { return passed(flags, "--device") == "phantom"; }

void check_flags(const RunFlags& flags) {
  const std::string& device = passed(flags, "--device");
  const std::vector<std::string> known{"auto", "cpu", "cuda", "phantom"};
  if (!device.empty() && std::ranges::find(known, device) == known.end()) {
    throw InputError(fmt::format("--device: unknown value \"{}\"{}", printable(device), did_you_mean(device, known)));
  }
  if (on_phantoms(flags)) return;
  if (!flags.ranks.empty()) throw InputError("--ranks: goes with --device phantom; elsewhere every rank runs");
}

void check_job(const PlanFile& plan) {
  if (plan.job.runtime != Runtime::vramfit) {
    throw InputError(fmt::format("--runtime {}: run executes vramfit's own runtime only; plan with --runtime vramfit",
                                 job_field_named("runtime").get(plan.job)));
  }
  if (!plan.cluster.is_cpu()) check_allocator_variables(plan.job);
}

/// Throws InputError with what to type on the machines instead.
[[noreturn]] void refuse_nodes(const RunFlags& flags, const PlanFile& plan, const std::string& path, bool temporary) {
  std::vector<std::string> arguments = executor_arguments(flags, temporary ? "plan.json" : path);
  if (!flags.output.empty()) arguments.insert(arguments.end(), {"-o", flags.output});
  const std::string program = find_executor();
  const std::string first = temporary ? "write the plan by `vramfit plan ... -o plan.json` first; " : "";
  throw InputError(
      fmt::format("{}: {}{}", printable(plan.cluster.text), first,
                  commands_for_nodes(plan.cluster, program.empty() ? "vramfit-train" : program, arguments)));
}

std::int64_t whole_number_of(const std::string& flag, const std::string& text, std::int64_t most) {
  try {
    return whole_number(text, 1, most);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", flag, error.what()));
  }
}

/// Ranks write into it; `path` may be empty, for a flag that wasn't given.
void make_folder(const char* flag, const std::string& path) {
  std::error_code error;
  if (!path.empty()) std::filesystem::create_directories(path, error);
  if (error) throw FaultError(fmt::format("{} {}: can't be made: {}", flag, printable(path), error.message()));
}

int run_run(const RunFlags& flags) {
  check_flags(flags);
  sweep_private_folders();
  const std::string program = find_executor();
  std::unique_ptr<TemporaryPlan> made;
  std::string path = flags.job.model;
  if (is_plan_file(path)) {
    if (any_job_flag(flags.job)) {
      throw InputError(
          fmt::format("{}: a plan decides the job; flags that describe one go to \"vramfit plan\"", printable(path)));
    }
  } else {
    made = std::make_unique<TemporaryPlan>(flags.job, passed(flags, "--clip"));
    path = made->path();
  }
  const PlanFile plan = plan_from_json(read_file(path), path);
  check_job(plan);
  if (plan.cluster.nodes > 1 && !on_phantoms(flags)) refuse_nodes(flags, plan, path, made != nullptr);
  const PhantomRun phantom{.plan = plan, .ranks = flags.ranks, .output = flags.output};
  if (on_phantoms(flags)) check_phantom_run(phantom);
  if (program.empty()) {
    throw FaultError("vramfit-train is not beside vramfit, so nothing can be run; build it with -DVRAMFIT_EXECUTOR=ON");
  }
  check_output("-o", flags.output);
  make_folder("--events", flags.events);
  make_folder("--dump-state", passed(flags, "--dump-state"));
  const std::string& threads = passed(flags, "--threads");
  LaunchOptions launch;
  launch.program = program;
  launch.arguments = executor_arguments(flags, path);
  launch.ranks = static_cast<int>(plan.cluster.cards_per_node);
  if (!threads.empty()) launch.threads = static_cast<int>(whole_number_of("--threads", threads, 4096));
  if (on_phantoms(flags)) return run_on_phantoms(phantom, launch);
  if (!flags.output.empty()) launch.arguments.insert(launch.arguments.end(), {"-o", flags.output});
  return launch_ranks(launch);
}

}  // namespace

void add_run(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<RunFlags>();
  add_job_flags(command, flags->job);
  command.get_option("MODEL")->description("plan.json, or a model with the flags of its job");
  command
      .add_option("--data", flags->data,
                  "Token file (.bin, .npy), text file or directory of text; may be repeated. Default: synthetic tokens")
      ->type_name("PATH")
      ->group(kRunFlags)
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  for (std::size_t i = 0; i < kPassedFlags.size(); ++i) {
    const PassedFlag& flag = kPassedFlags.at(i);
    command.add_option(std::string(flag.name), flags->passed.at(i), std::string(flag.help))
        ->type_name(std::string(flag.values))
        ->group(flag.heading);
  }
  command
      .add_option("--ranks", flags->ranks,
                  "With --device phantom: run all ranks, or this one alone with the others simulated. Default: 0")
      ->type_name("all|R")
      ->group(kRunFlags);
  command.add_option("-o,--output", flags->output, "Write the run record (run.json)")
      ->type_name("FILE")
      ->group(kOutputFlags);
  command.add_option("--events", flags->events, "Write every allocation and free of each rank as JSON lines")
      ->type_name("DIR")
      ->group(kOutputFlags);
  command.add_flag("--dump-logits", flags->dump_logits, "With --dump-state: the logits of step 1")->group(kOutputFlags);
  command.callback([flags, &exit_code] { exit_code = run_run(*flags); });
}

}  // namespace vramfit
