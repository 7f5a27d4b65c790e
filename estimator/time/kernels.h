// What kernels and collectives do to the clocks of a step.
#pragma once

#include <cstdint>
#include <limits>

#include "estimator/time/efficiency.h"
#include "estimator/time/rates.h"
#include "job/cluster/cluster.h"
#include "program/program.h"

namespace vramfit {

/// The nearest whole number; 0 or more. Here, and without a call of the C library, because a step has thousands of
/// runs.
inline double whole(double ticks) {
  constexpr double kAllAreWhole = 4503599627370496;  // 2^52
  return ticks < kAllAreWhole ? static_cast<double>(static_cast<std::int64_t>(ticks + 0.5)) : ticks;
}

/// Whole picoseconds, so that sums and maxima are exact and any way of adding them up gives the same result.
inline double ticks(double seconds) { return whole(seconds * 1e12); }
double seconds_of_ticks(double ticks);

inline constexpr int kSteadyStep = 2;  // all steps after the first are alike
inline constexpr double kNever = -std::numeric_limits<double>::infinity();

/// What a list of kernels does to the host's and their stream's clock, from wherever they stand: the host goes on by
/// `host`; the stream ends `compute` after it was free, or `launched` after the host began if that is later. In ticks.
struct Kernels {
  double host = 0, compute = 0, launched = kNever;

  void then(const Kernels& next);
};

/// Whether the program has managed memory that the card has no room for beside its peak and what lies outside the
/// allocator. The driver then moves what is
/// touched to the card, and sends away what was touched longest ago (CUDA C++ Programming Guide, "Unified Memory"):
/// with states that are touched in the same order in each step, that is what will be touched next, so that all of them
/// move.
bool pages_move(const program::Program& program, const Cluster& cluster, Bytes outside_allocator);

/// How long things take on a cluster, in ticks.
class WorkTimer {
 public:
  /// Both outlive the timer. `pages_move`: each run moves the managed memory that it accesses to the card and away.
  WorkTimer(const Cluster& cluster, const Efficiency& efficiency, bool pages_move = false);

  /// `times` kernels that are alike are launched and run one after the other. On CPU ranks the host computes itself.
  Kernels kernels_of(const Work& work, std::int64_t times = 1) const;
  Kernels kernels_of(const program::Run& run, const program::Code& code) const;
  double of(const program::Start& start, const program::Group& group) const;
  /// Of one launch, by the host.
  double launch() const { return launch_; }

 private:
  Kernels moved_pages(const program::Run& run, const program::Code& code) const;
  /// What the CPU computes for a card is bound by host memory.
  Kernels on_host(const program::Run& run, const program::Code& code) const;

  Rates rates_;
  bool is_cpu_, pages_move_;
  double launch_, eager_call_;
  double host_bandwidth_;  // bytes a second
};

}  // namespace vramfit
