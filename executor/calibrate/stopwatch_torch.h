// How long one call of a function takes, measured by repeating it.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>

namespace vramfit {

double seconds_since(std::chrono::steady_clock::time_point begin);

class Stopwatch {
 public:
  /// Times what runs on `device`: CUDA by events in the current stream, CPU by the clock.
  explicit Stopwatch(at::Device device) : device_(device) {}

  /// Median seconds of a call, after one that isn't counted. Calls go on for `seconds`, and there are three at least.
  /// On CUDA short calls are timed many at a time, so that they follow each other as closely as the host launches them.
  double seconds_of(const std::function<void()>& call, double seconds) const;

  /// Mean seconds until a call returns, whether or not what it launched is done: on CUDA what the host needs to launch
  /// it. Many calls at once, fewer than the driver queues.
  double host_seconds_of(const std::function<void()>& call) const;

  /// Until the device is done with all that it was given.
  void wait() const;

  /// Mean seconds of so many calls in a row, at least 1.
  double seconds_of_calls(const std::function<void()>& call, int calls) const;

 private:
  at::Device device_;
};

}  // namespace vramfit
