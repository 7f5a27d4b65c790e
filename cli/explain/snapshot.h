// A memory snapshot of PyTorch (torch.cuda.memory._dump_snapshot): its segments and blocks, and the allocations and
// frees that it recorded.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/pickle/pickle_reader.h"
#include "base/text/units.h"
#include "cli/explain/code_site.h"

namespace vramfit {

enum class BlockState : std::uint8_t { allocated, awaiting_free, inactive };

inline constexpr std::int32_t kNoStack = -1;  // none was recorded

struct SnapshotBlock {
  std::uint64_t address = 0;
  Bytes size, requested;  // requested: 0 of inactive ones
  BlockState state = BlockState::inactive;
  std::int32_t stack = kNoStack;  // index in Snapshot::stacks
};

struct SnapshotSegment {
  int device = 0;
  Bytes size;
  bool is_private = false;  // of a pool of its own: CUDA graphs, torch.cuda.MemPool
  bool is_expandable = false;
  std::vector<SnapshotBlock> blocks;
};

enum class TraceAction : std::uint8_t { allocate, free_requested, free_completed, segment_grows, segment_shrinks, oom };

struct TraceEvent {
  TraceAction action{};
  std::uint64_t address = 0;
  Bytes size;  // as requested; of an `oom`, what was asked for
  Bytes free;  // of an `oom`, what the card had left
  std::int32_t stack = kNoStack;
};

/// Who asked, from the frames of one stack.
struct SnapshotStack {
  CodeSite site;
  bool has_python = false;  // backward's own threads have no frames of Python
};

struct SnapshotDevice {
  int device = 0;
  std::vector<SnapshotSegment> segments;
  std::vector<TraceEvent> events;  // in order
};

struct Snapshot {
  std::vector<SnapshotDevice> devices;  // that have segments or events, by number
  std::vector<SnapshotStack> stacks;
  std::vector<std::pair<std::string, std::string>> settings;  // of the allocator, as PyTorch names them
};

/// Whether the file begins as a pickle does. Throws InputError if it can't be read.
bool is_pickle(const std::string& path);

/// Reads a snapshot of at most 1 GiB; nothing is unpickled (base/pickle/pickle_reader.h). Throws InputError that says
/// where (segments[3].blocks[0].size) something else was expected.
Snapshot read_snapshot(const std::string& path);

}  // namespace vramfit
