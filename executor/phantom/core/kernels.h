// Kernels that a program registered or loaded, found by the host pointer that stands for them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "executor/phantom/core/visibility.h"

namespace vramfit::phantom {

/// What a cubin says of a kernel. `parameters_known` is false when none could be read.
struct KernelFacts {
  struct Parameter {
    std::uint32_t offset = 0, bytes = 0;
  };
  bool parameters_known = false;
  std::vector<Parameter> parameters;  // in order
  int registers = 32;
  std::int64_t static_shared_bytes = 0, local_bytes = 0, constant_bytes = 0;
  int max_threads_per_block = 1024;
};

struct Kernel {
  std::string name;            // mangled
  void* fat_binary = nullptr;  // handle that register_fat_binary gave; null for loaded modules
  KernelFacts facts;
  bool facts_read = false;
  std::int64_t max_dynamic_shared_bytes = 48 << 10;
};

/// `image` is the wrapper that nvcc makes (__fatBinC_Wrapper_t).
PHANTOM_CORE void* register_fat_binary(const void* image);
PHANTOM_CORE void register_kernel(void* fat_binary, const void* host_function, const char* device_name);
PHANTOM_CORE void register_variable(void* fat_binary, const void* host_variable, const char* device_name,
                                    std::int64_t bytes);
/// Null for a function that nobody registered.
PHANTOM_CORE Kernel* kernel_of(const void* host_function);
/// Device memory of a registered variable on a card, made at the first call; null if there is none.
PHANTOM_CORE void* variable_address(const void* host_variable, int card, std::int64_t* bytes);

/// Books a launch: the pointers among its arguments are touched. `arguments` as cudaLaunchKernel takes them; null if
/// unknown.
PHANTOM_CORE void launched(Kernel* kernel, void** arguments);

/// Blocks of this size that fit on a multiprocessor at once.
PHANTOM_CORE int occupancy(const KernelFacts& facts, int block_threads, std::int64_t dynamic_shared_bytes);

}  // namespace vramfit::phantom
