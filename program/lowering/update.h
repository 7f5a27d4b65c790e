// Lowers what follows the last micro-batch: sums over replicas, masks, clipping, the update.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "program/lowering/load.h"

namespace vramfit::program {

/// Calls of one kernel that add the squares of `elements` of a unit's gradient shard each.
struct SquaresCalls {
  Kernel kernel;
  std::int64_t elements, times;
};
/// Those that a shard of so many elements takes; of no elements or no times: none.
std::array<SquaresCalls, 2> calls_of_squares(std::int64_t shard_elements, bool is_cuda);
/// Of one of the calls, and of what makes a divisor of the squares' sum.
Work work_of_squares(std::int64_t elements, Dtype gradient);
/// Of a unit's gradients in host memory.
Work work_of_squares_on_host(const vramfit::Unit& unit);
inline constexpr Work kDivisorWork{.launches = 6, .bytes = 12};

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
  struct ReplicaSum {
    int token = -1;           // of what is summed as it is; -1: nothing
    std::vector<int> bucket;  // units
  };
  void finish_fp8_sums();
  void wait_for(const ReplicaSum& sum);
  void wait_for_replicas();
  void read_results() const;
  /// What the optimizer is told about all gradients.
  struct Numbers {
    Held divisor, found_inf;
  };
  Numbers numbers() const;
  void add_all_squares() const;
  void add_squares(int unit, const Held& gradient, const SquaresCalls& calls) const;

  // program/lowering/update_on_host.cpp
  void clip_on_host();
  void update_on_host();
  Numbers numbers_on_host() const;
  void update_from_card(const Numbers& numbers);

  const Shared& in_;
  const Residents& there_;
  std::vector<ReplicaSum> replica_sums_;  // under way
};

}  // namespace vramfit::program
