// Kernels that a program registered or loaded. What a cubin says of them is read when it is first asked.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "phantom/core/status.h"
#include "phantom/core/visibility.h"

namespace vramfit::phantom {

/// What a cubin says of a kernel. `parameters_known` is false when none could be read.
struct KernelFacts {
  struct Parameter {
    std::uint32_t offset = 0, bytes = 0;
  };
  bool parameters_known = false;
  std::vector<Parameter> parameters;  // in order
  int registers = 32;                 // a thread
  std::int64_t static_shared_bytes = 0, local_bytes = 0, constant_bytes = 0;
  int max_threads_per_block = 1024;
  int capability = 0;  // what the code was compiled for: 86 on a card of 8.9; 0 if it is not known
};

struct Module;

/// What CUfunction, CUkernel and cudaKernel_t point to.
struct Kernel {
  std::string_view name;     // mangled; kept by the program or by the module
  Module* module = nullptr;  // where its image is
  KernelFacts facts;         // ask facts_of
  Status found = Status::success;
  std::atomic<bool> facts_read{false};
  std::atomic<std::int64_t> max_dynamic_shared_bytes{48 << 10};
};

/// `image` is the wrapper that nvcc makes (__fatBinC_Wrapper_t); the result is a Module.
PHANTOM_CORE void* register_fat_binary(const void* image);
/// Names are kept, not copied.
PHANTOM_CORE void register_kernel(void* fat_binary, const void* host_function, const char* device_name);
PHANTOM_CORE void register_variable(void* fat_binary, const void* host_variable, const char* device_name,
                                    std::int64_t bytes);
/// Of a registered function, or a kernel's own handle. Null for anything else.
PHANTOM_CORE Kernel* kernel_of(const void* host_function);
/// Device memory of a registered variable on a card, made at the first call; null if there is none.
PHANTOM_CORE void* variable_address(const void* host_variable, int card, std::int64_t* bytes);

/// Reads the kernel's image at the first call. Fails with no_binary_for_gpu when there is none that the card runs, with
/// not_found when it lacks the kernel; the facts are then those of a kernel of which nothing is known.
PHANTOM_CORE Status read_facts(Kernel& kernel);
PHANTOM_CORE const KernelFacts& facts_of(Kernel& kernel);

/// Books a launch: the pointers among its arguments are touched. `arguments` as cudaLaunchKernel takes them; null if
/// unknown. Fails as read_facts, but a kernel of which only that is unknown is launched.
PHANTOM_CORE Status launched(Kernel* kernel, void** arguments);
/// The same with the arguments in one buffer.
PHANTOM_CORE Status launched_packed(Kernel* kernel, const void* buffer, std::size_t bytes);
/// Whether a launch of this size is one that a card accepts.
PHANTOM_CORE Status check_launch(Kernel& kernel, std::int64_t block_threads, std::int64_t dynamic_shared_bytes);
/// The pointers that a launch would touch; false if they can't be known.
PHANTOM_CORE bool pointers_of(Kernel& kernel, void** arguments, std::vector<const void*>& pointers);

/// Blocks of this size that fit on a multiprocessor at once.
PHANTOM_CORE int occupancy(const KernelFacts& facts, int block_threads, std::int64_t dynamic_shared_bytes);
/// The block size with the highest occupancy, the largest of equals. `limit` 0: none.
PHANTOM_CORE int best_block_size(const KernelFacts& facts, std::int64_t (*dynamic_shared_bytes)(int, const void*),
                                 const void* context, int limit);

}  // namespace vramfit::phantom
