// What an out-of-memory message says, in the wordings of PyTorch 2.0 to 2.15.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/text/units.h"

namespace vramfit {

/// Who refused the memory.
enum class RefusedBy : std::uint8_t {
  caching_allocator,  // PyTorch's own: the message has figures
  async_allocator,    // backend:cudaMallocAsync
  memory_fraction,    // PyTorch, before it asked the card: torch.cuda.set_per_process_memory_fraction
  library,            // CUDA, cuBLAS, cuDNN or NCCL, past PyTorch's allocator: no figures
};

struct ProcessUse {
  std::int64_t process = 0;  // 0: the one that ran out, which PyTorch doesn't number
  Bytes bytes;
};

/// Figures that the message lacks are none. Those of PyTorch are rounded to hundredths of their unit.
struct MemoryMessage {
  RefusedBy by = RefusedBy::caching_allocator;
  std::optional<int> gpu;
  std::optional<Bytes> asked, total, free, allowed;
  std::optional<Bytes> allocated, reserved;  // by PyTorch, in this process
  std::optional<Bytes> private_pools;        // of `allocated`: CUDA graphs
  bool is_of_old_torch = false;              // before 2.1, which has no expandable segments
  bool expandable = false;                   // it says that expandable segments are on; 2.15 does
  std::vector<ProcessUse> processes;         // on the card; at most 64
  std::string text;                          // as it stood in the file, cut
};

/// Whether a message begins in `line`, and where; npos without one.
std::size_t find_memory_message(std::string_view line);

/// Whether `text`, which begins with a message, has all of it: terminals and libraries break long lines.
bool is_whole_message(std::string_view text);

/// `text` begins with a message. Numbers that can't be are none.
MemoryMessage read_memory_message(std::string_view text);

/// "2.00 GiB", "20.00 MiB", "512 bytes" at the beginning of `text`; none otherwise, also for more than 1 EiB.
std::optional<Bytes> size_at(std::string_view text);

}  // namespace vramfit
