// CUDA 12's questions about graphs without edges; those with them are in graph_edges.cpp.
#include <cstddef>

#include "phantom/cudart/runtime.h"

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
