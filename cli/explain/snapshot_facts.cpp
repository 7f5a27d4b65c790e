#include "cli/explain/snapshot_facts.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

namespace vramfit {
namespace {

/// A block that lives or lived: from after event `born` until after event `dies`, counted from 1; 0: before the first.
struct Life {
  Bytes requested;
  std::int32_t stack = kNoStack;
  std::size_t born = 0, dies = 0;
};

struct Sum {
  Bytes bytes, largest;
  std::int64_t blocks = 0;

  void add(const Sum& other) {
    bytes += other.bytes;
    largest = std::max(largest, other.largest);
    blocks += other.blocks;
  }
};

/// Adds up blocks by stack; stacks that end in the same line become one at the end.
class Holders {
 public:
  explicit Holders(const Snapshot& snapshot) : snapshot_(snapshot) {}

  void add(Bytes bytes, std::int32_t stack) { sums_[stack].add({.bytes = bytes, .largest = bytes, .blocks = 1}); }

  HeldMemory take() const {
    HeldMemory held;
    std::map<Key, Sum> lines;
    std::map<std::string, Bytes> phases;
    for (const auto& [stack, sum] : sums_) {
      const Key key = key_of(stack);
      lines[key].add(sum);
      const auto& [place, own, phase, why_unknown] = key;
      phases[!phase.empty() ? phase : !why_unknown.empty() ? why_unknown : "elsewhere"] += sum.bytes;
      held.bytes += sum.bytes;
    }
    for (const auto& [key, sum] : lines) {
      const auto& [place, own, phase, why_unknown] = key;
      held.lines.push_back({place, own, phase, why_unknown, sum.bytes, sum.blocks, sum.largest});
    }
    for (const auto& [phase, bytes] : phases) held.phases.push_back({phase, bytes});
    std::ranges::stable_sort(held.lines, std::greater{}, &HeldByLine::bytes);
    std::ranges::stable_sort(held.phases, std::greater{}, &HeldByPhase::bytes);
    return held;
  }

 private:
  using Key = std::tuple<std::optional<CodePlace>, std::optional<CodePlace>, std::string, std::string>;

  Key key_of(std::int32_t number) const {
    if (number == kNoStack) {
      return {std::nullopt, std::nullopt, "", snapshot_.stacks.empty() ? "no frames recorded" : "before the recording"};
    }
    const SnapshotStack& stack = snapshot_.stacks[static_cast<std::size_t>(number)];
    const CodeSite& site = stack.site;
    if (!stack.has_python) return {std::nullopt, std::nullopt, phase_text(site), "threads without Python"};
    return {site.place, site.own == site.place ? std::nullopt : site.own, phase_text(site), ""};
  }

  const Snapshot& snapshot_;
  std::unordered_map<std::int32_t, Sum> sums_;
};

/// All blocks that lived at some moment between the first event and the snapshot.
class Lives {
 public:
  explicit Lives(const SnapshotDevice& device) : end_(device.events.size() + 1) {
    for (std::size_t i = 0; i < device.events.size(); ++i) take(device.events[i], i + 1);
    for (const SnapshotSegment& segment : device.segments) {
      for (const SnapshotBlock& block : segment.blocks) {
        if (block.state == BlockState::allocated) add_at_end(block);
      }
    }
    unmatched_ += static_cast<std::int64_t>(open_.size());  // born in the recording, gone in the snapshot
  }

  const std::vector<Life>& all() const { return lives_; }
  std::int64_t unmatched() const { return unmatched_; }

 private:
  void take(const TraceEvent& event, std::size_t position) {
    if (event.action == TraceAction::allocate) {
      const auto [entry, is_new] = open_.try_emplace(event.address, lives_.size());
      if (!is_new) {
        ++unmatched_;  // the free in between is missing
        lives_[entry->second].dies = position;
        entry->second = lives_.size();
      }
      lives_.push_back({.requested = event.size, .stack = event.stack, .born = position, .dies = end_});
    } else if (event.action == TraceAction::free_requested) {
      const auto open = open_.find(event.address);
      if (open == open_.end()) {
        lives_.push_back({.requested = event.size, .stack = kNoStack, .born = 0, .dies = position});
        return;
      }
      lives_[open->second].dies = position;
      open_.erase(open);
    }
  }

  void add_at_end(const SnapshotBlock& block) {
    if (open_.erase(block.address) > 0) return;
    lives_.push_back({.requested = block.requested, .stack = block.stack, .born = 0, .dies = end_});
  }

  std::size_t end_;
  std::vector<Life> lives_;
  std::unordered_map<std::uint64_t, std::size_t> open_;  // by address
  std::int64_t unmatched_ = 0;
};

/// The most that was reserved, found backwards from what is.
Bytes most_reserved(const SnapshotDevice& device, Bytes at_end) {
  Bytes now = at_end, most = at_end;
  for (std::size_t i = device.events.size(); i-- > 0;) {
    const TraceEvent& event = device.events[i];
    if (event.action == TraceAction::segment_grows) now -= event.size;
    if (event.action == TraceAction::segment_shrinks) now += event.size;
    most = std::max(most, now);
  }
  return most;
}

SnapshotPeak peak_of(const Snapshot& snapshot, const SnapshotDevice& device, const Lives& lives, Bytes reserved) {
  std::vector<Bytes> change(device.events.size() + 2);
  for (const Life& life : lives.all()) {
    change[life.born] += life.requested;
    change[life.dies] -= life.requested;
  }
  SnapshotPeak peak{
      .event = 0, .events = device.events.size(), .reserved = most_reserved(device, reserved), .held = {}};
  Bytes now, most;
  for (std::size_t i = 0; i + 1 < change.size(); ++i) {
    now += change[i];
    if (now > most) {
      most = now;
      peak.event = i;
    }
  }
  Holders holders(snapshot);
  for (const Life& life : lives.all()) {
    if (life.born <= peak.event && peak.event < life.dies) holders.add(life.requested, life.stack);
  }
  peak.held = holders.take();
  return peak;
}

void add_segment(SnapshotFacts& facts, const SnapshotSegment& segment, Holders& holders) {
  ++facts.segments;
  facts.reserved += segment.size;
  facts.expandable = facts.expandable || segment.is_expandable;
  if (segment.is_private) facts.private_pools += segment.size;
  Bytes inactive;
  bool is_used = false;
  for (const SnapshotBlock& block : segment.blocks) {
    if (block.state == BlockState::inactive) {
      inactive += block.size;
      facts.largest_free = std::max(facts.largest_free, block.size);
      continue;
    }
    is_used = true;
    if (block.state == BlockState::awaiting_free) {
      facts.awaiting_free += block.size;
      continue;
    }
    ++facts.blocks;
    facts.allocated += block.size;
    holders.add(block.requested, block.stack);
  }
  facts.unallocated += inactive;
  if (is_used && !segment.is_expandable) facts.stuck += inactive;
}

}  // namespace

SnapshotFacts facts_of(const Snapshot& snapshot, const SnapshotDevice& device) {
  SnapshotFacts facts;
  facts.device = device.device;
  Holders holders(snapshot);
  for (const SnapshotSegment& segment : device.segments) add_segment(facts, segment, holders);
  facts.held = holders.take();
  for (const TraceEvent& event : device.events) {
    if (event.action == TraceAction::oom) facts.oom = {.asked = event.size, .free = event.free, .stack = event.stack};
  }
  if (device.events.empty()) return facts;
  const Lives lives(device);
  facts.unmatched = lives.unmatched();
  facts.peak = peak_of(snapshot, device, lives, facts.reserved);
  return facts;
}

}  // namespace vramfit
