// Questions about graphs whose arguments differ between majors: CUDA 12 has a form of each without edges, and one with.
#include "executor/phantom/core/graph.h"
#include "executor/phantom/core/graph_calls.h"
#include "executor/phantom/cudart/runtime.h"

namespace phantom = vramfit::phantom;
namespace calls = vramfit::phantom::graph_calls;
using phantom::Graph;
using phantom::result;
using phantom::Status;

PHANTOM_EXPORT cudaError_t cudaStreamGetCaptureInfo_v3(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                                       unsigned long long* id, cudaGraph_t* graph,
                                                       const cudaGraphNode_t** needs, const cudaGraphEdgeData** edges,
                                                       std::size_t* count) {
  std::uint64_t number = 0;
  const Status done = calls::info(phantom::stream_behind(stream), status, &number, graph, needs, count);
  if (id != nullptr) *id = number;
  if (edges != nullptr) *edges = nullptr;
  return result(done);
}

PHANTOM_EXPORT cudaError_t cudaStreamUpdateCaptureDependencies_v2(cudaStream_t stream, cudaGraphNode_t* nodes,
                                                                  const cudaGraphEdgeData* /*edges*/, std::size_t count,
                                                                  unsigned int flags) {
  return result(
      calls::set_tail(phantom::stream_behind(stream), nodes, count, flags == cudaStreamSetCaptureDependencies));
}

PHANTOM_EXPORT cudaError_t cudaGraphGetEdges_v2(cudaGraph_t handle, cudaGraphNode_t* from, cudaGraphNode_t* to,
                                                cudaGraphEdgeData* /*edges*/, std::size_t* count) {
  const Graph* const graph = calls::graph_of(handle);
  return graph == nullptr ? result(Status::invalid_value) : result(calls::edges(*graph, from, to, count));
}

PHANTOM_EXPORT cudaError_t cudaGraphNodeGetDependencies_v2(cudaGraphNode_t node, cudaGraphNode_t* needs,
                                                           cudaGraphEdgeData* /*edges*/, std::size_t* count) {
  if (node == nullptr) return result(Status::invalid_value);
  return result(calls::list(calls::node_of(node)->needs, needs, count));
}

PHANTOM_EXPORT cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                                       unsigned long long* id, cudaGraph_t* graph,
                                                       const cudaGraphNode_t** needs, std::size_t* count) {
  return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, needs, nullptr, count);
}

PHANTOM_EXPORT cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* nodes,
                                                               std::size_t count, unsigned int flags) {
  return cudaStreamUpdateCaptureDependencies_v2(stream, nodes, nullptr, count, flags);
}

PHANTOM_EXPORT cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to,
                                             std::size_t* count) {
  return cudaGraphGetEdges_v2(graph, from, to, nullptr, count);
}

PHANTOM_EXPORT cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* needs,
                                                        std::size_t* count) {
  return cudaGraphNodeGetDependencies_v2(node, needs, nullptr, count);
}
