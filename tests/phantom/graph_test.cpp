#include <cuda.h>
#include <doctest/doctest.h>

#include <array>
#include <vector>

#include "phantom/core/contents.h"
#include "tests/phantom/compiled_kernels.h"
#include "tests/phantom/driver_fixture.h"

using vramfit::phantom::is_certain;
using vramfit::phantom_test::Driver;
using vramfit::phantom_test::sample;

namespace {

struct Capture : Driver {
  CUstream stream = nullptr, side = nullptr;
  CUdeviceptr block = allocate(4096);
  int host = 0;  // what the captured copy reads

  Capture() {
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cuMemsetD32(block, 1, 1024) == CUDA_SUCCESS);
  }
  ~Capture() {
    cuStreamDestroy(stream);
    cuStreamDestroy(side);
    cuMemFree(block);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  int on_card() const {
    int value = -1;
    REQUIRE(cuMemcpyDtoH(&value, block, sizeof value) == CUDA_SUCCESS);
    return value;
  }
  void begin() const { REQUIRE(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS); }
  CUgraph end() const {
    CUgraph graph = nullptr;
    REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
    return graph;
  }
  static CUgraphExec executable(CUgraph graph) {
    CUgraphExec made = nullptr;
    REQUIRE(cuGraphInstantiate(&made, graph, 0) == CUDA_SUCCESS);
    return made;
  }
  static std::size_t node_count(CUgraph graph) {
    std::size_t count = 0;
    REQUIRE(cuGraphGetNodes(graph, nullptr, &count) == CUDA_SUCCESS);
    return count;
  }
};

}  // namespace

TEST_CASE_FIXTURE(Capture, "a captured copy is done when the graph is launched, each time anew") {
  begin();
  REQUIRE(cuMemcpyHtoDAsync(block, &host, sizeof host, stream) == CUDA_SUCCESS);
  const CUgraph graph = end();
  CHECK(on_card() == 1);
  CHECK(node_count(graph) == 1);
  const CUgraphExec exec = executable(graph);
  REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
  for (host = 5; host < 8; ++host) {
    REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
    CHECK(on_card() == host);
  }
  cuGraphExecDestroy(exec);
}

TEST_CASE_FIXTURE(Capture, "what a captured kernel writes is uncertain after each replay") {
  CUmodule module = nullptr;
  CUfunction add = nullptr;
  REQUIRE(cuModuleLoadData(&module, sample().cubin.data()) == CUDA_SUCCESS);
  REQUIRE(cuModuleGetFunction(&add, module, "add") == CUDA_SUCCESS);
  int n = 8;
  std::array<void*, 4> arguments{&block, &block, &block, &n};
  begin();
  REQUIRE(cuLaunchKernel(add, 1, 1, 1, 32, 1, 1, 0, stream, arguments.data(), nullptr) == CUDA_SUCCESS);
  const CUgraph graph = end();
  const CUgraphExec exec = executable(graph);
  auto* const address = reinterpret_cast<void*>(block);
  for (int replay = 0; replay < 2; ++replay) {
    REQUIRE(cuMemsetD32(block, 1, 1024) == CUDA_SUCCESS);
    CHECK(is_certain(address, 4096));
    REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
    CHECK_FALSE(is_certain(address, 4096));
  }
  cuGraphExecDestroy(exec);
  cuGraphDestroy(graph);
  cuModuleUnload(module);
}

TEST_CASE_FIXTURE(Capture, "a stream that waits for an event of a capture takes part in it") {
  CUevent event = nullptr;
  REQUIRE(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
  begin();
  REQUIRE(cuMemsetD32Async(block, 2, 1, stream) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitEvent(side, event, 0) == CUDA_SUCCESS);
  CUstreamCaptureStatus status{};
  REQUIRE(cuStreamIsCapturing(side, &status) == CUDA_SUCCESS);
  CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  REQUIRE(cuMemsetD32Async(block, 3, 1, side) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, side) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitEvent(stream, event, 0) == CUDA_SUCCESS);
  const CUgraph graph = end();
  CHECK(node_count(graph) == 2);
  std::size_t edges = 0;
  REQUIRE(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges) == CUDA_SUCCESS);
  CHECK(edges == 1);
  REQUIRE(cuStreamIsCapturing(side, &status) == CUDA_SUCCESS);
  CHECK(status == CU_STREAM_CAPTURE_STATUS_NONE);
  cuGraphDestroy(graph);
  cuEventDestroy(event);
}

TEST_CASE_FIXTURE(Capture, "waiting for a capturing stream fails and spoils the capture") {
  begin();
  CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUstreamCaptureStatus status{};
  REQUIRE(cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS);
  CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
}

TEST_CASE_FIXTURE(Capture, "a capture ends on the stream on which it began, and the legacy stream has none") {
  CHECK(cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_ILLEGAL_STATE);
  begin();
  CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_ERROR_ILLEGAL_STATE);
  cuGraphDestroy(end());
}

TEST_CASE_FIXTURE(Capture, "a graph made by hand does its nodes' work in order") {
  CUgraph graph = nullptr;
  REQUIRE(cuGraphCreate(&graph, 0) == CUDA_SUCCESS);
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = block;
  fill.value = 9;
  fill.elementSize = 4;
  fill.width = 1;
  fill.height = 1;
  CUgraphNode first = nullptr, second = nullptr;
  REQUIRE(cuGraphAddMemsetNode(&first, graph, nullptr, 0, &fill, context) == CUDA_SUCCESS);
  CUDA_HOST_NODE_PARAMS call{[](void* seen) { *static_cast<int*>(seen) += 1; }, &host};
  REQUIRE(cuGraphAddHostNode(&second, graph, &first, 1, &call) == CUDA_SUCCESS);
  const CUgraphExec exec = executable(graph);
  REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);
  CHECK(on_card() == 9);
  CHECK(host == 1);
  cuGraphExecDestroy(exec);
  cuGraphDestroy(graph);
}
