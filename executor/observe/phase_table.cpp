#include "executor/observe/phase_table.h"

#include <fmt/format.h>

#include <algorithm>

namespace vramfit {

namespace {

std::string mib(Bytes bytes) {
  return fmt::format("{:.2f}", static_cast<double>(bytes.n) / static_cast<double>(kMiB.n));
}

std::string name_of(const PhasePeak& phase) {
  if (phase.phase == Phase::load) return "load";
  return fmt::format("{}, {}", phase_name(phase.phase), phase.steady ? "steady" : "first");
}

const PhasePeak* phase_like(const RankEstimate* rank, const PhasePeak& wanted) {
  if (rank == nullptr) return nullptr;
  const auto found = std::ranges::find_if(
      rank->phases, [&](const PhasePeak& p) { return p.phase == wanted.phase && p.steady == wanted.steady; });
  return found == rank->phases.end() ? nullptr : &*found;
}

std::string row(const std::string& name, const PhasePeak& measured, const PhasePeak* predicted, bool is_cpu) {
  const auto cells = [&](Bytes PhasePeak::*figure) {
    return fmt::format("{:>14}{:>14}", mib(measured.*figure), predicted == nullptr ? "-" : mib(predicted->*figure));
  };
  if (is_cpu) return fmt::format("  {:<20}{}\n", name, cells(&PhasePeak::requested));
  return fmt::format("  {:<20}{}{}\n", name, cells(&PhasePeak::allocated), cells(&PhasePeak::reserved));
}

PhasePeak whole(const RankEstimate& rank) {
  return {.requested = rank.peak_requested, .allocated = rank.peak_allocated, .reserved = rank.peak_reserved};
}

}  // namespace

const RankEstimate* prediction_of(const std::vector<RankEstimate>& predicted, std::int64_t rank) {
  const auto found = std::ranges::find_if(
      predicted, [&](const RankEstimate& entry) { return entry.first_rank <= rank && rank <= entry.last_rank; });
  return found == predicted.end() ? nullptr : &*found;
}

std::string phase_table(const RankEstimate& measured, const RankEstimate* predicted, bool is_cpu) {
  std::string text = fmt::format("Peak memory of rank {} by phase, MiB\n  {:<20}", measured.first_rank, "");
  text += is_cpu ? fmt::format("{:>14}{:>14}\n", "requested", "predicted")
                 : fmt::format("{:>14}{:>14}{:>14}{:>14}\n", "allocated", "predicted", "reserved", "predicted");
  for (const PhasePeak& phase : measured.phases) {
    text += row(name_of(phase), phase, phase_like(predicted, phase), is_cpu);
  }
  const PhasePeak own = whole(measured);
  if (predicted == nullptr) return text + row("whole run", own, nullptr, is_cpu);
  const PhasePeak foreseen = whole(*predicted);
  return text + row("whole run", own, &foreseen, is_cpu);
}

}  // namespace vramfit
