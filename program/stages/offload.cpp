#include "program/stages/offload.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/conflict.h"
#include "base/error.h"

namespace vramfit {

namespace {

bool has(const Job& job, std::string_view kind) { return std::ranges::find(job.offload, kind) != job.offload.end(); }

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
  offload.activations = has(job, "activations");
  offload.parameters = has(job, "params");
  offload.gradients = offload.parameters || has(job, "optimizer+gradients");
  offload.states = offload.gradients || has(job, "optimizer");
  offload.paged_states = job.optimizer_implementation == OptimizerImplementation::paged;
  return offload;
}

void require_offload(const Job& job) {
  if (job.offload.empty()) return;
  const Offload offload = offload_of(job);
  if (job.offload.size() > (offload.activations ? 2U : 1U)) {
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
