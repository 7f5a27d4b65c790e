// Compares PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF with --allocator.
#pragma once

#include <string_view>

namespace vramfit {

/// Whether a variable with the value `variable` asks for the same allocator as `--allocator`, however each is written.
/// True if the variable is empty. Keys that don't affect GPU memory are ignored. False if the value can't be parsed.
bool asks_for_allocator(std::string_view variable, std::string_view allocator);

}  // namespace vramfit
