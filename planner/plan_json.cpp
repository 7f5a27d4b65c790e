#include "planner/plan_json.h"

#include "base/json_writer.h"
#include "estimator/estimate_json.h"
#include "job/fields/job_json.h"
#include "job/loss_options.h"
#include "model_specs/parameters.h"
#include "program/files/rank_json.h"
#include "program/make_program.h"
#include "program/readers/fingerprint.h"

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
    const RankEstimate& worst = estimate.ranks[static_cast<std::size_t>(estimate.worst)];
    writer.member("total_bytes", worst.total).member("upper_bound_bytes", worst.upper_bound);
  }
  write_job(writer.key("job"), candidate.job);
  writer.end_object();
}

std::string fingerprint_of(const PlanRequest& request, const Job& job) {
  const Graph graph = build_graph(request.spec, loss_options(job));
  return program::fingerprint_of(job, program::make_program({.graph = graph,
                                                             .job = job,
                                                             .device = request.cluster.card.device,
                                                             .coords = {},
                                                             .run = {.clip = request.clip}}));
}

void write_prediction(JsonWriter& writer, const PlanRequest& request, const Candidate& chosen) {
  writer.key("prediction").begin_object();
  writer.member("tokens_per_second", chosen.tokens_per_second).member("step_seconds", chosen.time.step_seconds);
  writer.member("verdict", verdict_name(chosen.estimate.verdict));
  writer.member("fingerprint", fingerprint_of(request, chosen.job));
  write_ranks(writer, chosen.estimate.ranks, chosen.estimate.worst);
  writer.end_object();
}

void write_chosen(JsonWriter& writer, const PlanRequest& request, const Candidate& chosen) {
  const Estimate& estimate = chosen.estimate;
  write_job(writer.key("job"), chosen.job);
  write_cluster(writer.key("cluster"), request.cluster);
  writer.member("clip", request.clip);
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

}  // namespace

std::string plan_to_json(const PlanRequest& request, const Plan& plan) {
  JsonWriter writer;
  writer.begin_object().member("schema", "vramfit/plan@1");
  write_model(writer, request.spec);
  if (plan.chosen) {
    write_chosen(writer, request, *plan.chosen);
  } else {
    write_request(writer, request);
  }
  writer.member("why", plan.why).key("alternatives").begin_array();
  for (const Candidate& candidate : plan.alternatives) write_alternative(writer, candidate);
  writer.end_array().key("search").begin_object();
  const SearchCounts& search = plan.search;
  writer.member("configurations", search.configurations).member("ruled_out", search.ruled_out);
  writer.member("bounds", search.bounds).member("times", search.times).member("estimates", search.estimates);
  writer.member("seconds", search.seconds);
  writer.end_object().end_object();
  return writer.take();
}

}  // namespace vramfit
