#include "program/stages/offload.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/conflict.h"
#include "base/error.h"
#include "job/fields/field_text.h"
#include "job/fields/job_field_text.h"

namespace vramfit {

namespace {

constexpr std::string_view kPageable = ":pageable";

bool has(const Job& job, std::string_view kind) { return std::ranges::find(job.offload, kind) != job.offload.end(); }
bool has_pageable(const Job& job, std::string_view kind) { return has(job, fmt::format("{}{}", kind, kPageable)); }
bool has_either(const Job& job, std::string_view kind) { return has(job, kind) || has_pageable(job, kind); }

/// One block of how many: "activations", "activations:every:N"; 0: another kind.
std::int64_t activations_every(std::string_view kind) {
  if (!kind.starts_with("activations")) return 0;
  constexpr std::string_view kEvery = "activations:every:";
  return kind.starts_with(kEvery) ? whole_number(kind.substr(kEvery.size()), 2, kMostEvery) : 1;
}

[[noreturn]] void refuse(const Job& job, std::string_view with, std::string_view instead) {
  throw Excluded(fmt::format("--offload {} with {} ({})", fmt::join(job.offload, ","), with, instead));
}

/// What a gradient shard goes through after its last reduction, on the card.
void require_gradients_ready(const Job& job) {
  if (!std::holds_alternative<NoGradientMask>(job.gradient_mask))
    refuse(job, "--gradient-mask", "use --offload optimizer: gradients are masked on the card");
  if (job.mesh.replicate > 1)
    refuse(job, "replicas", "use --sharding full-shard, or --offload optimizer: replicas are summed on the card");
}

}  // namespace

Offload offload_of(const Job& job) {
  Offload offload;
  for (const std::string& kind : job.offload) {
    if (const std::int64_t every = activations_every(kind); every > 0) {
      offload.activations = true;
      offload.every = every;
    }
  }
  offload.parameters = has_either(job, "params");
  offload.gradients = offload.parameters || has(job, "optimizer+gradients");
  offload.states = offload.gradients || has_either(job, "optimizer");
  offload.pins_parameters = !has_pageable(job, "params");
  offload.pins_states = has_either(job, "optimizer") ? has(job, "optimizer") : offload.pins_parameters;
  offload.paged_states = job.optimizer_implementation == OptimizerImplementation::paged;
  return offload;
}

void require_offload(const Job& job) {
  if (job.offload.empty()) return;
  for (const std::string_view kind : job.offload) {
    if (!kind.ends_with(kPageable)) continue;
    throw NotModelled(fmt::format(
        "--offload {} with --runtime vramfit (its buffers are page-locked: --offload {}; DeepSpeed's may be pageable: "
        "--stack deepspeed)",
        kind, kind.substr(0, kind.size() - kPageable.size())));
  }
  const Offload offload = offload_of(job);
  const auto of_activations = std::ranges::count_if(job.offload, activations_every);
  if (of_activations > 1 || job.offload.size() > (offload.activations ? 2U : 1U)) {
    throw NotModelled(fmt::format(
        "--offload {} (params includes optimizer+gradients, which includes optimizer: give one, and activations)",
        fmt::join(job.offload, ",")));
  }
  if (offload.states && offload.paged_states) {
    refuse(job, fmt::format("--optimizer {}:paged", job.optimizer),
           "use one of them: either keeps states off the card");
  }
  if (offload.gradients) require_gradients_ready(job);
  if (offload.parameters && job.load == Load::rank0 && job.mesh.shard > 1)
    refuse(job, "--load rank0", "use --load each: rank 0 sends to cards");
}

}  // namespace vramfit
