#include "phantom/core/cubin.h"

#include <doctest/doctest.h>

#include <cstring>

#include "phantom/core/ptx.h"
#include "tests/phantom/compiled_kernels.h"

using vramfit::phantom::Cubin;
using vramfit::phantom::KernelFacts;
using vramfit::phantom::read_cubin;
using vramfit::phantom::read_ptx;
using vramfit::phantom_test::compile;
using vramfit::phantom_test::sample;

namespace {

void check_parameters(const KernelFacts& facts, const std::vector<std::pair<std::uint32_t, std::uint32_t>>& expected) {
  CHECK(facts.parameters_known);
  REQUIRE(facts.parameters.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK(facts.parameters[i].offset == expected[i].first);
    CHECK(facts.parameters[i].bytes == expected[i].second);
  }
}

}  // namespace

TEST_CASE("a kernel's parameters are in its cubin, with offsets as the compiler laid them") {
  const auto cubin = read_cubin(sample().cubin);
  REQUIRE(cubin);
  CHECK(cubin->capability == 90);
  CHECK(cubin->kernels.size() == 3);
  check_parameters(cubin->kernels.at("add"), {{0, 8}, {8, 8}, {16, 8}, {24, 4}});
  check_parameters(cubin->kernels.at("by_value"), {{0, 1}, {8, 24}, {32, 8}});
  check_parameters(cubin->kernels.at("nothing"), {});
}

TEST_CASE("PTX of the same source declares the same parameters") {
  const auto cubin = read_cubin(sample().cubin);
  const auto kernels = read_ptx(sample().ptx);
  REQUIRE(kernels);
  REQUIRE(kernels->size() == cubin->kernels.size());
  for (const auto& [name, facts] : *kernels) {
    CAPTURE(name);
    std::vector<std::pair<std::uint32_t, std::uint32_t>> expected;
    for (const auto& parameter : cubin->kernels.at(name).parameters)
      expected.emplace_back(parameter.offset, parameter.bytes);
    check_parameters(facts, expected);
  }
}

TEST_CASE("shared memory is what the kernel declares, without what the system reserves of each block") {
  for (const int capability : {80, 90, 100}) {
    CAPTURE(capability);
    const auto made = compile(R"(extern "C" {
      __global__ void tile(float* x) { __shared__ float t[128]; t[threadIdx.x] = x[threadIdx.x]; __syncthreads();
                                       x[threadIdx.x] = t[127 - threadIdx.x]; }
      __global__ void none(float* x) { x[0] = 1; }
      __global__ void dynamic(float* x) { extern __shared__ float t[]; t[threadIdx.x] = x[threadIdx.x]; __syncthreads();
                                          x[threadIdx.x] = t[7 - threadIdx.x]; } })",
                              capability);
    const auto cubin = read_cubin(made.cubin);
    REQUIRE(cubin);
    CHECK(cubin->capability == capability);
    CHECK(cubin->kernels.at("tile").capability == capability);
    CHECK(read_ptx(made.ptx)->at("tile").capability == capability);
    CHECK(cubin->kernels.at("tile").static_shared_bytes == 512);
    CHECK(cubin->kernels.at("none").static_shared_bytes == 0);
    CHECK(cubin->kernels.at("dynamic").static_shared_bytes == 0);
  }
}

TEST_CASE("launch bounds limit the block, and registers are counted") {
  const auto cubin = read_cubin(sample().cubin);
  CHECK(cubin->kernels.at("by_value").max_threads_per_block == 256);
  CHECK(cubin->kernels.at("add").max_threads_per_block == 1024);
  for (const auto& [name, facts] : cubin->kernels) {
    CAPTURE(name);
    CHECK(facts.registers > 3);
    CHECK(facts.registers < 64);
  }
}

TEST_CASE("variables have their size and what they hold at first") {
  const auto cubin = read_cubin(sample().cubin);
  const auto& counter = cubin->variables.at("counter");
  CHECK(counter.bytes == 4);
  int value = 0;
  REQUIRE(counter.initial.size() == sizeof value);
  std::memcpy(&value, counter.initial.data(), sizeof value);
  CHECK(value == 7);
  CHECK_FALSE(counter.is_constant);
  CHECK(cubin->variables.at("scratch").bytes == 256);
  CHECK(cubin->variables.at("scratch").initial.empty());
  const auto& table = cubin->variables.at("table");
  CHECK(table.is_constant);
  float second = 0;
  REQUIRE(table.initial.size() == 16);
  std::memcpy(&second, table.initial.data() + 4, sizeof second);
  CHECK(second == 2.5F);
}

TEST_CASE("a damaged cubin is refused or read, never followed outside its bytes") {
  const auto whole = sample().cubin;
  for (std::size_t length = 0; length < whole.size(); length += 1 + length / 16) {
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
    const auto cubin = read_cubin(cut);
    if (cubin) CHECK(cubin->kernels.size() == 3);  // what was cut off is not looked at
  }
  std::uint64_t random = 1;
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> changed = whole;
    for (int n = 0; n < 8; ++n) {
      random = random * 6364136223846793005ULL + 1442695040888963407ULL;
      changed[(random >> 33U) % changed.size()] = static_cast<std::byte>(random >> 24U);
    }
    const auto cubin = read_cubin(changed);
    if (cubin) CHECK(cubin->kernels.size() < 100);
  }
}

TEST_CASE("text that is no PTX is none, and a parameter of an unknown type makes a kernel's parameters unknown") {
  CHECK_FALSE(read_ptx("hello"));
  CHECK_FALSE(read_ptx(""));
  const auto kernels = read_ptx(".version 8.0\n.target sm_90\n.visible .entry odd(.param .texref t) { ret; }\n");
  REQUIRE(kernels);
  CHECK_FALSE(kernels->at("odd").parameters_known);
}
