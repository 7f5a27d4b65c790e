#include "cli/run/verify_plan.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "base/conflict.h"
#include "base/error.h"
#include "base/process/standard_streams.h"
#include "base/text/digits_apart.h"
#include "base/text/suggest.h"
#include "cli/compare/compare.h"
#include "cli/executor_program.h"
#include "cli/files.h"
#include "cli/format/ticker.h"
#include "cli/rehearse/processes/phantom_library.h"
#include "cli/run/run_phantom.h"
#include "job/fields/field_text.h"
#include "job/fields/job_fields.h"
#include "job/fields/whole_job_flags.h"
#include "planner/answer/plan_json.h"
#include "program/not_modelled.h"

namespace vramfit {
namespace {

constexpr int kUsualRehearsals = 3, kMostRehearsals = 100;

/// What came of one plan: `why` it is rejected, or "".
struct Outcome {
  PlanRehearsal rehearsal;
  std::string why;
};

RunEnd run_two_steps(const PlanFile& plan, const std::string& path, int rank) {
  LaunchOptions launch;
  launch.program = find_executor();
  launch.arguments = {"--plan", path, "--device", "phantom", "--steps", "2", "--progress", "none"};
  return run_recorded_on_phantoms(plan, rank, launch);
}

std::string why_rejected(const RunRecord& record, const PlanRehearsal& rehearsal) {
  if (record.out_of_memory) return "ran out of memory on phantom GPUs";
  if (const std::int64_t retries = record.ranks.front().memory.alloc_retries; retries > 0) {
    return fmt::format("on phantom GPUs the allocator released cached memory and tried again {} time{}", retries,
                       retries == 1 ? "" : "s");
  }
  const auto& [rank, predicted, reserved, seconds] = rehearsal;
  if (std::abs(signed_error(predicted, reserved)) <= kRehearsalTolerance) return "";
  const int digits = digits_apart(predicted, reserved);
  return fmt::format("reserved {} on phantom GPUs, predicted {}: more than {:.0f} % apart",
                     format_gib(reserved, digits), format_gib(predicted, digits), 100 * kRehearsalTolerance);
}

Outcome rehearse(const PlanRequest& request, const Plan& plan) {
  const PrivateFolder folder("verify");
  const std::string path = folder.path() + "/plan.json";
  write_file(path, plan_to_json(request, plan));
  const PlanFile file = plan_from_json(read_file(path), path);
  const RankEstimate& worst = file.predicted_ranks[static_cast<std::size_t>(file.predicted_worst)];
  Outcome outcome{.rehearsal = {.rank = worst.first_rank, .predicted_reserved = worst.peak_reserved, .reserved = {}},
                  .why = ""};
  const auto begin = std::chrono::steady_clock::now();
  const RunEnd end = run_two_steps(file, path, static_cast<int>(worst.first_rank));
  outcome.rehearsal.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (end.record.empty() || (end.exit_code != 0 && end.exit_code != static_cast<int>(ExitCode::out_of_memory))) {
    throw FaultError(fmt::format("--verify phantom: the rehearsal ended with exit code {}", end.exit_code));
  }
  const RunRecord record = run_from_json(end.record, "run.json");
  outcome.rehearsal.reserved = record.ranks.front().memory.peak_reserved;
  outcome.why = why_rejected(record, outcome.rehearsal);
  return outcome;
}

std::string flags_of(const Job& job, const Cluster& cluster) { return printable(whole_job_flags(job, cluster), 4000); }

}  // namespace

int parse_verify(std::string_view text) {
  const std::size_t colon = text.find(':');
  try {
    if (text.substr(0, colon) != "phantom") unknown_value(text, {"phantom", "phantom:K"});
    if (colon == std::string_view::npos) return kUsualRehearsals;
    return static_cast<int>(whole_number(text.substr(colon + 1), 1, kMostRehearsals));
  } catch (const InputError& error) {
    throw InputError(fmt::format("--verify: {}", error.what()));
  }
}

void check_can_verify(const PlanRequest& request, const ClusterChoice& choice) {
  for (const Cluster& cluster : choice.clusters) {
    if (!cluster.is_cpu()) continue;
    throw Conflict(fmt::format("--verify phantom: plays GPUs; {} has none", printable(cluster.text)));
  }
  if (request.job.runtime != Runtime::vramfit) {
    throw Conflict(fmt::format(
        "--verify phantom: runs vramfit's own runtime, not {}; rehearse the script itself with `vramfit rehearse`",
        job_field_named("runtime").get(request.job)));
  }
  find_phantom_library();
  if (find_executor().empty()) {
    throw FaultError("--verify phantom: vramfit-train is missing: " + how_to_get_executor());
  }
}

void verify_on_phantoms(ClusterPlan& made, int most) {
  std::vector<RejectedJob>& rejected = made.request.rejected;
  while (made.has_plan()) {
    check_allocator_variables(made.plan->chosen->job);
    Outcome outcome;
    {
      const Ticker ticker("vramfit: rehearsing the plan on phantom GPUs");
      outcome = rehearse(made.request, *made.plan);
    }
    if (outcome.why.empty()) {
      made.plan->rehearsal = outcome.rehearsal;
      return;
    }
    rejected.push_back({.job = made.plan->chosen->job, .why = outcome.why});
    complain("vramfit",
             fmt::format("rejected: {}: {}", flags_of(rejected.back().job, made.request.cluster), outcome.why));
    if (static_cast<int>(rejected.size()) == most) {
      made.plan->chosen.reset();
      made.plan->why = fmt::format("no plan passes on phantom GPUs: {} rehearsed; --verify phantom:K tries K", most);
      return;
    }
    complain("vramfit", fmt::format("trying the next best plan ({} of at most {})", rejected.size() + 1, most));
    made.plan = make_plan(made.request);
  }
}

}  // namespace vramfit
