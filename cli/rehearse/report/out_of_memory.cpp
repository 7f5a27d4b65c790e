#include "cli/rehearse/report/out_of_memory.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/text/suggest.h"

namespace vramfit {
namespace {

// What PyTorch, NCCL, cuBLAS and cuDNN say when a card refuses memory.
constexpr std::array<std::string_view, 5> kWords{"OutOfMemory", "out of memory", "Failed to CUDA calloc",
                                                 "ALLOC_FAILED", "allocation failed"};

bool names_memory(const std::string& exception) {
  return std::ranges::any_of(kWords, [&](std::string_view word) { return exception.find(word) != std::string::npos; });
}

OutOfMemory out_of_memory_of(const ProcessRecord& process, const TorchRecord& torch) {
  const bool by_torch =
      std::ranges::any_of(torch.devices, [](const TorchDevice& device) { return device.out_of_memory > 0; });
  const bool by_driver = std::ranges::any_of(process.cards, [](const DriverCard& card) { return card.last_refused; });
  if (!by_torch && !by_driver) return OutOfMemory::none;
  if (names_memory(torch.exception)) return OutOfMemory::raised;
  // Past torch's allocator, a refusal that no error names is one that a library took care of.
  if (!by_torch) return OutOfMemory::none;
  const bool went_on = !torch.exception.empty() || torch.steps_since_out_of_memory > 0;
  return went_on ? OutOfMemory::caught : OutOfMemory::stopped;
}

std::string sizes(const std::vector<std::int64_t>& sizes) { return fmt::format("{}", fmt::join(sizes, " x ")); }

}  // namespace

OutOfMemory out_of_memory_of(const ProcessRecord& process) {
  // Without its own allocator, torch has no figures of devices.
  if (process.torch && !(process.torch->devices.empty() && process.torch->exception.empty())) {
    return out_of_memory_of(process, *process.torch);
  }
  const auto worst = std::ranges::max_element(process.cards, {}, [](const DriverCard& card) {
    return card.out_of_memory == 0 ? 0 : card.last_refused ? 2 : 1;
  });
  if (worst == process.cards.end() || worst->out_of_memory == 0) return OutOfMemory::none;
  return worst->last_refused ? OutOfMemory::stopped : OutOfMemory::caught;
}

bool any_out_of_memory(const Rehearsal& rehearsal, OutOfMemory least) {
  return std::ranges::any_of(rehearsal.processes,
                             [&](const ProcessRecord& process) { return out_of_memory_of(process) >= least; });
}

std::string why_out_of_memory(const Rehearsal& rehearsal) {
  for (const RehearsedRank& rank : rehearsal.ranks) {
    if (rank.failures.empty()) continue;
    const TorchOutOfMemory& event = rank.failures.back();
    return fmt::format("rank {} asked for {} in {}, step {}, with {} free of {}", rank.first, format_gib(event.asked),
                       printable(event.phase, 40), event.step, format_gib(event.free),
                       format_gib(rehearsal.cluster.card.memory));
  }
  for (const ProcessRecord& process : rehearsal.processes) {
    for (const DriverCard& card : process.cards) {
      if (card.failures.empty()) continue;
      const auto& [asked, free] = card.failures.back();
      return fmt::format("process {} asked card {} for {} with {} free of {}", process.process, card.card,
                         format_gib(asked), format_gib(free), format_gib(rehearsal.cluster.card.memory));
    }
  }
  return "memory ran out";
}

std::string how_it_went_on(const RehearsedRank& rank) {
  std::string text = fmt::format("rank {} ran out of memory {} times and went on", rank.first, rank.out_of_memory);
  if (rank.failures.empty() || rank.worked_inputs.empty()) return text;
  const std::vector<std::int64_t>& failed = rank.failures.back().inputs;
  if (failed.empty() || failed == rank.worked_inputs) return text;
  return text + fmt::format("; the model's first input was {} when it last ran out, {} in the last step that succeeded",
                            sizes(failed), sizes(rank.worked_inputs));
}

}  // namespace vramfit
