// Plan requests of small models, as the planner's tests make them.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "model_specs/catalog.h"
#include "planner/plan.h"
#include "planner/search/search.h"
#include "tests/support/config_file.h"

namespace vramfit::testing {

/// CPU ranks of one node with `each` bytes.
inline Cluster cpu_ranks(std::int64_t ranks, Bytes each) {
  Cluster cluster = parse_cluster("1xcpu-1GiB");
  cluster.cards_per_node = ranks;
  cluster.card.memory = each;
  return cluster;
}

/// A small model at sequence 64 and a global batch of 8, both set.
inline PlanRequest request_for(const std::string& model, const Cluster& cluster) {
  PlanRequest request{
      .spec = small_model(model), .job = unresolved_job(), .fixed = {}, .cluster = cluster, .allowed = {}};
  request.job.sequence = 64;
  request.job.global_batch = 8;
  request.fixed = {"seq_len", "global_batch"};
  return request;
}

/// A model of the catalog, by one of its names, with nothing set.
inline PlanRequest catalog_request(const std::string& model, const std::string& gpus) {
  return {.spec = catalog_spec(*find_in_catalog(model)),
          .job = unresolved_job(),
          .fixed = {},
          .cluster = parse_cluster(gpus),
          .allowed = {}};
}

/// Sets a field as a person does.
inline void fix(PlanRequest& request, const std::string& name, const std::string& value) {
  set_job_field(request.job, job_field_named(name), value, name);
  request.fixed.push_back(name);
}

/// As make_plan does.
inline PlanRequest resolved(PlanRequest request) {
  std::vector<std::string> notes;
  request.job = resolve_job(request.job, request.spec, request.cluster, notes);
  return request;
}

/// For torchtitan's Llama under PyTorch's FSDP2, on two H100.
inline PlanRequest torchtitan_request() {
  PlanRequest request = request_for("llama", parse_cluster("2xH100-80GB"));
  fix(request, "runtime", "pytorch-fsdp2");
  fix(request, "modeling", "torchtitan");
  fix(request, "attention", "flash");
  return request;
}

/// The jobs with their times, all of them; fastest first, of equally fast ones the earlier.
inline std::vector<Option> all_timed(Evaluator& evaluator, const std::vector<Job>& jobs) {
  std::vector<Option> options;
  for (const Job& job : jobs) options.push_back(evaluator.timed(job));
  std::ranges::stable_sort(options, std::greater{}, &Option::tokens_per_second);
  return options;
}

}  // namespace vramfit::testing
