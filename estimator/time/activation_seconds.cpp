#include "estimator/time/activation_seconds.h"

#include <algorithm>
#include <span>
#include <variant>

#include "estimator/time/kernels.h"
#include "program/readers/activations.h"

namespace vramfit {

namespace {

using namespace program;  // NOLINT(google-build-using-namespace): the program's own words

bool has_activations(const Run& run, const Code& code) {
  const std::span accesses = std::span(code.accesses).subspan(run.accesses.first, run.accesses.count);
  return std::ranges::any_of(accesses, [&](const Access& access) {
    return access.buffer >= 0 && is_activation(code.buffers[static_cast<std::size_t>(access.buffer)]);
  });
}

}  // namespace

double activation_seconds(const Program& program, const Cluster& cluster, const Efficiency& efficiency) {
  const WorkTimer timer(cluster, efficiency);
  double all = 0;
  for (const Section& section : merged_sections(program)) {
    if (!is_in_step(section, kSteadyStep)) continue;
    double once = 0;
    for (std::size_t i = section.begin; i < section.end; ++i) {
      const auto* const run = std::get_if<Run>(&program.main.instructions[i]);
      if (run == nullptr || run->stream != Stream::compute || !has_activations(*run, program.main)) continue;
      once += timer.kernels_of(*run, program.main).compute;
    }
    all += once * static_cast<double>(section.times);
  }
  return seconds_of_ticks(all);
}

}  // namespace vramfit
