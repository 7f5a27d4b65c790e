// Recognizes that a library was refused memory.
#pragma once

#include <string_view>

namespace vramfit {

/// Whether an error message says that the device or the host refused memory. Only the caching allocator has an
/// exception for this; CUDA (no room for a context), cuBLAS and NCCL say it in words alone.
bool is_out_of_memory(std::string_view message);

}  // namespace vramfit
