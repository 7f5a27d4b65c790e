// What the processes of a rehearsal left in the session folder: the phantom's own records, and torch's statistics.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/text/units.h"

namespace vramfit {

/// Peaks of torch's allocator in one phase.
struct TorchPhase {
  std::string phase, step;  // "backward", "first" or "steady"
  Bytes requested, allocated, reserved;
};

struct TorchDevice {
  int device = 0;
  Bytes requested, allocated, reserved;  // peaks
  std::int64_t retries = 0, out_of_memory = 0;
  std::vector<TorchPhase> phases;  // in the order in which they began
};

/// One moment at which torch ran out of memory.
struct TorchOutOfMemory {
  int device = 0;
  std::string phase;
  std::int64_t step = 0;
  Bytes asked, free, allocated, reserved;
  std::vector<std::int64_t> inputs;                 // sizes of the first tensor given to the model; may be empty
  std::vector<std::pair<std::string, Bytes>> live;  // by kind, largest first
  std::vector<std::pair<Bytes, std::int64_t>> block_sizes;  // block size and how many, most bytes first
};

/// python.PID.record.
struct TorchRecord {
  std::string ended;  // "running" if it never reached its end, "exit", "os._exit"
  std::string version, exception;
  std::int64_t steps = 0;
  std::int64_t steps_since_out_of_memory = 0;  // steps that came to their end after memory last ran out
  std::vector<std::int64_t> inputs;            // of the last of these steps, as TorchOutOfMemory's
  Bytes pinned;                                // peak of pinned host memory
  std::vector<TorchDevice> devices;
  std::vector<TorchOutOfMemory> out_of_memory;
  std::vector<std::string> notes;
};

/// A card as the driver saw it, from one process.
struct DriverCard {
  int card = 0;                // as the process numbers them
  Bytes peak_used;             // with context and communicators
  Bytes outside;               // the part of it that belongs to no block
  Bytes managed;               // peak of paged memory, which lies on the host or on the card
  Bytes requested, allocated;  // peaks of torch's allocator, seen after each operator; 0 where values are not computed
  std::int64_t allocations = 0, out_of_memory = 0;
  bool last_refused = false;                      // nothing was allocated since memory ran out
  std::vector<std::pair<Bytes, Bytes>> failures;  // asked, free
};

/// Reads that gave the program what no card would have held.
struct CountedReads {
  std::int64_t count = 0;
  Bytes bytes;
  std::vector<std::string> places;  // each once
};

/// Reads, at one place, of values that rest on assumptions.
struct AssumedRead {
  std::string what;              // "item at train.py:12"
  bool steers = false;           // a size, an index or a branch follows from it
  std::int64_t assumptions = 0;  // bits: assumptions.h; -1: not even an assumption was there
  std::int64_t count = 0;
  Bytes bytes;
};

/// Memory that a library asked for to work in, and that counts as 0, because only the real one knows how much.
struct UnknownWorkspace {
  std::string what;  // "cuDNN convolution"
  std::int64_t count = 0;
  Bytes most;             // of the largest, or of all if each is kept
  bool has_bound = true;  // otherwise some were not even bounded
  bool is_kept = false;   // until the library's plan goes; others are given back after the call
};

/// process.PID.record (base/process/process_record.h).
struct ProcessRecord {
  std::int64_t process = 0;
  std::optional<std::int64_t> rank;  // $RANK
  std::vector<std::string> command;
  bool ended = false;
  std::vector<DriverCard> cards;
  CountedReads uncertain;  // of what a kernel would have written
  CountedReads invented;   // of what a collective with ghosts gave
  std::vector<AssumedRead> assumed;
  std::int64_t ghost_answers = 0;
  std::vector<std::string> ghost_places, escapes;
  std::vector<std::pair<std::string, std::int64_t>> unsupported;  // function, calls
  std::vector<UnknownWorkspace> workspaces;
  std::optional<TorchRecord> torch;
};

/// All of the folder, by rank and process. What can't be read is named in `notes`.
std::vector<ProcessRecord> read_records(const std::string& folder, std::vector<std::string>& notes);

}  // namespace vramfit
