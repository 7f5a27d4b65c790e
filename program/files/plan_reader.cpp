#include "program/files/plan_reader.h"

#include <limits>

#include <fmt/format.h>

#include "base/error.h"
#include "base/json/json_value.h"
#include "base/numbers/most_bytes.h"
#include "job/fields/job_fields.h"
#include "job/fields/job_json.h"
#include "model_specs/config.h"
#include "program/files/rank_json.h"

namespace vramfit {
namespace {

ModelSpec read_model(JsonObject object, const std::string& file) {
  const std::string name = object.text("name");
  ModelSpec spec = parse_config(object.text("config_json"), file + ": model.config_json");
  spec.name = name;
  spec.source = object.text("source");
  object.skip("parameters");
  object.skip("model_type");
  object.skip("architecture");
  object.finish();
  return spec;
}

// A plan decides everything; what each resolved job has, it must have.
void check_complete(JsonObject& job_object, const Job& job) {
  for (const JobField& field : job_fields()) {
    if (field.in_plan == InPlan::optional) continue;
    if (field.get(job).empty() || !job_object.has(field.name)) job_object.fail(field.name, "missing");
  }
  if (job.bucket_bytes == kBucketByHiddenSize) job_object.fail("bucket_bytes", "auto: a plan has a number");
  const std::int64_t rows = checked_mul(checked_mul(job.micro_batch, job.accumulation), data_ranks(job));
  if (rows != job.global_batch) {
    job_object.fail("global_batch",
                    fmt::format("{} is not micro_batch x grad_accum x data ranks = {} x {} x {} = {}", job.global_batch,
                                job.micro_batch, job.accumulation, data_ranks(job), rows));
  }
}

void read_prediction(JsonObject object, PlanFile& plan) {
  plan.predicted_ranks = read_ranks(object, plan.predicted_worst);
  if (object.has("fingerprint")) plan.fingerprint = object.text("fingerprint");
  for (const char* key : {"tokens_per_second", "step_seconds", "speed", "verdict", "bound"}) object.skip(key);
  object.finish();
}

}  // namespace

PlanFile plan_from_json(std::string_view text, const std::string& file) {
  const JsonValue document = parse_json(text, file);
  JsonObject object(document, file);
  check_schema(object, "plan");
  if (object.has("verdict") && object.text("verdict") == "no_plan") {
    object.fail("verdict", "no_plan: the search found no job that fits, so there is nothing to run or compare");
  }
  PlanFile plan;
  plan.spec = read_model(object.object("model"), file);
  JsonObject job = object.object("job");
  std::vector<std::string> fields_set;
  read_job(job, plan.job, fields_set);
  check_complete(job, plan.job);
  JsonObject cluster = object.object("cluster");
  plan.cluster = read_cluster(cluster);
  if (data_ranks(plan.job) != plan.cluster.cards()) {
    job.fail("mesh",
             fmt::format("{} ranks are not the {} cards of the cluster", data_ranks(plan.job), plan.cluster.cards()));
  }
  plan.clip = object.boolean("clip");
  plan.capacity = {object.integer("capacity_bytes", 1, kMostStatedBytes)};
  read_prediction(object.object("prediction"), plan);
  if (object.has("fixed")) plan.fixed = object.texts("fixed");
  for (const char* key : {"verdict", "fits", "why", "unverified", "host_bytes", "suggestions", "assumptions", "ranks",
                          "worst", "steps", "alternatives", "not_considered", "rehearsal", "rejected", "search",
                          "objective", "training", "clusters", "larger_models"}) {
    object.skip(key);
  }
  object.skip("needs");
  object.skip("larger_batch");
  object.skip("smaller_cluster");
  object.finish();
  return plan;
}

}  // namespace vramfit
