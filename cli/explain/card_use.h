// Who had the card's memory when it ran out.
#pragma once

#include <cstdint>
#include <optional>

#include "base/text/units.h"
#include "cli/explain/memory_message.h"
#include "cli/explain/snapshot_facts.h"

namespace vramfit {

/// What isn't known is none. The parts of the card that are known sum to at most `total`.
struct CardUse {
  std::optional<Bytes> asked, total, free;
  std::optional<Bytes> limit;                   // that PyTorch was given (a memory fraction), if it is below `total`
  std::optional<Bytes> allocated, unallocated;  // by PyTorch: in tensors, and reserved beyond them
  std::optional<Bytes> own_outside;             // this process, past PyTorch: context, NCCL, libraries
  std::optional<Bytes> others;                  // other processes
  std::optional<Bytes> rest;                    // outside PyTorch in this or other processes, which nobody tells apart
  std::optional<Bytes> private_pools;
  std::int64_t largest_other = 0;  // the number of the other process that has most; 0: none
  bool own_by_size = false;        // which process is this one follows from sizes: in a container, numbers differ
  bool is_of_old_torch = false;    // which has no expandable segments
  bool expandable = false;         // expandable segments are on, as far as is known

  /// What the card, or the limit, would have let PyTorch still reserve; none if the card's free memory isn't known.
  std::optional<Bytes> available() const;
  /// By how much `asked` exceeds that; 0 if it doesn't.
  std::optional<Bytes> lacking() const;
};

CardUse use_of(const MemoryMessage& message);
CardUse use_of(const SnapshotFacts& facts);

}  // namespace vramfit
