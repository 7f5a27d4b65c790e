// Launches, and what the driver says of a kernel.
#include <cstdint>

#include "phantom/core/architecture.h"
#include "phantom/core/graph.h"
#include "phantom/core/kernels.h"
#include "phantom/core/session.h"
#include "phantom/cuda/driver.h"

namespace phantom = vramfit::phantom;
using phantom::Kernel;
using phantom::result;
using phantom::Status;

namespace {

struct Shape {
  unsigned int grid_x = 0, grid_y = 0, grid_z = 0, block_x = 0, block_y = 0, block_z = 0, shared_bytes = 0;
};

// `extra` holds pairs: what, then a pointer.
CUresult launch_packed(Kernel* kernel, void** extra) {
  const void* buffer = nullptr;
  std::size_t bytes = 0;
  for (void** at = extra; *at != CU_LAUNCH_PARAM_END; at += 2) {
    if (*at == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = at[1];
    if (*at == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *static_cast<const std::size_t*>(at[1]);
  }
  return result(phantom::launched_packed(kernel, buffer, buffer == nullptr ? 0 : bytes));
}

CUresult launch(CUfunction function, const Shape& shape, CUstream stream, void** arguments, void** extra) {
  const phantom::Stream* const on = phantom::stream_behind(stream);
  Kernel* const kernel = phantom::kernel_of(function);
  if (on == nullptr || kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (phantom::current_context() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const std::int64_t threads = std::int64_t{shape.block_x} * shape.block_y * shape.block_z;
  if (shape.grid_x == 0 || shape.grid_y == 0 || shape.grid_z == 0 ||
      phantom::check_launch(*kernel, threads, shape.shared_bytes) != Status::success) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  phantom::submit_kernel(on);
  if (arguments == nullptr && extra != nullptr) return launch_packed(kernel, extra);
  return result(phantom::launched(kernel, arguments));
}

CUresult attribute_of(int* value, CUfunction_attribute attribute, Kernel* kernel) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const phantom::KernelFacts& facts = phantom::facts_of(*kernel);
  const phantom::CardFacts& card = phantom::session().card;
  switch (static_cast<int>(attribute)) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = facts.max_threads_per_block;
      break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES:
      *value = static_cast<int>(facts.static_shared_bytes);
      break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
      *value = static_cast<int>(facts.constant_bytes);
      break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
      *value = static_cast<int>(facts.local_bytes);
      break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = facts.registers;
      break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = facts.capability != 0 ? facts.capability : 10 * card.major + card.minor;
      break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = static_cast<int>(kernel->max_dynamic_shared_bytes);
      break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      *value = -1;  // the driver's choice
      break;
    default:
      *value = 0;  // no cluster is demanded
  }
  return attribute < CU_FUNC_ATTRIBUTE_MAX ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult set_attribute(CUfunction_attribute attribute, int value, Kernel* kernel) {
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
  const phantom::CardFacts& card = phantom::session().card;
  const std::int64_t most = phantom::architecture_of(card.major, card.minor).shared_memory_per_block_optin -
                            phantom::facts_of(*kernel).static_shared_bytes;
  if (value < 0 || value > most) return CUDA_ERROR_INVALID_VALUE;
  kernel->max_dynamic_shared_bytes = value;
  return CUDA_SUCCESS;
}

std::int64_t asked_shared_bytes(int block_threads, const void* callback) {
  const auto of = reinterpret_cast<CUoccupancyB2DSize>(const_cast<void*>(callback));  // NOLINT(*-const-cast)
  return static_cast<std::int64_t>(of(block_threads));
}

std::int64_t fixed_shared_bytes(int /*block_threads*/, const void* bytes) {
  return *static_cast<const std::int64_t*>(bytes);
}

}  // namespace

PHANTOM_EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                       unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                       unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                       void** arguments, void** extra) {
  return launch(function, {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes}, stream, arguments, extra);
}

PHANTOM_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction function, void** arguments, void** extra) {
  if (c == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return launch(function,
                {c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ, c->sharedMemBytes},
                c->hStream, arguments, extra);
}

PHANTOM_EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                                  unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                                  unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                                  void** arguments) {
  return launch(function, {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes}, stream, arguments,
                nullptr);
}

PHANTOM_EXPORT CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  return attribute_of(value, attribute, phantom::kernel_of(function));
}
PHANTOM_EXPORT CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel,
                                             CUdevice /*device*/) {
  return attribute_of(value, attribute, phantom::kernel_of(kernel));
}
PHANTOM_EXPORT CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  return set_attribute(attribute, value, phantom::kernel_of(function));
}
PHANTOM_EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                             CUdevice /*device*/) {
  return set_attribute(attribute, value, phantom::kernel_of(kernel));
}
PHANTOM_EXPORT CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache /*configuration*/) {
  return phantom::kernel_of(function) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}
PHANTOM_EXPORT CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache /*configuration*/, CUdevice /*device*/) {
  return phantom::kernel_of(kernel) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}
PHANTOM_EXPORT CUresult cuFuncLoad(CUfunction function) {
  return phantom::kernel_of(function) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}
PHANTOM_EXPORT CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction function) {
  if (state == nullptr || phantom::kernel_of(function) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *state = CU_FUNCTION_LOADING_STATE_LOADED;
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* bytes) {
  Kernel* const kernel = phantom::kernel_of(function);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const phantom::KernelFacts& facts = phantom::facts_of(*kernel);
  if (!facts.parameters_known || index >= facts.parameters.size()) return CUDA_ERROR_INVALID_VALUE;
  if (offset != nullptr) *offset = facts.parameters[index].offset;
  if (bytes != nullptr) *bytes = facts.parameters[index].bytes;
  return CUDA_SUCCESS;
}
PHANTOM_EXPORT CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* bytes) {
  return cuFuncGetParamInfo(reinterpret_cast<CUfunction>(kernel), index, offset, bytes);
}

PHANTOM_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction function,
                                                                             int threads, size_t shared_bytes,
                                                                             unsigned int /*flags*/) {
  Kernel* const kernel = phantom::kernel_of(function);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (blocks == nullptr || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  *blocks = phantom::occupancy(phantom::facts_of(*kernel), threads, phantom::bytes_of(shared_bytes));
  return CUDA_SUCCESS;
}
PHANTOM_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads,
                                                                    size_t shared_bytes) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared_bytes, 0);
}

PHANTOM_EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* least_grid, int* block, CUfunction function,
                                                                  CUoccupancyB2DSize shared_of, size_t shared_bytes,
                                                                  int limit, unsigned int /*flags*/) {
  Kernel* const kernel = phantom::kernel_of(function);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (least_grid == nullptr || block == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const phantom::KernelFacts& facts = phantom::facts_of(*kernel);
  const std::int64_t fixed = phantom::bytes_of(shared_bytes);
  const bool asks = shared_of != nullptr;
  const auto bytes_for = asks ? asked_shared_bytes : fixed_shared_bytes;
  const void* const context = asks ? reinterpret_cast<const void*>(shared_of) : &fixed;
  *block = phantom::best_block_size(facts, bytes_for, context, limit);
  *least_grid = *block == 0
                    ? 0
                    : phantom::session().card.sm_count * phantom::occupancy(facts, *block, bytes_for(*block, context));
  return CUDA_SUCCESS;
}
PHANTOM_EXPORT CUresult cuOccupancyMaxPotentialBlockSize(int* least_grid, int* block, CUfunction function,
                                                         CUoccupancyB2DSize shared_of, size_t shared_bytes, int limit) {
  return cuOccupancyMaxPotentialBlockSizeWithFlags(least_grid, block, function, shared_of, shared_bytes, limit, 0);
}

// Clusters are placed within groups of multiprocessors whose size no public table gives; this is the bound over the
// whole card.
PHANTOM_EXPORT CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction function, const CUlaunchConfig* c) {
  Kernel* const kernel = phantom::kernel_of(function);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (clusters == nullptr || c == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::int64_t blocks = 1;
  for (unsigned int i = 0; i < c->numAttrs; ++i) {
    if (c->attrs[i].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
    const auto& size = c->attrs[i].value.clusterDim;
    blocks = std::int64_t{size.x} * size.y * size.z;
  }
  const int threads = static_cast<int>(c->blockDimX * c->blockDimY * c->blockDimZ);
  const std::int64_t held = std::int64_t{phantom::session().card.sm_count} *
                            phantom::occupancy(phantom::facts_of(*kernel), threads, c->sharedMemBytes);
  *clusters = static_cast<int>(blocks > 0 ? held / blocks : 0);
  return CUDA_SUCCESS;
}
PHANTOM_EXPORT CUresult cuOccupancyMaxPotentialClusterSize(int* size, CUfunction function, const CUlaunchConfig* c) {
  if (phantom::kernel_of(function) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (size == nullptr || c == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *size = phantom::session().card.major >= 9 ? 8 : 1;  // the portable size of the programming guide
  return CUDA_SUCCESS;
}
PHANTOM_EXPORT CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, CUfunction function, int blocks,
                                                                int /*threads*/) {
  Kernel* const kernel = phantom::kernel_of(function);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (bytes == nullptr || blocks <= 0) return CUDA_ERROR_INVALID_VALUE;
  const phantom::CardFacts& card = phantom::session().card;
  const auto& architecture = phantom::architecture_of(card.major, card.minor);
  const std::int64_t reserved = card.major >= 8 ? phantom::kReservedSharedPerBlock : 0;
  const std::int64_t each =
      architecture.shared_memory_per_sm / blocks - reserved - phantom::facts_of(*kernel).static_shared_bytes;
  const std::int64_t most = architecture.shared_memory_per_block_optin - phantom::facts_of(*kernel).static_shared_bytes;
  *bytes = static_cast<size_t>(std::max<std::int64_t>(0, std::min(each, most)));
  return CUDA_SUCCESS;
}
