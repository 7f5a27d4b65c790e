// Questions about graphs that are answered with edges: the only form in CUDA 13, and a later version of each in
// CUDA 12.
#include "phantom/core/graph.h"
#include "phantom/core/graph_calls.h"
#include "phantom/cudart/runtime.h"

namespace phantom = vramfit::phantom;
namespace calls = vramfit::phantom::graph_calls;
using phantom::Graph;
using phantom::result;
using phantom::Status;

// NOLINTBEGIN(cppcoreguidelines-macro-usage): names that are exported
#if CUDART_VERSION >= 13000
#define CAPTURE_INFO cudaStreamGetCaptureInfo
#define UPDATE_DEPENDENCIES cudaStreamUpdateCaptureDependencies
#define GET_EDGES cudaGraphGetEdges
#define GET_DEPENDENCIES cudaGraphNodeGetDependencies
#else
#define CAPTURE_INFO cudaStreamGetCaptureInfo_v3
#define UPDATE_DEPENDENCIES cudaStreamUpdateCaptureDependencies_v2
#define GET_EDGES cudaGraphGetEdges_v2
#define GET_DEPENDENCIES cudaGraphNodeGetDependencies_v2
#endif
// NOLINTEND(cppcoreguidelines-macro-usage)

PHANTOM_EXPORT cudaError_t CAPTURE_INFO(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id,
                                        cudaGraph_t* graph, const cudaGraphNode_t** needs,
                                        const cudaGraphEdgeData** edges, std::size_t* count) {
  std::uint64_t number = 0;
  const Status done = calls::info(phantom::stream_behind(stream), status, &number, graph, needs, count);
  if (id != nullptr) *id = number;
  if (edges != nullptr) *edges = nullptr;
  return result(done);
}

PHANTOM_EXPORT cudaError_t UPDATE_DEPENDENCIES(cudaStream_t stream, cudaGraphNode_t* nodes,
                                               const cudaGraphEdgeData* /*edges*/, std::size_t count,
                                               unsigned int flags) {
  return result(
      calls::set_tail(phantom::stream_behind(stream), nodes, count, flags == cudaStreamSetCaptureDependencies));
}

PHANTOM_EXPORT cudaError_t GET_EDGES(cudaGraph_t handle, cudaGraphNode_t* from, cudaGraphNode_t* to,
                                     cudaGraphEdgeData* /*edges*/, std::size_t* count) {
  const Graph* const graph = calls::graph_of(handle);
  return graph == nullptr ? result(Status::invalid_value) : result(calls::edges(*graph, from, to, count));
}

PHANTOM_EXPORT cudaError_t GET_DEPENDENCIES(cudaGraphNode_t node, cudaGraphNode_t* needs, cudaGraphEdgeData* /*edges*/,
                                            std::size_t* count) {
  if (node == nullptr) return result(Status::invalid_value);
  return result(calls::list(calls::node_of(node)->needs, needs, count));
}
