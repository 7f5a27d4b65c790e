// Where in one block of memory lies what a rank's program asks for on its device.
#pragma once

#include <cstddef>
#include <vector>

#include "program/arena/packing.h"
#include "program/program.h"

namespace vramfit::arena {

/// Requests in their order, as a run of the program makes them: those of its sections one after the other, each
/// section once, and within a run of `times` equal parts those of one part.
struct Script {
  struct Request {
    Bytes bytes, offset;
  };
  std::vector<Request> requests;
  std::vector<std::size_t> sections;  // the first request of each section
  Bytes granule;                      // multiples that offsets have
  Bytes size;                         // of the block, a multiple of the granule
  Bytes bound;                        // as in Packing
};

/// Multiples that offsets have: what CUDA's caching allocator rounds to, and what LibTorch aligns CPU memory to.
inline constexpr Bytes kDeviceGranule{512}, kCpuGranule{64};

/// Offsets hold in every step and every micro-batch: what outlives one of them lies where it lay before.
/// Memory is reused in the order of the compute stream, so a buffer of another stream's pool throws NotModelled.
Script script_of(const program::Program& program, Bytes granule, std::int64_t effort = kEffort);

/// Script::bound, without packing.
Bytes most_alive(const program::Program& program, Bytes granule);

/// What script_of packs: a lifetime for each block, times in events.
std::vector<Lifetime> lifetimes_of(const program::Program& program);

}  // namespace vramfit::arena
