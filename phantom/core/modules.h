// Images of device code: fat binaries that programs register, and what they load at run time.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "phantom/core/kernels.h"
#include "phantom/core/status.h"
#include "phantom/core/visibility.h"

namespace vramfit::phantom {

/// A module of a fat binary that is read when somebody asks for one of its kernels. The image stays where it is.
Module* module_of_fat_binary(const void* wrapper);

/// `image`: a cubin, a fat binary, nvcc's wrapper of one, or PTX text that ends with a zero byte. Reads it at once, so
/// the caller may drop it. Fails with invalid_image, invalid_ptx or no_binary_for_gpu.
PHANTOM_CORE Status load_module(const void* image, Module** module);
PHANTOM_CORE Status unload_module(Module* module);
PHANTOM_CORE bool is_module(const Module* module);

PHANTOM_CORE Status module_kernel(Module* module, std::string_view name, Kernel** kernel);
PHANTOM_CORE std::vector<Kernel*> module_kernels(Module* module);
/// Memory of a variable on a card, made at the first call with what the image says is in it.
PHANTOM_CORE Status module_variable(Module* module, std::string_view name, int card, void** address,
                                    std::int64_t* bytes);

/// The facts that the module's image has of a kernel.
Status module_facts(Module* module, std::string_view name, KernelFacts* facts);
/// Variables that a kernel of the module can write: those of which somebody has the address.
void append_written_variables(Module* module, std::vector<const void*>& pointers);
bool is_module_kernel(const void* handle);

}  // namespace vramfit::phantom
