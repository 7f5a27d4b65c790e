#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "base/numbers/median.h"
#include "executor/calibrate/stopwatch_torch.h"

namespace vramfit {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLeastSamples = 3, kMostSamples = 1000;
/// Events resolve half a microsecond (CUDA runtime, cudaEventElapsedTime); a sample takes a thousand times that.
constexpr double kLeastSampleSeconds = 5e-4;
constexpr int kMostCallsOfASample = 256;
/// The driver holds back the host once about 1024 launches wait for the GPU.
constexpr int kQueuedCalls = 200;

}  // namespace

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void Stopwatch::wait() const {
  if (device_.is_cuda()) c10::cuda::device_synchronize();
}

double Stopwatch::seconds_of_calls(const std::function<void()>& call, int calls) const {
  if (!device_.is_cuda()) {
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    return seconds_since(begin) / calls;
  }
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  c10::Event begin(device_.type(), c10::EventFlag::BACKEND_DEFAULT),
      end(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  begin.record(stream);
  for (int i = 0; i < calls; ++i) call();
  end.record(stream);
  end.synchronize();
  constexpr double kSecondsOfAMillisecond = 1e-3;
  return begin.elapsedTime(end) * kSecondsOfAMillisecond / calls;
}

double Stopwatch::seconds_of(const std::function<void()>& call, double seconds) const {
  const Clock::time_point begin = Clock::now();
  call();
  wait();
  const double once = std::max(seconds_of_calls(call, 1), 1e-9);
  const int calls = static_cast<int>(std::clamp(kLeastSampleSeconds / once, 1.0, double{kMostCallsOfASample}));
  std::vector<double> samples;
  while (static_cast<int>(samples.size()) < kLeastSamples ||
         (seconds_since(begin) < seconds && static_cast<int>(samples.size()) < kMostSamples)) {
    samples.push_back(seconds_of_calls(call, calls));
  }
  return median(std::move(samples));
}

double Stopwatch::host_seconds_of(const std::function<void()>& call) const {
  call();
  wait();
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < kQueuedCalls; ++i) call();
  const double mean = seconds_since(begin) / kQueuedCalls;
  wait();
  return mean;
}

}  // namespace vramfit
