// A random program for the caching allocator: what it is set to, how much memory there is, and what is asked of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vramfit::testing {

inline constexpr int kTraceStreams = 5;

struct Op {
  enum class Kind { malloc, free, record_stream, complete, empty_cache, settings };
  Kind kind = Kind::malloc;
  int block = 0;           // malloc names it, free and record_stream use it
  int stream = 0;          // malloc, record_stream, complete
  std::int64_t bytes = 0;  // malloc; of complete: how many of the stream's events
  std::string text = {};   // settings
};

struct Trace {
  std::string settings;                // as PYTORCH_ALLOC_CONF has it
  double fraction = 1;                 // of the card's total memory
  std::int64_t room = 0;               // bytes free when the trace starts
  std::string replayed_settings = {};  // what the replay is told instead, to see that a difference is found
  bool late = false;                   // events are complete only as `complete` says, else at once
  std::vector<Op> ops;
};

/// The same trace for the same seed. `free_bytes`: what the card has at most.
Trace random_trace(std::uint64_t seed, std::int64_t free_bytes);

/// One line an op, for a person and for a test to be made of.
std::string to_text(const Trace& trace);

}  // namespace vramfit::testing
