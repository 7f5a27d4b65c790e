// How long one kernel and one collective take on the cards of a cluster.
#pragma once

#include "estimator/time/costs.h"
#include "job/cluster/cluster.h"
#include "program/program.h"

namespace vramfit {

/// Per second, what a rank reaches of its card's peaks. docs/time-model.md derives the formulas.
class Rates {
 public:
  Rates(const Cluster& cluster, const Costs& costs);

  /// Of all kernels of a row of work: each takes the longer of its FLOPs and its bytes.
  double seconds(const Work& work) const;
  /// A ring: every link carries (n - 1) / n of the data for a gather or a reduce-scatter, twice that for both, and as
  /// much of what is expected of an all-to-all. A send carries all of it.
  double seconds(const program::Start& start, const program::Group& group) const;

 private:
  double flops(const Work& work) const;
  double bandwidth(const program::Group& group) const;

  const Cluster& cluster_;
  const Costs& costs_;
  double attention_;  // share
};

}  // namespace vramfit
