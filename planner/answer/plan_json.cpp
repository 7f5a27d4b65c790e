#include "planner/answer/plan_json.h"

#include "base/json/json_writer.h"
#include "estimator/estimate_json.h"
#include "job/fields/job_json.h"
#include "model_specs/parameters.h"
#include "planner/cost/training_cost.h"
#include "planner/search/search.h"
#include "program/files/rank_json.h"
#include "program/make_program.h"
#include "program/readers/fingerprint.h"
#include "program/stages/adapters.h"

namespace vramfit {
namespace {

void write_model(JsonWriter& writer, const ModelSpec& spec) {
  writer.key("model").begin_object();
  writer.member("name", spec.name).member("parameters", parameter_count(spec)).member("model_type", spec.model_type);
  writer.member("architecture", spec.architecture)
      .member("source", spec.source)
      .member("config_json", spec.config_json);
  writer.end_object();
}

void write_alternative(JsonWriter& writer, const Candidate& candidate) {
  const Estimate& estimate = candidate.estimate;
  writer.begin_object();
  writer.member("tokens_per_second", candidate.tokens_per_second).member("verdict", verdict_name(estimate.verdict));
  writer.member("fits", estimate.verdict == Verdict::fits)
      .member("needs", candidate.needs)
      .member("why", candidate.why);
  if (!estimate.ranks.empty()) {
    const RankEstimate& worst = worst_rank(estimate);
    writer.member("total_bytes", worst.total).member("upper_bound_bytes", worst.upper_bound);
  }
  write_job(writer.key("job"), candidate.job);
  writer.end_object();
}

void write_rehearsal(JsonWriter& writer, const PlanRehearsal& rehearsal) {
  writer.key("rehearsal").begin_object().member("device", "phantom").member("rank", rehearsal.rank);
  writer.member("predicted_reserved_bytes", rehearsal.predicted_reserved);
  writer.member("reserved_bytes", rehearsal.reserved).member("seconds", rehearsal.seconds).end_object();
}

void write_rejected(JsonWriter& writer, const std::vector<RejectedJob>& rejected) {
  writer.key("rejected").begin_array();
  for (const RejectedJob& each : rejected) {
    write_job(writer.begin_object().member("why", each.why).key("job"), each.job);
    writer.end_object();
  }
  writer.end_array();
}

std::string fingerprint_of(const PlanRequest& request, const Job& job) {
  const Graph graph = training_graph(request.spec, job);
  return program::fingerprint_of(job, program::make_program({.graph = graph,
                                                             .job = job,
                                                             .device = request.cluster.card.device,
                                                             .coords = {},
                                                             .run = {.clip = request.clip}}));
}

void write_prediction(JsonWriter& writer, const PlanRequest& request, const Candidate& chosen) {
  writer.key("prediction").begin_object();
  writer.member("tokens_per_second", chosen.tokens_per_second).member("step_seconds", chosen.time.step_seconds);
  if (chosen.estimate.speed) write_speed(writer.key("speed"), *chosen.estimate.speed, chosen.estimate.figures);
  writer.member("verdict", verdict_name(chosen.estimate.verdict));
  writer.member("fingerprint", fingerprint_of(request, chosen.job));
  if (chosen.estimate.margins) write_bound(writer, *chosen.estimate.margins);
  write_ranks(writer, chosen.estimate.ranks, chosen.estimate.worst);
  writer.end_object();
}

void write_chosen(JsonWriter& writer, const PlanRequest& request, const Candidate& chosen) {
  const Estimate& estimate = chosen.estimate;
  write_job(writer.key("job"), chosen.job);
  write_cluster(writer.key("cluster"), request.cluster);
  writer.member("clip", request.clip).member("fixed", request.fixed).member("needs", chosen.needs);
  writer.member("capacity_bytes", estimate.capacity).member("verdict", verdict_name(estimate.verdict));
  writer.member("fits", estimate.verdict == Verdict::fits);
  writer.member("host_bytes", estimate.host_bytes).member("assumptions", estimate.assumptions);
  writer.key("suggestions").begin_array().end_array();
  write_prediction(writer, request, chosen);
  write_ranks(writer, estimate.ranks, estimate.worst);
}

void write_request(JsonWriter& writer, const PlanRequest& request) {
  write_job(writer.key("job"), request.job);
  write_cluster(writer.key("cluster"), request.cluster);
  writer.member("capacity_bytes", request.cluster.card.memory).member("verdict", "no_plan").member("fits", false);
}

void write_closest(JsonWriter& writer, const ClosestJob& closest) {
  writer.key("closest").begin_object().member("total_bytes", closest.total);
  write_job(writer.key("job"), closest.job);
  writer.end_object();
}

void write_larger(JsonWriter& writer, const LargerBatch& larger) {
  writer.key("larger_batch").begin_object().member("global_batch", larger.global_batch);
  writer.member("micro_batch", larger.micro_batch).member("grad_accum", larger.accumulation);
  writer.member("tokens_per_second", larger.tokens_per_second).end_object();
}

void write_cluster_with_plan(JsonWriter& writer, std::string_view key, const OtherCluster& other) {
  writer.key(key).begin_object().member("gpus", other.gpus).member("total_bytes", other.total);
  writer.member("tokens_per_second", other.tokens_per_second);
  write_job(writer.key("job"), other.job);
  writer.end_object();
}

/// All but the closing brace.
void write_plan(JsonWriter& writer, const PlanRequest& request, const Plan& plan) {
  writer.begin_object().member("schema", "vramfit/plan@1");
  write_model(writer, request.spec);
  if (plan.chosen) {
    write_chosen(writer, request, *plan.chosen);
  } else {
    write_request(writer, request);
  }
  writer.key("steps").begin_array();
  for (const PlanStep& step : plan.steps) {
    writer.begin_object().member("change", step.change).member("total_bytes", step.total);
    writer.member("tokens_per_second", step.tokens_per_second).end_object();
  }
  writer.end_array();
  writer.member("why", plan.why).key("alternatives").begin_array();
  for (const Candidate& candidate : plan.alternatives) write_alternative(writer, candidate);
  writer.end_array();
  writer.member("not_considered", plan.not_considered);
  if (plan.closest) write_closest(writer, *plan.closest);
  if (plan.larger) write_larger(writer, *plan.larger);
  if (plan.larger_cluster) write_cluster_with_plan(writer, "larger_cluster", *plan.larger_cluster);
  if (plan.smaller_cluster) write_cluster_with_plan(writer, "smaller_cluster", *plan.smaller_cluster);
  if (plan.rehearsal) write_rehearsal(writer, *plan.rehearsal);
  if (!request.rejected.empty()) write_rejected(writer, request.rejected);
  writer.key("search").begin_object();
  const SearchCounts& search = plan.search;
  writer.member("combinations", search.combinations).member("combinations_ruled_out", search.combinations_ruled_out);
  writer.member("configurations", search.configurations).member("ruled_out", search.ruled_out);
  writer.member("bounds", search.bounds).member("times", search.times).member("estimates", search.estimates);
  writer.member("seconds", search.seconds);
  writer.end_object();
}

void write_training(JsonWriter& writer, const ClusterPlan& made, std::int64_t tokens) {
  const TrainingCost cost =
      training_cost(tokens, made.plan->chosen->tokens_per_second, made.request.cluster.cards(), made.price);
  writer.key("training").begin_object().member("tokens", tokens).member("hours", cost.hours);
  writer.member("gpu_hours", cost.gpu_hours);
  if (cost.money) {
    writer.member("money", *cost.money).member("price_per_gpu_hour", made.price->per_gpu_hour);
    writer.member("price_origin", made.price->origin);
  }
  writer.end_object();
}

void write_cluster_plan(JsonWriter& writer, const ClusterPlan& made, std::optional<std::int64_t> tokens) {
  writer.begin_object().member("gpus", made.request.cluster.text);
  writer.member("verdict", !made.plan ? "refused" : made.has_plan() ? "fits" : "no_plan");
  writer.member("why", made.plan ? made.plan->why : made.refusal);
  if (made.has_plan()) {
    const Candidate& chosen = *made.plan->chosen;
    writer.member("tokens_per_second", chosen.tokens_per_second).member("total_bytes", worst_total(chosen.estimate));
    write_job(writer.key("job"), chosen.job);
    if (tokens) write_training(writer, made, *tokens);
  }
  writer.end_object();
}

}  // namespace

std::string plan_to_json(const PlanRequest& request, const Plan& plan) {
  JsonWriter writer;
  write_plan(writer, request, plan);
  writer.end_object();
  return writer.take();
}

std::string answer_to_json(const PlanAnswer& answer, std::optional<std::int64_t> tokens,
                           const std::vector<TooLarge>& larger) {
  const ClusterPlan& best = answer.tried[answer.best];
  JsonWriter writer;
  write_plan(writer, best.request, *best.plan);
  writer.member("objective", std::string(objective_name(answer.objective)));
  if (tokens && best.has_plan()) write_training(writer, best, *tokens);
  if (answer.tried.size() > 1) {
    writer.key("clusters").begin_array();
    for (const ClusterPlan& made : answer.tried) write_cluster_plan(writer, made, tokens);
    writer.end_array();
  }
  if (!larger.empty()) {
    writer.key("larger_models").begin_array();
    for (const TooLarge& each : larger) {
      writer.begin_object().member("name", each.model).member("why", each.why).end_object();
    }
    writer.end_array();
  }
  writer.end_object();
  return writer.take();
}

}  // namespace vramfit
