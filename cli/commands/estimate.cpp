#include <cstdio>
#include <memory>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "cli/commands/commands.h"
#include "cli/files.h"
#include "cli/format/estimate_text.h"
#include "cli/job_flags.h"
#include "cli/model.h"
#include "estimator/estimate.h"
#include "estimator/field_text.h"
#include "estimator/json/estimate_json.h"
#include "model_specs/accelerate.h"
#include "model_specs/error.h"

namespace vramfit {
namespace {

struct EstimateFlags {
  JobFlags job;
  std::string format = "table";
  bool json = false, strict = false, no_clip = false;
};

int run_estimate(const EstimateFlags& flags) {
  if (flags.format != "table" && flags.format != "json" && flags.format != "accelerate") {
    try {
      unknown_value(flags.format, {"table", "json", "accelerate"});
    } catch (const InputError& error) {
      throw InputError(fmt::format("--format: {}", error.what()));
    }
  }
  const JobChoice choice = read_job_choice(flags.job);
  const ModelSpec spec = read_model(flags.job.model);
  if (flags.format == "accelerate") {  // nothing of a job or a cluster enters those tables
    write_file("-", accelerate_text(spec, spec.name));
    return static_cast<int>(ExitCode::done);
  }
  const Cluster cluster = read_cluster_flag(flags.job);
  const bool json = flags.json || flags.format == "json";
  const Estimate result = estimate(spec, choice.job, cluster, {.suggestions = true, .clip = !flags.no_clip});
  const std::string text = json ? estimate_to_json(result) : estimate_text(result, detect_terminal());
  write_file("-", text);
  if (result.verdict == Verdict::at_risk) {
    std::fprintf(
        stderr, "vramfit: warning: at risk: %s%s\n",
        worst_rank(result).alloc_retries > 0 ? "fits only when the allocator retries" : "the upper bound does not fit",
        flags.strict ? "" : " (--strict makes this a failure)");
  }
  return exit_code_of(result.verdict, flags.strict);
}

}  // namespace

void add_estimate(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<EstimateFlags>();
  add_job_flags(command, flags->job);
  command.add_flag("--json", flags->json, "Print one JSON object (configs/schemas/estimate.schema.json)");
  command.add_option("--format", flags->format, "How to print. Default: table")->type_name("table|json|accelerate");
  command.add_flag("--strict", flags->strict, "Exit 3 also when the verdict is at_risk");
  command.add_flag("--no-clip", flags->no_clip, "Count a step without gradient clipping");
  command.callback([flags, &exit_code] { exit_code = run_estimate(*flags); });
}

}  // namespace vramfit
