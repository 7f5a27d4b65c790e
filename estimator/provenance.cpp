#include "estimator/provenance.h"

#include <fmt/format.h>

#include "job/cluster/context.h"

namespace vramfit {

namespace {

// The engine on an H200, whose context is the only one that was measured: docs/on-a-card.md.
constexpr const char* kMoreWithOffload = "; with offload up to 118 MiB more were seen";

std::string outside_origin(Bytes outside_allocator, const Job& job, const Card& card) {
  if (!is_context_measured(card)) return fmt::format("context and NCCL, {}", card.outside_origin);
  const bool has_communicators = outside_allocator > context_of(job.runtime, card);
  return fmt::format("context, {}{}{}", card.outside_origin, has_communicators ? ", and NCCL, not measured" : "",
                     job.runtime == Runtime::vramfit && !job.offload.empty() ? kMoreWithOffload : "");
}

}  // namespace

std::string outside_text(Bytes outside_allocator, const Job& job, const Cluster& cluster) {
  return fmt::format("{} outside PyTorch's allocator ({})", format_gib(outside_allocator),
                     outside_origin(outside_allocator, job, cluster.card));
}

std::string checked_text(const Job& job, const Cluster& cluster) {
  const bool ran = job.runtime == Runtime::vramfit && is_context_measured(cluster.card) && cluster.cards() == 1;
  return fmt::format("checked against simulation (phantom GPUs){}",
                     ran ? " and against jobs on one such card" : ", not real hardware");
}

}  // namespace vramfit
