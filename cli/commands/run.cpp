#include <algorithm>
#include <filesystem>
#include <memory>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/files/result_file.h"
#include "base/text/suggest.h"
#include "cli/commands/commands.h"
#include "cli/configs/job_configs.h"
#include "cli/executor_program.h"
#include "cli/files.h"
#include "cli/flags/help.h"
#include "cli/flags/job_flags.h"
#include "cli/flags/model.h"
#include "cli/format/estimate_text.h"
#include "cli/launch/launch.h"
#include "cli/launch/node_commands.h"
#include "cli/private_folder.h"
#include "cli/run/run_phantom.h"
#include "cli/run/run_plan.h"
#include "cli/run/run_replan.h"
#include "cli/run/tune_plans.h"
#include "job/fields/field_text.h"
#include "job/fields/job_fields.h"
#include "job/optimizers/optimizers.h"
#include "job/run/run_flags.h"
#include "program/files/peft_folder.h"
#include "program/files/plan_reader.h"
#include "program/stages/adapters.h"
#include "program/stages/optimizer_in_backward.h"
#include "program/stages/trainable.h"

namespace vramfit {
namespace {

constexpr int kMostReplans = 100, kMostTuned = 100;

struct RunFlags {
  JobFlags job;
  std::vector<std::vector<std::string>> passed;  // to vramfit-train: one entry a row of run_flags()
  RunOptions options;                            // what `passed` says
  std::string ranks;
  std::string replan;  // times that it may be planned again
  std::string tune;    // plans to try before
};

const char* heading_of(RunFlagGroup group) {
  switch (group) {
    case RunFlagGroup::optimizer:
      return kOptimizerFlags;
    case RunFlagGroup::checkpoints:
      return kCheckpointFlags;
    case RunFlagGroup::output:
      return kOutputFlags;
    case RunFlagGroup::run:
    case RunFlagGroup::internal:
      break;
  }
  return kRunFlags;
}

/// Those of vramfit-train but --plan. `writes_record`: with -o; on phantoms the launcher writes the record itself.
std::vector<std::string> passed_arguments(const RunFlags& flags, bool writes_record) {
  std::vector<std::string> arguments;
  const auto rows = run_flags();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].name == "-o" && !writes_record) continue;
    for (const std::string& value : flags.passed[i]) {
      arguments.emplace_back(rows[i].name);
      arguments.push_back(value);
    }
  }
  return arguments;
}

std::vector<std::string> executor_arguments(const std::string& plan, const std::vector<std::string>& passed) {
  std::vector<std::string> arguments{"--plan", plan};
  arguments.insert(arguments.end(), passed.begin(), passed.end());
  return arguments;
}

bool on_phantoms(const RunFlags& flags) { return flags.options.device == "phantom"; }

/// Before a plan is made or ranks are started, which check the same.
void read_options(RunFlags& flags) {
  flags.options = parse_run_flags(executor_arguments("plan.json", passed_arguments(flags, true)));
  if (!on_phantoms(flags) && !flags.ranks.empty()) {
    throw InputError("--ranks: goes with --device phantom; elsewhere every rank runs");
  }
}

void check_job(const PlanFile& plan, const RunOptions& options) {
  if (plan.job.runtime != Runtime::vramfit) {
    throw InputError(fmt::format("--runtime {}: run executes vramfit's own runtime only; plan with --runtime vramfit",
                                 job_field_named("runtime").get(plan.job)));
  }
  require_optimizer_in_backward(plan.job, options.train.clip > 0);
  if (!options.adapters.empty()) check_adapters(read_peft_folder(options.adapters), plan.job);
  if (!options.save.adapters.empty()) require_adapters_alone(training_graph(plan.spec, plan.job), plan.job);
  if (!plan.cluster.is_cpu()) check_allocator_variables(plan.job);
  complete_options(options.train.optimizer, plan.job.optimizer);  // refuses those of another one
}

/// Throws InputError with what to type on the machines instead.
[[noreturn]] void refuse_nodes(const RunFlags& flags, const PlanFile& plan, const std::string& path, bool temporary) {
  const std::vector<std::string> arguments =
      executor_arguments(temporary ? "plan.json" : path, passed_arguments(flags, true));
  const std::string program = find_executor();
  const std::string first = temporary ? "write the plan by `vramfit plan ... -o plan.json` first; " : "";
  throw InputError(
      fmt::format("{}: {}{}", printable(plan.cluster.text), first,
                  commands_for_nodes(plan.cluster, program.empty() ? "vramfit-train" : program, arguments)));
}

/// Ranks write into it; `path` may be empty, for a flag that wasn't given.
void make_folder(const char* flag, const std::string& path) {
  std::error_code error;
  if (!path.empty()) std::filesystem::create_directories(path, error);
  if (error) throw FaultError(fmt::format("{} {}: can't be made: {}", flag, printable(path), error.message()));
}

int read_count(const char* flag, const std::string& text, int most) {
  try {
    return text.empty() ? 0 : static_cast<int>(whole_number(text, 0, most));
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", flag, error.what()));
  }
}

/// Each attempt keeps its record where the next can read it.
RunEnd run_recorded(const RunFlags& flags, const PlanFile& plan, LaunchOptions launch) {
  launch.environment.emplace_back("VRAMFIT_STOP_AT_RETRIES", "1");
  if (on_phantoms(flags)) {
    const PhantomRun phantom{.plan = plan, .ranks = flags.ranks, .output = ""};
    RunEnd end = run_recorded_on_phantoms(plan, played_rank(phantom), std::move(launch));
    if (end.exit_code == 0 && !is_stdout(flags.options.output)) show_comparison(plan, end.record);
    return end;
  }
  const PrivateFolder folder("run");
  return launch_recorded(std::move(launch), folder.path());
}

int run_with_replanning(const RunFlags& flags, const std::string& path, const LaunchOptions& launch, int most) {
  const ReplannedRun run{
      .plan_path = path, .most = most, .arguments = passed_arguments(flags, false), .options = flags.options};
  return run_replanning(
      run, [&](const PlanFile& plan, const std::string& plan_path, const std::vector<std::string>& passed) {
        LaunchOptions attempt = launch;
        attempt.arguments = executor_arguments(plan_path, passed);
        return run_recorded(flags, plan, std::move(attempt));
      });
}

void refuse_flags_beside_plan(const JobFlags& flags) {
  if (!is_plan_file(flags.model) || !any_job_flag(flags)) return;
  throw InputError(fmt::format("{}: a plan decides the job; flags that describe one go to \"vramfit plan\"",
                               printable(flags.model)));
}

int run_run(RunFlags& flags) {
  read_options(flags);
  const RunOptions& options = flags.options;
  const int replans = read_count("--replan", flags.replan, kMostReplans);
  const int tuned_plans = read_count("--tune", flags.tune, kMostTuned);
  if (tuned_plans > 0) check_can_tune(on_phantoms(flags), replans > 0);
  sweep_private_folders();
  const std::string program = find_executor();
  std::unique_ptr<TemporaryPlan> made;
  std::string path = flags.job.model;
  if (!is_plan_file(path)) {
    const bool clips = options.train.clip_is_given ? options.train.clip > 0 : flags.job.clips;
    made = std::make_unique<TemporaryPlan>(flags.job, clips, options.adapters);
    path = made->path();
  }
  const PlanFile plan = plan_from_json(read_file(path), path);
  clip_as_planned(flags.options.train, plan.clip);
  check_job(plan, options);
  if (plan.cluster.nodes > 1 && !on_phantoms(flags)) refuse_nodes(flags, plan, path, made != nullptr);
  const PhantomRun phantom{.plan = plan, .ranks = flags.ranks, .output = options.output};
  if (on_phantoms(flags)) check_phantom_run(phantom);
  if (program.empty()) {
    throw FaultError("vramfit-train is missing, so nothing can be run: " + how_to_get_executor());
  }
  check_output("-o", options.output);
  make_folder("--events", options.events);
  make_folder("--dump-state", options.dumps.directory);
  LaunchOptions launch;
  launch.program = program;
  launch.arguments = executor_arguments(path, passed_arguments(flags, !on_phantoms(flags)));
  launch.ranks = static_cast<int>(plan.cluster.cards_per_node);
  launch.threads = options.threads;
  TunedPlan tuned;  // its plan is there while the run goes on
  if (tuned_plans > 0) {
    tuned =
        tune({.plan = plan, .is_planned = made == nullptr, .most = tuned_plans, .launch = launch, .options = options});
    if (tuned.exit_code != 0) return tuned.exit_code;
    launch.arguments = executor_arguments(tuned.path, passed_arguments(flags, true));
  }
  if (replans > 0) return run_with_replanning(flags, path, launch, replans);
  if (on_phantoms(flags)) return run_on_phantoms(phantom, launch);
  return launch_ranks(launch);
}

/// As `plan` and `estimate` have it: the flags of their answers go to `run`, too.
void add_no_clip(CLI::App& command, RunFlags& flags) {
  const auto rows = run_flags();
  const auto clip = std::ranges::find(rows, std::string_view("--clip"), &RunFlag::name);
  std::vector<std::string>& passed = flags.passed[static_cast<std::size_t>(clip - rows.begin())];
  command
      .add_flag_callback(
          "--no-clip", [&passed] { passed = {"0"}; }, "The same as --clip 0")
      ->excludes(command.get_option("--clip"))
      ->group(kOptimizerFlags);
}

void add_run_flag(CLI::App& command, const RunFlag& flag, std::vector<std::string>& values) {
  const std::string name = flag.name == "-o" ? "-o,--output" : std::string(flag.name);
  CLI::Option* option = command.add_option(name, values)->expected(1);
  option->allow_extra_args(false);  // the next word is MODEL, not another value
  option->description(std::string(flag.help))->type_name(std::string(flag.values))->group(heading_of(flag.group));
  if (flag.name == "--data") option->take_all();
}

}  // namespace

void add_run(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<RunFlags>();
  add_job_flags(command, flags->job);
  command.get_option("MODEL")->description("plan.json, or a model with the flags of its job");
  const auto rows = run_flags();
  flags->passed.resize(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].group != RunFlagGroup::internal) add_run_flag(command, rows[i], flags->passed[i]);
  }
  add_no_clip(command, *flags);
  command
      .add_option("--ranks", flags->ranks,
                  "With --device phantom: run all ranks, or only rank R, with the others simulated. Default: 0")
      ->type_name("all|R")
      ->group(kRunFlags);
  command
      .add_option("--replan", flags->replan,
                  "When memory runs out, plan again for less memory and resume from the last checkpoint, at most K "
                  "times. Default: 0")
      ->type_name("K")
      ->group(kRunFlags);
  command
      .add_option("--tune", flags->tune,
                  "First run each of the K best plans for 5 steps, then train with the fastest. Default: 0")
      ->type_name("K")
      ->group(kRunFlags);
  command.callback([flags, &exit_code] {
    refuse_flags_beside_plan(flags->job);  // before --job's files are read and are no flags any more
    apply_configs(flags->job);
    require_modelled(flags->job);
    exit_code = run_run(*flags);
  });
}

}  // namespace vramfit
