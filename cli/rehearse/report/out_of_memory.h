// Who ran out of GPU memory in a rehearsal, and whether the program survived it.
#pragma once

#include <string>

#include "cli/rehearse/rehearsal.h"

namespace vramfit {

/// How a process took a request that the card refused. Requests that succeeded once the allocator had given back its
/// cache are not among them.
enum class OutOfMemory {
  none,
  caught,   // it went on: a step came to its end afterwards, or another error ended it
  stopped,  // nothing says that it went on, and nothing says why it ended
  raised,   // an out-of-memory error ended it
};
OutOfMemory out_of_memory_of(const ProcessRecord& process);

/// Whether any process is at least `least`.
bool any_out_of_memory(const Rehearsal& rehearsal, OutOfMemory least);

/// "rank 3 asked for 2.00 GiB in backward, step 1, with 0.50 GiB free of 80.00 GiB".
std::string why_out_of_memory(const Rehearsal& rehearsal);

/// "rank 0 ran out of memory 2 times and went on; the model's first input was 64 x 512 when it last ran out, 16 x 512
/// in the last step that succeeded": the batch that fits, as accelerate's find_executable_batch_size looks for it.
std::string how_it_went_on(const RehearsedRank& rank);

}  // namespace vramfit
