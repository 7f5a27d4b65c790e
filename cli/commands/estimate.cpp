#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "cli/commands/commands.h"
#include "cli/files.h"
#include "cli/flags/calibration_files.h"
#include "cli/flags/help.h"
#include "cli/flags/job_flags.h"
#include "cli/flags/model.h"
#include "cli/format/estimate_text.h"
#include "cli/format/requirements_text.h"
#include "cli/format/ticker.h"
#include "cli/run/run_effects.h"
#include "estimator/card_requirements.h"
#include "estimator/estimate.h"
#include "estimator/estimate_json.h"
#include "job/fields/field_text.h"
#include "model_specs/accelerate.h"

namespace vramfit {
namespace {

struct EstimateFlags {
  JobFlags job;
  std::string format = "table", network;
  std::vector<std::string> calibration;
  bool json = false, strict = false;
  RunEffectFlags run;
};

/// Without --gpus: what one card needs, and which cards would do.
int run_requirements(const EstimateFlags& flags, const ModelSpec& spec, const Job& job, bool json) {
  const CardRequirements requirements = [&] {
    const Ticker ticker("vramfit: trying the cards of the catalog");
    return card_requirements(spec, job, {.suggestions = false, .run = effects_of(flags.run)});
  }();
  write_file("-", json ? requirements_to_json(requirements)
                       : requirements_text(requirements, flags.job.model, detect_terminal()));
  return static_cast<int>(ExitCode::done);
}

/// Unknown values, and flags that would change nothing beside the others.
void check_flags(const EstimateFlags& flags) {
  try {
    if (flags.format != "table" && flags.format != "json" && flags.format != "accelerate") {
      unknown_value(flags.format, {"table", "json", "accelerate"});
    }
  } catch (const InputError& error) {
    throw InputError(fmt::format("--format: {}", error.what()));
  }
  if (flags.format == "accelerate" &&
      (any_job_flag(flags.job) || flags.json || flags.strict || !flags.network.empty() || !flags.calibration.empty() ||
       flags.run.no_clip || flags.run.save_kind != "none")) {
    throw InputError("--format accelerate: its table depends on MODEL alone; give it no other flag");
  }
  for (const auto& [flag, is_given] :
       {std::pair{"--network", !flags.network.empty()}, {"--calibration", !flags.calibration.empty()}}) {
    if (!is_given || !flags.job.gpus.empty()) continue;
    throw InputError(fmt::format("{}: needs --gpus; without it no speed is predicted", flag));
  }
  if (!flags.job.host_memory.empty() && flags.job.gpus.empty()) {
    throw InputError("--host-memory: needs --gpus; without it there are no nodes");
  }
  if (flags.strict && flags.job.gpus.empty()) {
    throw InputError("--strict: needs --gpus; without it there is no verdict to be strict about");
  }
}

Cluster cluster_of(const EstimateFlags& flags) {
  Cluster cluster = read_cluster_flag(flags.job);
  if (!flags.network.empty()) set_network(cluster, flags.network);
  return cluster;
}

int run_estimate(const EstimateFlags& flags) {
  check_flags(flags);
  const ModelSpec spec = read_model(flags.job.model);
  if (flags.format == "accelerate") {
    write_file("-", accelerate_text(spec, spec.name));
    return static_cast<int>(ExitCode::done);
  }
  const JobChoice choice = read_job_choice(flags.job);
  const bool json = flags.json || flags.format == "json";
  if (flags.job.gpus.empty()) return run_requirements(flags, spec, choice.job, json);
  const Cluster cluster = cluster_of(flags);
  const Efficiency efficiency = efficiency_by(flags.calibration, cluster, spec);
  const Estimate result =
      estimate(spec, choice.job, cluster, {.run = effects_of(flags.run), .speed_with = &efficiency});
  const std::string text = json ? estimate_to_json(result) : estimate_text(result, detect_terminal());
  write_file("-", text);
  if (result.verdict == Verdict::at_risk) {
    std::fprintf(
        stderr, "vramfit: warning: at risk: %s%s\n",
        worst_rank(result).gives_back ? "fits only by releasing cached memory" : "the upper bound does not fit",
        flags.strict ? "" : " (--strict makes this a failure)");
  }
  return exit_code_of(result.verdict, flags.strict);
}

}  // namespace

void add_estimate(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<EstimateFlags>();
  add_job_flags(command, flags->job);
  command.add_flag("--json", flags->json, "Print one JSON object (configs/schemas/estimate.schema.json)")
      ->group(kOutputFlags);
  command.add_option("--format", flags->format, "How to print; accelerate: its estimate-memory table. Default: table")
      ->type_name("table|json|accelerate")
      ->group(kOutputFlags);
  command.add_option("--network", flags->network, kNetworkHelp)->type_name("SPEED")->group(kCommonFlags);
  add_calibration_flag(command, flags->calibration);
  command.add_flag("--strict", flags->strict, "Exit 3 also when the verdict is at_risk")->group(kOutputFlags);
  add_run_effects(command, flags->run);
  command.callback([flags, &exit_code] { exit_code = run_estimate(*flags); });
}

}  // namespace vramfit
