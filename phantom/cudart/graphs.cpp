// Stream capture and graphs.
#include <cstdio>
#include <utility>

#include "phantom/core/contents.h"
#include "phantom/core/graph.h"
#include "phantom/core/graph_calls.h"
#include "phantom/core/kernels.h"
#include "phantom/cudart/runtime.h"

namespace phantom = vramfit::phantom;
namespace calls = vramfit::phantom::graph_calls;
using phantom::Graph;
using phantom::NodeKind;
using phantom::result;
using phantom::Status;

namespace {

thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

cudaError_t make_executable(cudaGraphExec_t* executable, cudaGraph_t graph) {
  return result(calls::instantiate(calls::graph_of(graph), executable));
}

}  // namespace

PHANTOM_EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  return result(phantom::begin_capture(phantom::stream_behind(stream)));
}

PHANTOM_EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return result(calls::end(phantom::stream_behind(stream), graph));
}

PHANTOM_EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return result(calls::info<cudaStreamCaptureStatus, cudaGraph_t, cudaGraphNode_t>(
      phantom::stream_behind(stream), status, nullptr, nullptr, nullptr, nullptr));
}

PHANTOM_EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  if (mode == nullptr) return result(Status::invalid_value);
  *mode = std::exchange(capture_mode, *mode);
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned int /*flags*/) {
  if (graph == nullptr) return result(Status::invalid_value);
  *graph = reinterpret_cast<cudaGraph_t>(phantom::create_graph());
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaGraphClone(cudaGraph_t* clone, cudaGraph_t graph) {
  return result(calls::instantiate(calls::graph_of(graph), clone));
}

PHANTOM_EXPORT cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return result(phantom::destroy_graph(reinterpret_cast<Graph*>(graph)));
}

PHANTOM_EXPORT cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                                unsigned long long /*flags*/) {
  return make_executable(executable, graph);
}

PHANTOM_EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                                         unsigned long long /*flags*/) {
  return make_executable(executable, graph);
}

PHANTOM_EXPORT cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t* executable, cudaGraph_t graph,
                                                          cudaGraphInstantiateParams* parameters) {
  if (parameters != nullptr) parameters->result_out = cudaGraphInstantiateSuccess;
  return make_executable(executable, graph);
}

PHANTOM_EXPORT cudaError_t cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph,
                                               cudaGraphExecUpdateResultInfo* info) {
  if (info != nullptr) *info = {};
  return result(calls::update(calls::graph_of(executable), calls::graph_of(graph)));
}

PHANTOM_EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return result(phantom::destroy_graph(reinterpret_cast<Graph*>(executable)));
}

PHANTOM_EXPORT cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t /*stream*/) {
  return calls::graph_of(executable) == nullptr ? result(Status::invalid_value) : cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  const Graph* const graph = calls::graph_of(executable);
  if (graph == nullptr) return result(Status::invalid_value);
  return result(phantom::launch_graph(*graph, phantom::stream_behind(stream)));
}

PHANTOM_EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t* nodes, std::size_t* count) {
  const Graph* const graph = calls::graph_of(handle);
  return graph == nullptr ? result(Status::invalid_value) : result(calls::list(calls::nodes_of(*graph), nodes, count));
}

PHANTOM_EXPORT cudaError_t cudaGraphGetRootNodes(cudaGraph_t handle, cudaGraphNode_t* nodes, std::size_t* count) {
  const Graph* const graph = calls::graph_of(handle);
  if (graph == nullptr) return result(Status::invalid_value);
  return result(calls::list(calls::nodes_of(*graph, true), nodes, count));
}

PHANTOM_EXPORT cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  if (node == nullptr || type == nullptr) return result(Status::invalid_value);
  *type = static_cast<cudaGraphNodeType>(calls::node_of(node)->kind);
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaGraphDebugDotPrint(cudaGraph_t handle, const char* path, unsigned int /*flags*/) {
  const Graph* const graph = calls::graph_of(handle);
  if (graph == nullptr || path == nullptr) return result(Status::invalid_value);
  std::FILE* const out = std::fopen(path, "we");
  if (out == nullptr) return result(cudaErrorOperatingSystem);
  std::fprintf(out, "digraph dot {\n");
  for (const auto& node : graph->nodes) {
    std::fprintf(out, "  \"%p\" [label=\"type %d\"];\n", static_cast<void*>(node.get()), static_cast<int>(node->kind));
    for (const phantom::GraphNode* const needed : node->needs) {
      std::fprintf(out, "  \"%p\" -> \"%p\";\n", static_cast<const void*>(needed), static_cast<void*>(node.get()));
    }
  }
  std::fprintf(out, "}\n");
  return std::fclose(out) == 0 ? cudaSuccess : result(cudaErrorOperatingSystem);
}

PHANTOM_EXPORT cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs,
                                                 std::size_t count) {
  return result(calls::add(calls::graph_of(graph), NodeKind::empty, needs, count, node, {}));
}

PHANTOM_EXPORT cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs,
                                                std::size_t count, const cudaHostNodeParams* parameters) {
  if (parameters == nullptr) return result(Status::invalid_value);
  return result(calls::add(calls::graph_of(graph), NodeKind::host, needs, count, node,
                           [call = *parameters] { call.fn(call.userData); }));
}

PHANTOM_EXPORT cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                      const cudaGraphNode_t* needs, std::size_t count,
                                                      cudaGraph_t child) {
  const Graph* const inner = calls::graph_of(child);
  if (inner == nullptr) return result(Status::invalid_value);
  return result(calls::add_child(calls::graph_of(graph), *inner, needs, count, node));
}

PHANTOM_EXPORT cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph,
                                                    const cudaGraphNode_t* needs, std::size_t count, void* target,
                                                    const void* source, std::size_t bytes, cudaMemcpyKind /*kind*/) {
  return result(calls::add(calls::graph_of(graph), NodeKind::copy, needs, count, node,
                           [=] { phantom::copy(target, source, static_cast<std::int64_t>(bytes)); }));
}

PHANTOM_EXPORT cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                  const cudaGraphNode_t* needs, std::size_t count,
                                                  const cudaMemsetParams* parameters) {
  if (parameters == nullptr) return result(Status::invalid_value);
  return result(calls::add(calls::graph_of(graph), NodeKind::fill, needs, count, node, [p = *parameters] {
    for (std::size_t row = 0; row < p.height; ++row) {
      phantom::fill(static_cast<char*>(p.dst) + row * p.pitch, p.value, static_cast<int>(p.elementSize),
                    static_cast<std::int64_t>(p.width));
    }
  }));
}
