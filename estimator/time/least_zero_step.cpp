// Each forward and each backward of ZeRO-3 needs every parameter whole. Between a forward and its backward so much
// stays whole as is used again before max_reuse_distance elements of others, and what is gathered ahead while fewer
// than max_live_parameters elements are whole; after backward nothing does but small parameters, which count as if they
// were never sent (program/pytorch/zero/zero3_coordinator.cpp). Each micro-batch of ZeRO-2 and ZeRO-3 reduces all
// gradients, and the last one of ZeRO-1. All collectives are of one axis, and so follow each other. However they are
// cut into pieces, those of a micro-batch take no less than one of all their bytes.
//
// The host updates a rank's part once all that the card was given before is done, and the card goes on once the host is
// done (zero3_offload.cpp, zero_offload.cpp).
#include "estimator/time/least_zero_step.h"

#include <algorithm>
#include <cstdint>

#include "estimator/time/rates.h"
#include "program/program.h"
#include "program/stages/adapters.h"
#include "program/stages/offload.h"

namespace vramfit {

namespace {

struct Elements {
  std::int64_t all = 0, large = 0, largest = 0;  // large: of parameters that ZeRO-3 doesn't keep whole
};

Elements elements_of(const Graph& graph, const Job& job) {
  Elements elements;
  for (const Parameter& parameter : graph.parameters) {
    const std::int64_t own = element_count(parameter);
    elements.all = checked_add(elements.all, own);
    if (own > job.zero3_sizes.param_persistence_threshold) elements.large += own;
    elements.largest = std::max(elements.largest, own);
  }
  return elements;
}

/// In one micro-batch of ZeRO-3. A parameter that is looked at from outside its module isn't counted among those that
/// are whole.
std::int64_t gathered(const Elements& elements, const Zero3Sizes& sizes) {
  std::int64_t again = elements.large;
  for (const std::int64_t kept :
       {sizes.max_reuse_distance, sizes.max_live_parameters, elements.largest, elements.largest}) {
    again -= std::min(again, kept);
  }
  return checked_add(elements.large, again);
}

/// Of numbers of the type that the model computes in.
class Sent {
 public:
  Sent(const Job& job, const Cluster& cluster, const Efficiency& efficiency)
      : rates_(cluster, efficiency),
        group_(program::groups_of(job.mesh, 1)[static_cast<std::size_t>(program::Axis::shard)]),
        element_(dtype_bytes(job.precision.compute)) {}

  double seconds(program::Collective collective, std::int64_t elements) const {
    if (elements == 0) return 0;
    return rates_.seconds({.collective = collective, .accesses = {}, .bytes = elements * element_}, group_);
  }

 private:
  Rates rates_;
  program::Group group_;
  Bytes element_;
};

/// The gradients of matrices, one after the other; those that are larger than the bucket stay where they are.
double copy_seconds(const Graph& graph, const Job& job, const Cluster& cluster, const Efficiency& efficiency) {
  const Rates rates(cluster, efficiency);
  const Bytes element = dtype_bytes(job.precision.compute);
  double all = 0;
  for (const Parameter& parameter : graph.parameters) {
    const Bytes bytes = element_count(parameter) * element;
    if (parameter.shape.size() == 2 && bytes.n <= job.bucket_bytes) {
      all += rates.seconds(Work{.bytes = 2 * static_cast<double>(bytes.n)});
    }
  }
  return all;
}

/// Of a rank's part: its gradient is scaled, AdamW reads it and changes the master and both states, and the master is
/// converted.
double host_update_seconds(const Elements& elements, const Job& job, const Efficiency& efficiency) {
  const auto wide = static_cast<double>(dtype_bytes(Dtype::f32).n);
  const auto state = static_cast<double>(dtype_bytes(job.precision.state).n);
  const auto computed = static_cast<double>(dtype_bytes(job.precision.compute).n);
  const double each = 2 * wide + (wide + 2 * (wide + 2 * state)) + (wide + computed);
  return static_cast<double>(elements.all / job.mesh.shard) * each / efficiency.host_memory_bandwidth;
}

}  // namespace

LeastZeroStep least_zero_step(const Graph& graph, const Job& job, const Cluster& cluster,
                              const Efficiency& efficiency) {
  LeastZeroStep least;
  if (job.runtime != Runtime::deepspeed || has_adapters(job) || !job.freeze.empty()) return least;
  using program::Collective;
  const Elements elements = elements_of(graph, job);
  const Sent sent(job, cluster, efficiency);
  const bool reduces_once = job.sharding == "shard-optimizer";
  const double times = reduces_once ? 1 : static_cast<double>(job.accumulation);
  least.kernels = times * copy_seconds(graph, job, cluster, efficiency);
  if (job.sharding == "full-shard") {
    least.collectives = times * (sent.seconds(Collective::all_gather, gathered(elements, job.zero3_sizes)) +
                                 sent.seconds(Collective::reduce_scatter, elements.all));
  } else {
    least.collectives = times * sent.seconds(Collective::all_reduce, elements.all);
    least.after_backward = sent.seconds(Collective::all_gather, elements.all);
  }
  if (offload_of(job).states && job.optimizer == "adamw") {
    least.after_backward += host_update_seconds(elements, job, efficiency);
  }
  return least;
}

}  // namespace vramfit
