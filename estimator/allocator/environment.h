// PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF beside --allocator.
#pragma once

#include <string_view>

namespace vramfit {

/// Whether a variable of value `variable` asks for the allocator that `--allocator` names, however either is written;
/// an empty one asks for nothing else. Keys that change no memory of the card make no difference. False when the value
/// can't be read.
bool asks_for_allocator(std::string_view variable, std::string_view allocator);

}  // namespace vramfit
