#include "executor/meter/memory_history.h"

#include <chrono>

namespace vramfit {

namespace {

std::int64_t microseconds_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

}  // namespace

std::string_view memory_action_name(MemoryAction action) {
  switch (action) {
    case MemoryAction::alloc:
      return "alloc";
    case MemoryAction::free_requested:
      return "free_requested";
    case MemoryAction::free_completed:
      return "free_completed";
    case MemoryAction::segment_alloc:
      return "segment_alloc";
    case MemoryAction::segment_free:
      return "segment_free";
    case MemoryAction::segment_map:
      return "segment_map";
    case MemoryAction::segment_unmap:
      return "segment_unmap";
    case MemoryAction::oom:
      return "oom";
  }
  return "";
}

void MemoryHistory::set_phase(Phase phase, int step) {
  phase_ = phase;
  step_ = step;
}

void MemoryHistory::keep(const MemoryEntry& entry) {
  if (entries_.size() == most_) entries_.pop_front();
  entries_.push_back(entry);
  entries_.back().microseconds = microseconds_now();
}

void MemoryHistory::alloc(std::uint64_t address, Bytes bytes, Category category, const std::string& label,
                          std::int64_t stream) {
  const auto [number, is_new] = numbers_.try_emplace(label, static_cast<int>(texts_.size()));
  if (is_new) texts_.push_back(label);
  const MemoryLabel named{.text = number->second, .category = category, .phase = phase_, .step = step_};
  live_[address] = {.bytes = bytes, .label = named};
  keep({.action = MemoryAction::alloc, .address = address, .bytes = bytes, .stream = stream, .label = named});
}

void MemoryHistory::note(MemoryAction action, std::uint64_t address, Bytes bytes, std::int64_t stream) {
  MemoryEntry entry{.action = action, .address = address, .bytes = bytes, .stream = stream};
  if (action == MemoryAction::free_requested || action == MemoryAction::free_completed) {
    if (const auto found = live_.find(address); found != live_.end()) entry.label = found->second.label;
  }
  if (action == MemoryAction::free_completed) live_.erase(address);
  keep(entry);
}

}  // namespace vramfit
