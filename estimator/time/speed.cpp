#include "estimator/time/speed.h"

#include <limits>

#include "estimator/rank_estimate.h"
#include "estimator/time/seconds.h"
#include "program/model_flops.h"
#include "program/stages/trainable.h"

namespace vramfit {

namespace {

/// A step in which collectives take no time.
double seconds_without_collectives(const program::Program& program, Cluster cluster, Efficiency efficiency,
                                   Bytes outside) {
  cluster.card.link_bandwidth = cluster.network_bandwidth = std::numeric_limits<double>::infinity();
  efficiency.collective_base_seconds = efficiency.collective_step_seconds = efficiency.network_step_seconds = 0;
  return seconds_of(program, cluster, efficiency, outside).step_seconds;
}

double seconds_without_copies(const program::Program& program, Cluster cluster, const Efficiency& efficiency,
                              Bytes outside) {
  cluster.card.pcie_bandwidth = std::numeric_limits<double>::infinity();
  return seconds_of(program, cluster, efficiency, outside).step_seconds;
}

/// With host memory so many times as fast.
double seconds_with_host(const program::Program& program, const Cluster& cluster, Efficiency efficiency, Bytes outside,
                         double times_as_fast) {
  efficiency.host_memory_bandwidth *= times_as_fast;
  return seconds_of(program, cluster, efficiency, outside).step_seconds;
}

}  // namespace

double model_flops_utilization(const Graph& graph, const Job& job, const Card& card, double step_seconds) {
  const double peak = peak_flops(card, job.precision.compute);
  if (peak == 0 || step_seconds <= 0) return 0;
  const BatchShape shape{rows_of_micro_batch(job), job.sequence};
  double flops = training_flops(graph, trainable_parameters(graph, job), shape);
  if (job.modeling == Modeling::trl_dpo) flops += forward_flops(graph, shape);  // its reference
  return static_cast<double>(job.accumulation) * flops / (step_seconds * peak);
}

Speed speed_of(const program::Program& program, const Graph& graph, const Job& job, const Cluster& cluster,
               const Efficiency& efficiency) {
  const Bytes outside = outside_allocator(graph, job, cluster);
  Speed speed{.time = seconds_of(program, cluster, efficiency, outside)};
  const double seconds = speed.time.step_seconds;
  speed.least_step_seconds = seconds * efficiency.step_least;
  speed.most_step_seconds = seconds * efficiency.step_most;
  speed.exposed_communication_seconds = seconds - seconds_without_collectives(program, cluster, efficiency, outside);
  if (!job.offload.empty()) {
    speed.exposed_copy_seconds = seconds - seconds_without_copies(program, cluster, efficiency, outside);
    const auto with_host = [&](double times_as_fast) {
      return seconds_with_host(program, cluster, efficiency, outside, times_as_fast);
    };
    speed.exposed_host_seconds = seconds - with_host(std::numeric_limits<double>::infinity());
    if (speed.exposed_host_seconds > 0) {
      speed.least_step_seconds = with_host(efficiency.host_memory_range) * efficiency.step_least;
      speed.most_step_seconds = with_host(1 / efficiency.host_memory_range) * efficiency.step_most;
    }
  }
  speed.tokens_per_second = static_cast<double>(tokens_of_step(job)) / seconds;
  speed.tokens_per_second_per_card = speed.tokens_per_second / static_cast<double>(cluster.cards());
  speed.model_flops_utilization = model_flops_utilization(graph, job, cluster.card, seconds);
  return speed;
}

}  // namespace vramfit
