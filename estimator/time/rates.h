// How long one kernel and one collective take on the cards of a cluster.
#pragma once

#include "estimator/time/efficiency.h"
#include "job/cluster/cluster.h"
#include "program/program.h"

namespace vramfit {

/// What a rank reaches of its card's peaks, kernel by kernel. docs/time-model.md derives the forms.
class Rates {
 public:
  /// Both outlive the rates.
  Rates(const Cluster& cluster, const Efficiency& efficiency) : cluster_(cluster), efficiency_(efficiency) {}

  /// Of all kernels of a row of work: each takes the longer of its FLOPs and its bytes, after its start.
  double seconds(const Work& work) const;
  /// A ring: every link carries (n - 1) / n of the data for a gather or a reduce-scatter, in n - 1 steps, twice that
  /// for both, and as much of what is expected of an all-to-all. A send carries all of it in one step.
  double seconds(const program::Start& start, const program::Group& group) const;

 private:
  double seconds_alone(const Work& work) const;
  double product_seconds(const Work& work) const;
  double attention_seconds(const Work& work, const Efficiency::Attention& attention) const;
  double peak_flops(Dtype dtype) const;
  double product_share(Dtype dtype) const;
  double wave_share(const WorkShape& shape) const;
  double memory_seconds(const Work& work, double share) const;
  double pass_seconds(const Work& work, double share) const;

  const Cluster& cluster_;
  const Efficiency& efficiency_;
};

}  // namespace vramfit
