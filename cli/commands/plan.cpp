#include <memory>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/process/standard_streams.h"
#include "base/suggest.h"
#include "cli/commands/commands.h"
#include "cli/files.h"
#include "cli/format/plan_text.h"
#include "cli/format/ticker.h"
#include "cli/help.h"
#include "cli/job_flags.h"
#include "cli/model.h"
#include "planner/plan_json.h"

namespace vramfit {
namespace {

struct PlanFlags {
  JobFlags job;
  std::string allow, output, network;
  bool json = false, no_clip = false;
};

Plan searched(const PlanRequest& request) {
  const Ticker ticker(
      fmt::format("vramfit: searching for the fastest configuration on {}", printable(request.cluster.text)));
  return make_plan(request);
}

int run_plan(const PlanFlags& flags) {
  const JobChoice choice = read_job_choice(flags.job);
  const Allowed allowed = parse_allowed(flags.allow);
  Cluster cluster = read_cluster_flag(flags.job);
  if (!flags.network.empty()) set_network(cluster, flags.network);
  const PlanRequest request{.spec = read_model(flags.job.model),
                            .job = choice.job,
                            .fixed = choice.fixed,
                            .cluster = cluster,
                            .allowed = allowed,
                            .clip = !flags.no_clip};
  check_output("-o", flags.output);
  const Plan plan = searched(request);
  if (plan.chosen && !flags.output.empty()) write_file(flags.output, plan_to_json(request, plan));
  if (flags.json) {
    if (!is_stdout(flags.output)) write_file("-", plan_to_json(request, plan));
  } else if (!is_stdout(flags.output)) {
    write_file("-", plan_text(request, plan, detect_terminal()));
  }
  if (plan.chosen && !flags.output.empty() && !is_stdout(flags.output)) {
    complain("vramfit", "plan written to " + printable(flags.output, 4096));
  }
  return static_cast<int>(plan.chosen ? ExitCode::done : ExitCode::no_plan);
}

}  // namespace

void add_plan(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<PlanFlags>();
  add_job_flags(command, flags->job);
  command
      .add_option("--allow", flags->allow,
                  "Changes of the training result that the search may use: precision:bf16-pure, seq-len, any")
      ->type_name("KIND[:VALUE],...")
      ->group(kCommonFlags);
  command
      .add_option(
          "--network", flags->network,
          "Bandwidth between nodes, per direction: 400Gbps/card or 50GB/s/node. Default: what is usual for the GPU")
      ->type_name("SPEED")
      ->group(kCommonFlags);
  command.add_option("-o,--output", flags->output, "Write the plan; - is stdout")
      ->type_name("FILE")
      ->group(kOutputFlags);
  command.add_flag("--json", flags->json, "Print the plan as JSON (configs/schemas/plan.schema.json)")
      ->group(kOutputFlags);
  command.add_flag("--no-clip", flags->no_clip, "A step without gradient clipping")->group(kMemoryFlags);
  command.callback([flags, &exit_code] { exit_code = run_plan(*flags); });
}

}  // namespace vramfit
