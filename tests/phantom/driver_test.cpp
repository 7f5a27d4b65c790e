#include <cuda.h>
#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "tests/phantom/compiled_kernels.h"
#include "tests/phantom/driver_fixture.h"

using vramfit::phantom_test::compile;
using vramfit::phantom_test::Driver;
using vramfit::phantom_test::sample;

namespace {

constexpr std::size_t kPage = 2 << 20;

CUmemAllocationProp on_card(int card) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = card};
  return properties;
}

std::size_t free_bytes() {
  std::size_t free = 0, total = 0;
  REQUIRE(cuMemGetInfo(&free, &total) == CUDA_SUCCESS);
  return free;
}

void* address_of(const char* name, int version) {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status{};
  REQUIRE(cuGetProcAddress(name, &function, version, CU_GET_PROC_ADDRESS_DEFAULT, &status) == CUDA_SUCCESS);
  return function;
}

}  // namespace

TEST_CASE("a thread has no context until it makes one current") {
  REQUIRE(cuInit(0) == CUDA_SUCCESS);
  CUcontext context = nullptr;
  REQUIRE(cuCtxGetCurrent(&context) == CUDA_SUCCESS);
  CHECK(context == nullptr);
  CUdeviceptr memory = 0;
  CHECK(cuMemAlloc(&memory, 1) == CUDA_ERROR_INVALID_CONTEXT);
  unsigned int flags = 0;
  int active = 1;
  REQUIRE(cuDevicePrimaryCtxGetState(1, &flags, &active) == CUDA_SUCCESS);
  CHECK(active == 0);
}

TEST_CASE_FIXTURE(Driver, "the cards are those of the session") {
  int count = 0, major = 0;
  REQUIRE(cuDeviceGetCount(&count) == CUDA_SUCCESS);
  CHECK(count == 2);
  REQUIRE(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 1) == CUDA_SUCCESS);
  CHECK(major == 9);
  std::array<char, 64> name{};
  REQUIRE(cuDeviceGetName(name.data(), static_cast<int>(name.size()), 0) == CUDA_SUCCESS);
  CHECK(std::string(name.data()).find("H100") != std::string::npos);
  CUuuid first{}, second{};
  REQUIRE(cuDeviceGetUuid(&first, 0) == CUDA_SUCCESS);
  REQUIRE(cuDeviceGetUuid(&second, 1) == CUDA_SUCCESS);
  CHECK(std::memcmp(&first, &second, sizeof first) != 0);
  CUdevice none = 0;
  CHECK(cuDeviceGet(&none, 2) == CUDA_ERROR_INVALID_DEVICE);
}

TEST_CASE("a function's form is the newest that the caller's CUDA version knows") {
  CHECK(address_of("cuMemAlloc", 3020) == reinterpret_cast<void*>(&cuMemAlloc_v2));
  CHECK(address_of("cuMemAlloc", 13000) == reinterpret_cast<void*>(&cuMemAlloc_v2));
  CHECK(address_of("cuMemAlloc", 2000) != address_of("cuMemAlloc", 3020));
  CHECK(address_of("cuCtxCreate", 11040) != address_of("cuCtxCreate", 12050));
  CHECK(address_of("cuGetProcAddress", 12000) == reinterpret_cast<void*>(&cuGetProcAddress_v2));
  void* function = nullptr;
  CUdriverProcAddressQueryResult status{};
  REQUIRE(cuGetProcAddress("cuMemCreate", &function, 9000, 0, &status) == CUDA_SUCCESS);
  CHECK(status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  CHECK(function == nullptr);
  REQUIRE(cuGetProcAddress("cuNoSuchThing", &function, 13000, 0, &status) == CUDA_SUCCESS);
  CHECK(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  CHECK(cuGetProcAddress("cuNoSuchThing", &function, 13000, 0, nullptr) == CUDA_ERROR_NOT_FOUND);
}

TEST_CASE_FIXTURE(Driver, "memory is taken off the card, and what it has not is refused with the driver's own error") {
  const std::size_t before = free_bytes();
  const CUdeviceptr block = allocate(100 << 20);
  CHECK(before - free_bytes() == 100 << 20);
  CUdeviceptr more = 0;
  const CUresult error = cuMemAlloc(&more, std::size_t{200} << 30);
  CHECK(error == CUDA_ERROR_OUT_OF_MEMORY);
  const char *name = nullptr, *text = nullptr;
  REQUIRE(cuGetErrorName(error, &name) == CUDA_SUCCESS);
  REQUIRE(cuGetErrorString(error, &text) == CUDA_SUCCESS);
  CHECK(std::string(name) == "CUDA_ERROR_OUT_OF_MEMORY");
  CHECK(std::string(text) == "out of memory");
  REQUIRE(cuMemFree(block) == CUDA_SUCCESS);
  CHECK(free_bytes() == before);
}

TEST_CASE_FIXTURE(Driver, "pages come and go apart from their addresses") {
  const CUmemAllocationProp properties = on_card(0);
  std::size_t granularity = 0;
  REQUIRE(cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS);
  CHECK(granularity == kPage);
  const std::size_t before = free_bytes();
  CUdeviceptr range = 0;
  REQUIRE(cuMemAddressReserve(&range, 8 * kPage, 0, 0, 0) == CUDA_SUCCESS);
  CHECK(free_bytes() == before);
  CUmemGenericAllocationHandle pages = 0;
  REQUIRE(cuMemCreate(&pages, 2 * kPage, &properties, 0) == CUDA_SUCCESS);
  CHECK(before - free_bytes() == 2 * kPage);
  REQUIRE(cuMemMap(range + kPage, 2 * kPage, 0, pages, 0) == CUDA_SUCCESS);
  CHECK(cuMemMap(range + 2 * kPage, 2 * kPage, 0, pages, 0) == CUDA_ERROR_INVALID_VALUE);  // overlaps
  CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  REQUIRE(cuMemSetAccess(range + kPage, 2 * kPage, &access, 1) == CUDA_SUCCESS);
  const int sent = 42;
  int received = 0;
  REQUIRE(cuMemcpyHtoD(range + kPage, &sent, sizeof sent) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoH(&received, range + kPage, sizeof received) == CUDA_SUCCESS);
  CHECK(received == sent);
  REQUIRE(cuMemRelease(pages) == CUDA_SUCCESS);
  CHECK(before - free_bytes() == 2 * kPage);  // mapped pages stay
  REQUIRE(cuMemUnmap(range + kPage, 2 * kPage) == CUDA_SUCCESS);
  CHECK(free_bytes() == before);
  REQUIRE(cuMemAddressFree(range, 8 * kPage) == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(Driver, "fabric handles are refused, as on a machine without a fabric") {
  CUmemAllocationProp properties = on_card(0);
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  CUmemGenericAllocationHandle pages = 0;
  CHECK(cuMemCreate(&pages, kPage, &properties, 0) == CUDA_ERROR_NOT_PERMITTED);
}

TEST_CASE_FIXTURE(Driver, "a pointer says whose memory it is") {
  const CUdeviceptr block = allocate(4096);
  CUmemorytype type{};
  CUdeviceptr start = 0;
  int ordinal = -1;
  REQUIRE(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block + 100) == CUDA_SUCCESS);
  CHECK(type == CU_MEMORYTYPE_DEVICE);
  REQUIRE(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, block + 100) == CUDA_SUCCESS);
  CHECK(start == block);
  REQUIRE(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, block) == CUDA_SUCCESS);
  CHECK(ordinal == 0);
  int local = 0;
  CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(&local)) ==
        CUDA_ERROR_INVALID_VALUE);
  cuMemFree(block);
}

TEST_CASE_FIXTURE(Driver, "fills and copies of rows move small data") {
  const CUdeviceptr block = allocate(64);
  REQUIRE(cuMemsetD32(block, 0x01020304, 16) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD2D8(block, 16, 0xFF, 4, 2) == CUDA_SUCCESS);
  std::array<unsigned int, 16> back{};
  REQUIRE(cuMemcpyDtoH(back.data(), block, 64) == CUDA_SUCCESS);
  CHECK(back[0] == 0xFFFFFFFF);
  CHECK(back[1] == 0x01020304);
  CHECK(back[4] == 0xFFFFFFFF);
  CHECK(back[8] == 0x01020304);
  std::array<unsigned int, 2> column{};
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.srcDevice = block;
  rows.srcPitch = 16;
  rows.dstMemoryType = CU_MEMORYTYPE_HOST;
  rows.dstHost = column.data();
  rows.dstPitch = 4;
  rows.WidthInBytes = 4;
  rows.Height = 2;
  REQUIRE(cuMemcpy2D(&rows) == CUDA_SUCCESS);
  CHECK(column[1] == 0xFFFFFFFF);
  cuMemFree(block);
}

TEST_CASE_FIXTURE(Driver, "modules of cubins and PTX have their kernels; others are refused with the reason") {
  CUmodule module = nullptr;
  for (const void* image :
       {static_cast<const void*>(sample().cubin.data()), static_cast<const void*>(sample().ptx.c_str())}) {
    REQUIRE(cuModuleLoadData(&module, image) == CUDA_SUCCESS);
    unsigned int count = 0;
    REQUIRE(cuModuleGetFunctionCount(&count, module) == CUDA_SUCCESS);
    CHECK(count == 3);
    CUfunction function = nullptr;
    CHECK(cuModuleGetFunction(&function, module, "subtract") == CUDA_ERROR_NOT_FOUND);
    REQUIRE(cuModuleGetFunction(&function, module, "by_value") == CUDA_SUCCESS);
    std::size_t offset = 0, bytes = 0;
    REQUIRE(cuFuncGetParamInfo(function, 1, &offset, &bytes) == CUDA_SUCCESS);
    CHECK(offset == 8);
    CHECK(bytes == 24);
    REQUIRE(cuModuleUnload(module) == CUDA_SUCCESS);
  }
  CHECK(cuModuleLoadData(&module, compile("extern \"C\" __global__ void f() {}", 80).cubin.data()) ==
        CUDA_ERROR_NO_BINARY_FOR_GPU);
  CHECK(cuModuleLoadData(&module, "neither, and long enough for all headers that are looked at, which is 64 bytes") ==
        CUDA_ERROR_INVALID_PTX);
}

TEST_CASE_FIXTURE(Driver, "a launch that no card accepts is refused") {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  REQUIRE(cuModuleLoadData(&module, sample().cubin.data()) == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&function, module, "nothing") == CUDA_SUCCESS);
  CHECK(cuLaunchKernel(function, 1, 1, 1, 2048, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuLaunchKernel(function, 0, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  constexpr int kShared = 100 << 10;
  CHECK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, kShared, nullptr, nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kShared) == CUDA_SUCCESS);
  CHECK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, kShared, nullptr, nullptr, nullptr) == CUDA_SUCCESS);
  CHECK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 228 << 10) ==
        CUDA_ERROR_INVALID_VALUE);
  cuModuleUnload(module);
}

TEST_CASE_FIXTURE(Driver, "the table of undocumented functions, which a static runtime wants, is refused") {
  const void* table = &table;
  const CUuuid id{};
  using Function = CUresult (*)(const void**, const CUuuid*);
  void* function = nullptr;
  REQUIRE(cuGetProcAddress("cuGetExportTable", &function, 13000, 0, nullptr) == CUDA_SUCCESS);
  CHECK(reinterpret_cast<Function>(function)(&table, &id) == CUDA_ERROR_NOT_SUPPORTED);
}
