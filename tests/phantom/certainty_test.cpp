// Which reads are certain: whatever a kernel may have written is not.
#include <cuda.h>
#include <doctest/doctest.h>

#include <array>
#include <numeric>
#include <string>
#include <vector>

#include "phantom/core/contents.h"
#include "phantom/core/modules.h"
#include "phantom/values/core.h"
#include "tests/phantom/compiled_kernels.h"
#include "tests/phantom/driver_fixture.h"

using vramfit::phantom::inventor;
using vramfit::phantom::is_certain;
using vramfit::phantom::knowledge_of;
using vramfit::phantom::written;
using vramfit::phantom_test::Driver;
using vramfit::phantom_test::sample;

namespace {

constexpr std::size_t kBytes = 4096;

struct Blocks : Driver {
  CUdeviceptr x = allocate(kBytes), y = allocate(kBytes), out = allocate(kBytes);
  CUmodule module = nullptr;
  CUfunction add = nullptr, nothing = nullptr, by_value = nullptr;

  Blocks() {
    REQUIRE(cuModuleLoadData(&module, sample().cubin.data()) == CUDA_SUCCESS);
    REQUIRE(cuModuleGetFunction(&add, module, "add") == CUDA_SUCCESS);
    REQUIRE(cuModuleGetFunction(&nothing, module, "nothing") == CUDA_SUCCESS);
    REQUIRE(cuModuleGetFunction(&by_value, module, "by_value") == CUDA_SUCCESS);
    for (const CUdeviceptr block : {x, y, out}) upload(block, 1);
  }
  ~Blocks() {
    for (const CUdeviceptr block : {x, y, out}) cuMemFree(block);
    cuModuleUnload(module);
  }
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;

  static void upload(CUdeviceptr to, int first) {
    std::vector<int> values(kBytes / sizeof(int));
    std::iota(values.begin(), values.end(), first);
    REQUIRE(cuMemcpyHtoD(to, values.data(), kBytes) == CUDA_SUCCESS);
  }
  static bool certain(CUdeviceptr block) { return is_certain(reinterpret_cast<void*>(block), kBytes); }
  void launch_add(CUdeviceptr a, CUdeviceptr b, CUdeviceptr to, CUstream stream = nullptr) const {
    int n = 8;
    std::array<void*, 4> arguments{&a, &b, &to, &n};
    REQUIRE(cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, stream, arguments.data(), nullptr) == CUDA_SUCCESS);
  }
};

}  // namespace

TEST_CASE_FIXTURE(Blocks, "what the host copied into a fresh block is read back, with certainty") {
  std::array<int, 4> back{};
  REQUIRE(cuMemcpyDtoH(back.data(), x, sizeof back) == CUDA_SUCCESS);
  CHECK(back == std::array{1, 2, 3, 4});
  CHECK(certain(x));
}

TEST_CASE_FIXTURE(Blocks, "a block that nobody wrote is uncertain") {
  const CUdeviceptr fresh = allocate(kBytes);
  CHECK_FALSE(certain(fresh));
  cuMemFree(fresh);
}

TEST_CASE_FIXTURE(Blocks, "what ghosts are taken to have sent is known but never certain, wherever it is copied to") {
  const std::string* const collective = inventor("all_reduce of 1024 int32");
  const auto at = [](CUdeviceptr address) { return reinterpret_cast<void*>(address); };
  written(at(x), kBytes, {.invented_by = collective});
  std::array<int, 4> back{};
  REQUIRE(cuMemcpyDtoH(back.data(), x, sizeof back) == CUDA_SUCCESS);
  CHECK(back == std::array{1, 2, 3, 4});  // the value is there
  CHECK(knowledge_of(at(x), kBytes).is_known);
  CHECK_FALSE(certain(x));
  REQUIRE(cuMemcpyDtoD(y, x, kBytes) == CUDA_SUCCESS);
  CHECK(knowledge_of(at(y), kBytes).invented_by == collective);
  upload(x, 1);
  CHECK(certain(x));
  written(at(x + kBytes / 2), kBytes / 2, {.invented_by = collective});
  CHECK(is_certain(at(x), kBytes / 2));
  CHECK(knowledge_of(at(x), kBytes).invented_by == collective);
  launch_add(y, y, out);
  CHECK_FALSE(knowledge_of(at(y), kBytes).is_known);
}

TEST_CASE_FIXTURE(Blocks, "a kernel makes uncertain what it got pointers to, and nothing else") {
  const CUdeviceptr other = allocate(kBytes);
  upload(other, 5);
  launch_add(x, y, out);
  CHECK_FALSE(certain(x));  // const in C++ is no promise of the machine
  CHECK_FALSE(certain(out));
  CHECK(certain(other));
  cuMemFree(other);
}

TEST_CASE_FIXTURE(Blocks, "a block is certain again once it is copied into, also in place") {
  launch_add(x, x, x);
  CHECK_FALSE(certain(x));
  upload(x, 3);
  CHECK(certain(x));
}

TEST_CASE_FIXTURE(Blocks, "memory that was freed and given out again is uncertain until it is written") {
  const std::size_t large = 4 << 20;
  const CUdeviceptr first = allocate(large);
  upload(first, 1);
  cuMemFree(first);
  const CUdeviceptr second = allocate(large);
  REQUIRE(second == first);
  CHECK_FALSE(certain(second));
  cuMemFree(second);
}

TEST_CASE_FIXTURE(Blocks, "a copy on the card carries certainty with it, either way") {
  REQUIRE(cuMemcpyDtoD(out, x, kBytes) == CUDA_SUCCESS);
  CHECK(certain(out));
  launch_add(y, y, y);
  REQUIRE(cuMemcpyDtoD(out, y, kBytes) == CUDA_SUCCESS);
  CHECK_FALSE(certain(out));
}

TEST_CASE_FIXTURE(Blocks, "pointers inside a structure passed by value are seen") {
  struct {
    CUdeviceptr first;
    int count;
    CUdeviceptr second;
  } pair{x, 1, y};
  char flag = 1;
  double scale = 2;
  std::array<void*, 3> arguments{&flag, &pair, &scale};
  REQUIRE(cuLaunchKernel(by_value, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments.data(), nullptr) == CUDA_SUCCESS);
  CHECK_FALSE(certain(x));
  CHECK_FALSE(certain(y));
  CHECK(certain(out));
}

TEST_CASE_FIXTURE(
    Blocks, "leftovers in a structure passed by value cost nothing within an operation, which says what it wrote") {
  struct {
    CUdeviceptr used;
    int count;
    CUdeviceptr left_from_before;
  } slots{out, 1, y};
  char flag = 1;
  double scale = 2;
  std::array<void*, 3> arguments{&flag, &slots, &scale};
  REQUIRE(vramfit_operation_begin(0) != 0);
  REQUIRE(cuLaunchKernel(by_value, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments.data(), nullptr) == CUDA_SUCCESS);
  REQUIRE(vramfit_operation_begin(0) != 0);
  CHECK(vramfit_operation_end() == 0);  // the inner one launched nothing
  CHECK(vramfit_operation_end() == 1);
  vramfit_value_set(reinterpret_cast<void*>(out), kBytes, VRAMFIT_UNKNOWN);
  CHECK_FALSE(certain(out));
  CHECK(certain(y));
  REQUIRE(cuLaunchKernel(by_value, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments.data(), nullptr) == CUDA_SUCCESS);
  CHECK_FALSE(certain(y));  // without one, any pointer may be written through
}

TEST_CASE_FIXTURE(Blocks, "what rests on assumptions is known, carried by copies, and never certain") {
  const auto at = [](CUdeviceptr address) { return reinterpret_cast<void*>(address); };
  vramfit_value_set(at(x), kBytes / 2, VRAMFIT_ASSUMES_ROUTING);
  vramfit_value_set(at(x + kBytes / 2), kBytes / 2, VRAMFIT_ASSUMES_FINITE);
  CHECK(vramfit_value_known(at(x), kBytes) == (VRAMFIT_ASSUMES_ROUTING | VRAMFIT_ASSUMES_FINITE));
  REQUIRE(cuMemcpyDtoD(y, x, kBytes / 2) == CUDA_SUCCESS);
  CHECK(vramfit_value_known(at(y), kBytes) == VRAMFIT_ASSUMES_ROUTING);
  CHECK_FALSE(certain(y));
  written(at(x), kBytes, {.invented_by = inventor("all_reduce of 1024 int32")});
  const std::int64_t invented = vramfit_value_known(at(x), kBytes);
  CHECK(invented > VRAMFIT_ASSUMES_VALUE);
  vramfit_value_set(at(out), kBytes, invented);
  CHECK(knowledge_of(at(out), kBytes).invented_by != nullptr);
}

TEST_CASE_FIXTURE(Blocks, "an answer is what the next count is read as, and nothing else") {
  std::array<int, 4> four{};
  std::int64_t eight = 0;
  vramfit_answer_leave(77);
  REQUIRE(cuMemcpyDtoH(four.data(), x, sizeof four) == CUDA_SUCCESS);
  CHECK(four[0] == 1);
  REQUIRE(cuMemcpyDtoH(four.data(), x, sizeof(int)) == CUDA_SUCCESS);
  CHECK(four[0] == 77);
  REQUIRE(cuMemcpyDtoH(four.data(), x, sizeof(int)) == CUDA_SUCCESS);
  CHECK(four[0] == 1);
  CHECK(vramfit_answer_withdraw() == 0);
  vramfit_answer_leave(1);
  CHECK(vramfit_answer_withdraw() == 1);
  REQUIRE(cuMemcpyDtoH(&eight, x, sizeof eight) == CUDA_SUCCESS);
  CHECK(eight == (std::int64_t{2} << 32) + 1);
}

TEST_CASE_FIXTURE(Blocks, "arguments packed into one buffer are seen") {
  struct {
    CUdeviceptr a, b, to;
    int n;
  } packed{x, y, out, 8};
  std::size_t bytes = sizeof packed;
  std::array<void*, 5> extra{CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                             CU_LAUNCH_PARAM_END};
  REQUIRE(cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, extra.data()) == CUDA_SUCCESS);
  CHECK_FALSE(certain(out));
}

TEST_CASE_FIXTURE(Blocks, "a kernel whose parameters can't be read may have written anything") {
  CUmodule odd = nullptr;
  const char* const text = ".version 8.0\n.target sm_90\n.visible .entry odd(.param .texref t) { ret; }\n";
  REQUIRE(cuModuleLoadData(&odd, text) == CUDA_SUCCESS);
  CUfunction function = nullptr;
  REQUIRE(cuModuleGetFunction(&function, odd, "odd") == CUDA_SUCCESS);
  std::array<void*, 1> arguments{&odd};
  REQUIRE(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, arguments.data(), nullptr) == CUDA_SUCCESS);
  CHECK_FALSE(certain(x));
  cuModuleUnload(odd);
}

TEST_CASE_FIXTURE(Blocks, "a module's variable starts as the image says and is uncertain after its kernels ran") {
  CUdeviceptr counter = 0;
  std::size_t bytes = 0;
  REQUIRE(cuModuleGetGlobal(&counter, &bytes, module, "counter") == CUDA_SUCCESS);
  CHECK(bytes == 4);
  int value = 0;
  REQUIRE(cuMemcpyDtoH(&value, counter, sizeof value) == CUDA_SUCCESS);
  CHECK(value == 7);
  CHECK(is_certain(reinterpret_cast<void*>(counter), 4));
  REQUIRE(cuLaunchKernel(nothing, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr) == CUDA_SUCCESS);
  CHECK_FALSE(is_certain(reinterpret_cast<void*>(counter), 4));
  CHECK(certain(x));
}
