// Stream capture and graphs: the runtime's objects behind the driver's names.
#include "phantom/core/graph.h"

#include <utility>

#include "phantom/core/contents.h"
#include "phantom/core/graph_calls.h"
#include "phantom/core/kernels.h"
#include "phantom/cuda/driver.h"

namespace phantom = vramfit::phantom;
namespace calls = vramfit::phantom::graph_calls;
using phantom::Graph;
using phantom::NodeKind;
using phantom::result;

namespace {

thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUresult make_executable(CUgraphExec* executable, CUgraph graph) {
  return result(calls::instantiate(calls::graph_of(graph), executable));
}

CUresult info(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** needs,
              size_t* count) {
  return result(calls::info(phantom::stream_behind(stream), status, id, graph, needs, count));
}

}  // namespace

PHANTOM_EXPORT CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode /*mode*/) {
  return result(phantom::begin_capture(phantom::stream_behind(stream)));
}

PHANTOM_EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return result(calls::end(phantom::stream_behind(stream), graph));
}

PHANTOM_EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return info(stream, status, nullptr, nullptr, nullptr, nullptr);
}

PHANTOM_EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                                  CUgraph* graph, const CUgraphNode** needs, size_t* count) {
  return info(stream, status, id, graph, needs, count);
}

PHANTOM_EXPORT CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                               CUgraph* graph, const CUgraphNode** needs, const CUgraphEdgeData** edges,
                                               size_t* count) {
  if (edges != nullptr) *edges = nullptr;
  return info(stream, status, id, graph, needs, count);
}

PHANTOM_EXPORT CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode* nodes,
                                                          const CUgraphEdgeData* /*edges*/, size_t count,
                                                          unsigned int flags) {
  return result(
      calls::set_tail(phantom::stream_behind(stream), nodes, count, flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES));
}

PHANTOM_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *mode = std::exchange(capture_mode, *mode);
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuGraphCreate(CUgraph* graph, unsigned int /*flags*/) {
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *graph = reinterpret_cast<CUgraph>(phantom::create_graph());
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuGraphClone(CUgraph* clone, CUgraph graph) {
  return result(calls::instantiate(calls::graph_of(graph), clone));
}

PHANTOM_EXPORT CUresult cuGraphDestroy(CUgraph graph) {
  return result(phantom::destroy_graph(reinterpret_cast<Graph*>(graph)));
}

PHANTOM_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph,
                                                    unsigned long long /*flags*/) {
  return make_executable(executable, graph);
}

PHANTOM_EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec* executable, CUgraph graph, CUgraphNode* /*node*/,
                                              char* /*log*/, size_t /*room*/) {
  return make_executable(executable, graph);
}

PHANTOM_EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec* executable, CUgraph graph,
                                                     CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  if (parameters != nullptr) parameters->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
  return make_executable(executable, graph);
}

PHANTOM_EXPORT CUresult cuGraphExecUpdate(CUgraphExec executable, CUgraph graph,
                                          CUgraphExecUpdateResultInfo* result_info) {
  if (result_info != nullptr) *result_info = {};
  return result(calls::update(calls::graph_of(executable), calls::graph_of(graph)));
}

PHANTOM_EXPORT CUresult cuGraphExecDestroy(CUgraphExec executable) {
  return result(phantom::destroy_graph(reinterpret_cast<Graph*>(executable)));
}

PHANTOM_EXPORT CUresult cuGraphUpload(CUgraphExec executable, CUstream /*stream*/) {
  return calls::graph_of(executable) == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  const Graph* const graph = calls::graph_of(executable);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return result(phantom::launch_graph(*graph, phantom::stream_behind(stream)));
}

PHANTOM_EXPORT CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  const Graph* const graph = calls::graph_of(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return result(calls::list(calls::nodes_of(*graph), nodes, count));
}

PHANTOM_EXPORT CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  const Graph* const graph = calls::graph_of(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return result(calls::list(calls::nodes_of(*graph, true), nodes, count));
}

PHANTOM_EXPORT CUresult cuGraphGetEdges(CUgraph handle, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* /*edges*/,
                                        size_t* count) {
  const Graph* const graph = calls::graph_of(handle);
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return result(calls::edges(*graph, from, to, count));
}

PHANTOM_EXPORT CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  if (node == nullptr || type == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *type = static_cast<CUgraphNodeType>(calls::node_of(node)->kind);
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* needs, CUgraphEdgeData* /*edges*/,
                                                   size_t* count) {
  if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return result(calls::list(calls::node_of(node)->needs, needs, count));
}

PHANTOM_EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count) {
  return result(calls::add(calls::graph_of(graph), NodeKind::empty, needs, count, node, {}));
}

PHANTOM_EXPORT CUresult cuGraphAddKernelNode(CUgraphNode* node, CUgraph handle, const CUgraphNode* needs, size_t count,
                                             const CUDA_KERNEL_NODE_PARAMS* parameters) {
  Graph* const graph = calls::graph_of(handle);
  if (graph == nullptr || parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const void* const function = parameters->func != nullptr ? static_cast<const void*>(parameters->func)
                                                           : static_cast<const void*>(parameters->kern);
  phantom::Kernel* const kernel = phantom::kernel_of(function);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!phantom::pointers_of(*kernel, parameters->kernelParams, graph->touched)) graph->touches_everything = true;
  return result(calls::add(graph, NodeKind::kernel, needs, count, node, {}));
}

PHANTOM_EXPORT CUresult cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count,
                                           const CUDA_HOST_NODE_PARAMS* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return result(calls::add(calls::graph_of(graph), NodeKind::host, needs, count, node,
                           [call = *parameters] { call.fn(call.userData); }));
}

PHANTOM_EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs,
                                                 size_t count, CUgraph child) {
  const Graph* const inner = calls::graph_of(child);
  if (inner == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return result(calls::add_child(calls::graph_of(graph), *inner, needs, count, node));
}

PHANTOM_EXPORT CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count,
                                             const CUDA_MEMSET_NODE_PARAMS* parameters, CUcontext /*context*/) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return result(calls::add(calls::graph_of(graph), NodeKind::fill, needs, count, node, [p = *parameters] {
    for (size_t row = 0; row < p.height; ++row) {
      phantom::fill(phantom::pointer(p.dst + row * p.pitch), p.value, static_cast<int>(p.elementSize),
                    phantom::bytes_of(p.width));
    }
  }));
}
