#include "cli/run/run_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/json/json_value.h"
#include "base/text/suggest.h"
#include "cli/files.h"
#include "cli/flags/model.h"
#include "cli/format/estimate_text.h"
#include "job/allocator/allocator_environment.h"
#include "job/resolve_job.h"
#include "planner/answer/plan_json.h"
#include "planner/search/search.h"
#include "program/files/peft_folder.h"

namespace vramfit {
namespace {

Plan plan_as_given(const PlanRequest& request) {
  std::vector<std::string> notes;
  const Job job = resolve_job(request.job, request.spec, request.cluster, notes);
  Evaluator evaluator(request);
  Candidate candidate = evaluator.candidate(evaluator.timed(job));
  if (candidate.estimate.verdict == Verdict::not_modelled) throw NotModelled(candidate.estimate.why);
  if (candidate.estimate.verdict != Verdict::fits) {
    std::fprintf(stderr, "vramfit: warning: %s", verdict_line(candidate.estimate, Terminal{}).c_str());
  }
  Plan plan;
  plan.why = "the job as it was given";
  plan.search.configurations = plan.search.estimates = 1;
  plan.chosen = std::move(candidate);
  return plan;
}

}  // namespace

bool is_plan_file(const std::string& path) {
  std::error_code error;
  if (!path.ends_with(".json") || !std::filesystem::is_regular_file(path, error)) return false;
  const JsonValue document = parse_json(read_file(path), path);
  return document.kind == JsonValue::Kind::object && std::ranges::find(document.keys, "schema") != document.keys.end();
}

TemporaryPlan::TemporaryPlan(const JobFlags& flags, bool clip, const std::string& adapters) {
  JobChoice choice = read_job_choice(flags);
  if (!adapters.empty()) take_adapters(read_peft_folder(adapters), choice.job, choice.fixed);
  const PlanRequest request{.spec = read_model(flags.model),
                            .job = choice.job,
                            .fixed = choice.fixed,
                            .cluster = read_cluster_flag(flags),
                            .allowed = {},
                            .clip = clip};
  write_file(path(), plan_to_json(request, plan_as_given(request)));
}

void check_allocator_variables(const Job& job) {
  for (const char* name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}) {
    const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): no other thread runs
    if (value == nullptr || asks_for_allocator(value, job.allocator)) continue;
    throw InputError(
        fmt::format("{}={} and --allocator {} contradict each other: unset the variable, or plan with its value", name,
                    printable(value), job.allocator));
  }
}

}  // namespace vramfit
