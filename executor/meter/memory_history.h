// The latest events of a rank's memory with their labels, as a memory snapshot shows them.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "program/ledger/ledger.h"

namespace vramfit {

/// As PyTorch's allocator traces call them.
enum class MemoryAction : std::uint8_t {
  alloc,
  free_requested,
  free_completed,
  segment_alloc,
  segment_free,
  segment_map,
  segment_unmap,
  oom
};
std::string_view memory_action_name(MemoryAction action);

/// What a block is and when it was made.
struct MemoryLabel {
  int text = -1;  // index in MemoryHistory::texts(); -1: not a block of ours
  Category category = Category::temporaries;
  Phase phase = Phase::load;
  std::int32_t step = 0;
};

struct MemoryEntry {
  MemoryAction action{};
  std::uint64_t address = 0;  // oom: bytes that were free
  Bytes bytes{};              // as requested
  std::int64_t stream = 0;
  std::int64_t microseconds = 0;  // since 1970
  MemoryLabel label{};
};

/// Not thread-safe: the meter calls it under its lock.
class MemoryHistory {
 public:
  /// Keeps the last `most` events.
  explicit MemoryHistory(std::size_t most) : most_(most) {}

  void set_phase(Phase phase, int step);
  void alloc(std::uint64_t address, Bytes bytes, Category category, const std::string& label, std::int64_t stream);
  /// An event of a block or a segment; a freed block's label is forgotten once the free is complete.
  void note(MemoryAction action, std::uint64_t address, Bytes bytes, std::int64_t stream);

  struct Live {
    Bytes bytes{};
    MemoryLabel label{};
  };
  const std::deque<MemoryEntry>& entries() const { return entries_; }
  /// Blocks that are live now, by address.
  const std::unordered_map<std::uint64_t, Live>& live() const { return live_; }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  void keep(const MemoryEntry& entry);

  std::size_t most_;
  std::deque<MemoryEntry> entries_;
  std::unordered_map<std::uint64_t, Live> live_;
  std::vector<std::string> texts_;
  std::unordered_map<std::string, int> numbers_;
  Phase phase_ = Phase::load;
  int step_ = 0;
};

}  // namespace vramfit
