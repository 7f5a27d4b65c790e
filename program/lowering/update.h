// Lowers what follows the last micro-batch: sums over replicas, masks, clipping, the update.
#pragma once

#include <vector>

#include "program/lowering/load.h"

namespace vramfit::program {

class UpdateLowering {
 public:
  UpdateLowering(const Shared& shared, const Residents& residents) : in_(shared), there_(residents) {}

  /// Starts to sum the gradient shards of some units over replicas; what comes next here waits for it.
  void sum_replicas(const std::vector<int>& bucket);
  void mask();
  void clip();
  /// Of the units that have gradients left.
  void update();
  /// Of one unit, whose gradients are final once its sum over replicas is.
  void update_in_backward(int unit);

 private:
  Held temporary(const char* label, Bytes bytes) const;
  void wait_for_replicas();
  void read_results() const;
  /// What the optimizer is told about all gradients.
  struct Numbers {
    Held divisor, found_inf;
  };
  Numbers numbers() const;
  void add_all_squares() const;
  void add_squares(Kernel kernel, int unit, std::int64_t elements, std::int64_t times) const;

  // program/lowering/update_on_host.cpp
  void clip_on_host();
  void update_on_host();
  Numbers numbers_on_host() const;
  void update_from_card(const Numbers& numbers);

  const Shared& in_;
  const Residents& there_;
  struct ReplicaSum {
    int token = -1;
    std::vector<int> bucket;  // units
  };
  std::vector<ReplicaSum> replica_sums_;  // under way
};

}  // namespace vramfit::program
