// Jobs of TRL's trainers, and their programs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "job/stacks/stacks.h"
#include "program/make_program.h"
#include "program/not_modelled.h"
#include "program/stages/adapters.h"
#include "tests/support/models.h"

namespace vramfit::testing {

inline ModelSpec spec_of_test() {
  ModelSpec spec = small_llama();
  spec.vocab_size = 4000;  // of fewer rows the embedding's gradient has no rules
  return spec;
}

struct Field {
  std::string name, value;
};

inline Job trl_job(std::string_view stack, const std::vector<Field>& fields, const std::string& cluster) {
  Job job = on_stack(unresolved_job(), defaults_of(stack_named(stack), parse_cluster(cluster)));
  job_field_named("seq_len").set(job, "512");
  for (const Field& field : fields) job_field_named(field.name).set(job, field.value);
  return job;
}

inline Job resolved(const Job& job, const std::string& cluster = "1xH100-80GB") {
  std::vector<std::string> notes;
  return resolve_job(job, spec_of_test(), parse_cluster(cluster), notes);
}

/// Throws NotModelled.
inline program::Program program_of(const Job& job, const std::string& cluster_text = "1xH100-80GB") {
  const Cluster cluster = parse_cluster(cluster_text);
  const Job whole = resolved(job, cluster_text);
  require_rules(whole, cluster);
  return program::make_program(
      {.graph = training_graph(spec_of_test(), whole), .job = whole, .device = cluster.card.device, .coords = {}});
}

}  // namespace vramfit::testing
