// Jobs of transformers' Trainer, and what is asked of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "estimator/estimate.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "program/make_program.h"
#include "program/stages/adapters.h"

namespace vramfit::testing {

using Fields = std::vector<std::pair<const char*, const char*>>;

/// In bf16-mixed, with 128 tokens and flash attention, unless `more` says otherwise.
inline Job of_trainer(const Fields& more) {
  Job job = unresolved_job();
  for (const Fields& fields : {Fields{{"runtime", "pytorch"},
                                      {"modeling", "transformers"},
                                      {"precision", "bf16-mixed"},
                                      {"attention", "flash"},
                                      {"seq_len", "128"}},
                               more}) {
    for (const auto& [name, value] : fields) job_field_named(name).set(job, value);
  }
  return job;
}

/// How many buffers of `bytes` a step on one H100 has whose label ends so.
inline std::ptrdiff_t count_of(const ModelSpec& spec, const Fields& fields, std::string_view label,
                               std::int64_t bytes) {
  const Cluster cluster = parse_cluster("1xH100-80GB");
  std::vector<std::string> notes;
  const Job job = resolve_job(of_trainer(fields), spec, cluster, notes);
  const program::Program program = program::make_program(
      {.graph = training_graph(spec, job), .job = job, .device = cluster.card.device, .coords = {}});
  return std::ranges::count_if(program.main.buffers, [&](const program::Buffer& buffer) {
    return buffer.bytes == Bytes{bytes} && program.labels.at(static_cast<std::size_t>(buffer.label)).ends_with(label);
  });
}

/// What an estimate on one H100 says it lacks; "": nothing.
inline std::string refusal(const ModelSpec& spec, const Fields& fields) {
  return estimate(spec, of_trainer(fields), parse_cluster("1xH100-80GB"), {.suggestions = false}).lacking;
}

}  // namespace vramfit::testing
