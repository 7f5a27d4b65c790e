#include "estimator/time/kernels.h"

#include <algorithm>

namespace vramfit {

double seconds_of_ticks(double ticks) { return ticks / 1e12; }

void Kernels::then(const Kernels& next) {
  launched = std::max(launched + next.compute, host + next.launched);
  host += next.host;
  compute += next.compute;
}

WorkTimer::WorkTimer(const Cluster& cluster, const Efficiency& efficiency)
    : rates_(cluster, efficiency),
      is_cpu_(cluster.is_cpu()),
      launch_(ticks(efficiency.launch_seconds)),
      eager_call_(ticks(efficiency.eager_call_seconds)),
      host_bandwidth_(efficiency.host_memory_bandwidth) {}

Kernels WorkTimer::kernels_of(const Work& work, std::int64_t times) const {
  const auto launches = static_cast<double>(work.launches * times);
  const double compute = ticks(rates_.seconds(work) * static_cast<double>(times)), host = launches * launch_;
  if (is_cpu_) return {host + compute, host + compute, host + compute};
  if (launches == 0) return {0, compute, compute};
  return {host, compute, std::max(launch_ + compute, host + whole(compute / launches))};
}

Kernels WorkTimer::kernels_of(const program::Run& run, const program::Code& code) const {
  if (run.stream == Stream::host && !is_cpu_) return on_host(run, code);
  Kernels kernels;
  const bool is_call = run.kernel == program::Kernel::call && run.work.count > 0;  // none: another kernel does it
  if (is_call && !is_cpu_) kernels.host = std::max(0.0, eager_call_ - launch_);
  for (std::uint32_t i = 0; i < run.work.count; ++i) {
    kernels.then(kernels_of(code.work[run.work.first + i], run.times));
  }
  return kernels;
}

Kernels WorkTimer::on_host(const program::Run& run, const program::Code& code) const {
  double bytes = 0;
  for (std::uint32_t i = 0; i < run.work.count; ++i) bytes += code.work[run.work.first + i].bytes;
  const double taken = ticks(bytes * static_cast<double>(run.times) / host_bandwidth_);
  return {taken, taken, taken};
}

double WorkTimer::of(const program::Start& start, const program::Group& group) const {
  return ticks(rates_.seconds(start, group));
}

}  // namespace vramfit
