#include <cuda.h>
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>

#include "phantom/core/contents.h"
#include "tests/phantom/driver_fixture.h"

using vramfit::phantom_test::Driver;

namespace {

std::uint64_t attribute(CUmemoryPool pool, CUmemPool_attribute which) {
  std::uint64_t value = 0;
  REQUIRE(cuMemPoolGetAttribute(pool, which, &value) == CUDA_SUCCESS);
  return value;
}

}  // namespace

TEST_CASE_FIXTURE(Driver, "a pool counts what it gave out, and its peak until it is reset") {
  CUmemoryPool pool = nullptr;
  REQUIRE(cuDeviceGetDefaultMemPool(&pool, 0) == CUDA_SUCCESS);
  CUdeviceptr first = 0, second = 0;
  REQUIRE(cuMemAllocAsync(&first, 4 << 20, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemAllocAsync(&second, 2 << 20, nullptr) == CUDA_SUCCESS);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 6 << 20);
  REQUIRE(cuMemFreeAsync(first, nullptr) == CUDA_SUCCESS);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 2 << 20);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 6 << 20);
  std::uint64_t zero = 0;
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &zero) == CUDA_SUCCESS);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 2 << 20);
  REQUIRE(cuMemFreeAsync(second, nullptr) == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(Driver, "a pool's memory outlives it, and the default pool can't be destroyed") {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
  CUmemoryPool pool = nullptr, normal = nullptr;
  REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  CUdeviceptr block = 0;
  REQUIRE(cuMemAllocFromPoolAsync(&block, 4096, pool, nullptr) == CUDA_SUCCESS);
  int card = 0;
  REQUIRE(cuPointerGetAttribute(&card, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block) == CUDA_SUCCESS);
  CHECK(card == 1);
  REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(block, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuDeviceGetDefaultMemPool(&normal, 0) == CUDA_SUCCESS);
  CHECK(cuMemPoolDestroy(normal) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemPoolDestroy(pool) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE_FIXTURE(Driver,
                  "another process opens shared memory as a range of its own, of unknown contents; the owner can't") {
  const CUdeviceptr block = allocate(4 << 20);
  REQUIRE(cuMemsetD8(block, 1, 4096) == CUDA_SUCCESS);
  CUipcMemHandle handle{};
  REQUIRE(cuIpcGetMemHandle(&handle, block + 100) == CUDA_SUCCESS);
  CUdeviceptr opened = 0;
  CHECK(cuIpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_ERROR_INVALID_CONTEXT);
  const pid_t child = fork();
  if (child == 0) {
    std::size_t bytes = 0;
    CUdeviceptr base = 0;
    const bool right = cuIpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_SUCCESS &&
                       cuMemGetAddressRange(&base, &bytes, opened + 50) == CUDA_SUCCESS && base == opened &&
                       bytes == 4 << 20 && !vramfit::phantom::is_certain(reinterpret_cast<void*>(opened), 1) &&
                       cuIpcCloseMemHandle(opened) == CUDA_SUCCESS &&
                       cuIpcCloseMemHandle(opened) == CUDA_ERROR_INVALID_VALUE;
    _exit(right ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CUipcMemHandle garbage{};
  CHECK(cuIpcOpenMemHandle(&opened, garbage, 0) == CUDA_ERROR_INVALID_VALUE);
  int local = 0;
  CHECK(cuIpcGetMemHandle(&handle, reinterpret_cast<CUdeviceptr>(&local)) == CUDA_ERROR_INVALID_VALUE);
  cuMemFree(block);
}

TEST_CASE_FIXTURE(Driver, "a kernel that gets a tensor map may write to its tensor") {
  const CUdeviceptr block = allocate(4096);
  CUtensorMap map{};
  const cuuint64_t sizes[] = {64, 16}, strides[] = {256};
  const cuuint32_t box[] = {8, 8}, steps[] = {1, 1};
  REQUIRE(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, reinterpret_cast<void*>(block), sizes,
                                 strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                 CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  const char* const text = ".version 8.0\n.target sm_90\n.visible .entry f(.param .align 64 .b8 map[128]) { ret; }\n";
  REQUIRE(cuModuleLoadData(&module, text) == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&function, module, "f") == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8(block, 1, 4096) == CUDA_SUCCESS);
  void* arguments[] = {&map};
  REQUIRE(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments, nullptr) == CUDA_SUCCESS);
  CHECK_FALSE(vramfit::phantom::is_certain(reinterpret_cast<void*>(block), 1));
  cuModuleUnload(module);
  cuMemFree(block);
}
