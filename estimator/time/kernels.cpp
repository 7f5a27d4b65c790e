#include "estimator/time/kernels.h"

#include <algorithm>

#include "program/readers/peaks.h"

namespace vramfit {

double seconds_of_ticks(double ticks) { return ticks / 1e12; }

void Kernels::then(const Kernels& next) {
  launched = std::max(launched + next.compute, host + next.launched);
  host += next.host;
  compute += next.compute;
}

bool pages_move(const program::Program& program, const Cluster& cluster, Bytes outside_allocator) {
  const auto is_managed = [](const program::Buffer& buffer) { return buffer.space == program::Space::managed; };
  if (cluster.is_cpu() || std::ranges::none_of(program.main.buffers, is_managed)) return false;
  constexpr Bytes kGranule{512};  // of the caching allocator
  const FoldedPeaks peaks = folded_peaks(program, kGranule);
  const Bytes managed = peaks.spaces[static_cast<std::size_t>(program::Space::managed)];
  return peaks.rounded + managed + outside_allocator > cluster.card.memory;
}

WorkTimer::WorkTimer(const Cluster& cluster, const Efficiency& efficiency, bool pages_move)
    : rates_(cluster, efficiency),
      is_cpu_(cluster.is_cpu()),
      pages_move_(pages_move),
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
  if (pages_move_) kernels.then(moved_pages(run, code));
  return kernels;
}

Kernels WorkTimer::moved_pages(const program::Run& run, const program::Code& code) const {
  Bytes bytes;
  for (std::uint32_t i = 0; i < run.accesses.count; ++i) {
    const program::Access& access = code.accesses[run.accesses.first + i];
    if (access.buffer < 0) continue;
    const program::Buffer& buffer = code.buffers[static_cast<std::size_t>(access.buffer)];
    if (buffer.space == program::Space::managed) bytes += buffer.bytes;
  }
  if (bytes.n == 0) return {};
  return kernels_of({.unit = Work::Unit::host_link, .launches = 0, .bytes = 2 * static_cast<double>(bytes.n)},
                    run.times);
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
