// What runtime and driver do alike with graphs, each with its own handle types.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "phantom/core/graph.h"

namespace vramfit::phantom::graph_calls {

template <class Handle>
Graph* graph_of(Handle handle) {
  auto* const graph = reinterpret_cast<Graph*>(handle);
  return is_graph(graph) ? graph : nullptr;
}

template <class NodeHandle>
GraphNode* node_of(NodeHandle handle) {
  return reinterpret_cast<GraphNode*>(handle);
}

template <class GraphHandle>
Status end(Stream* stream, GraphHandle* out) {
  if (out == nullptr) return Status::invalid_value;
  Graph* graph = nullptr;
  const Status status = end_capture(stream, &graph);
  *out = reinterpret_cast<GraphHandle>(graph);
  return status;
}

/// Any of the results can be null.
template <class StatusType, class GraphHandle, class NodeHandle>
Status info(const Stream* stream, StatusType* status, std::uint64_t* id, GraphHandle* graph, const NodeHandle** needs,
            std::size_t* count) {
  if (stream == nullptr || status == nullptr) return Status::invalid_value;
  Graph* captured = nullptr;
  const CaptureStatus is = capture_status(stream, &captured, id);
  *status = static_cast<StatusType>(is);
  if (is != CaptureStatus::active) return Status::success;
  if (graph != nullptr) *graph = reinterpret_cast<GraphHandle>(captured);
  const std::vector<GraphNode*>* const tail = capture_tail(stream);
  if (needs != nullptr) *needs = reinterpret_cast<const NodeHandle*>(tail->data());
  if (count != nullptr) *count = tail->size();
  return Status::success;
}

/// `replace`: instead of the nodes that the stream's next one waits for, not besides them.
template <class NodeHandle>
Status set_tail(const Stream* stream, const NodeHandle* nodes, std::size_t count, bool replace) {
  std::vector<GraphNode*>* const tail = capture_tail(stream);
  if (tail == nullptr) return Status::illegal_state;
  if (replace) tail->clear();
  for (std::size_t i = 0; i < count; ++i) tail->push_back(node_of(nodes[i]));
  return Status::success;
}

/// Without `out` only the number is given; it is also how many `out` has room for.
template <class NodeHandle>
Status list(const std::vector<GraphNode*>& nodes, NodeHandle* out, std::size_t* count) {
  if (count == nullptr) return Status::invalid_value;
  if (out != nullptr) {
    for (std::size_t i = 0; i < *count; ++i) {
      out[i] = i < nodes.size() ? reinterpret_cast<NodeHandle>(nodes[i]) : nullptr;
    }
  }
  *count = nodes.size();
  return Status::success;
}

inline std::vector<GraphNode*> nodes_of(const Graph& graph, bool roots_only = false) {
  std::vector<GraphNode*> nodes;
  for (const auto& node : graph.nodes) {
    if (!roots_only || node->needs.empty()) nodes.push_back(node.get());
  }
  return nodes;
}

template <class NodeHandle>
Status edges(const Graph& graph, NodeHandle* from, NodeHandle* to, std::size_t* count) {
  if (count == nullptr) return Status::invalid_value;
  const std::size_t room = from == nullptr || to == nullptr ? 0 : *count;
  std::size_t found = 0;
  for (const auto& node : graph.nodes) {
    for (GraphNode* const needed : node->needs) {
      if (found < room) {
        from[found] = reinterpret_cast<NodeHandle>(needed);
        to[found] = reinterpret_cast<NodeHandle>(node.get());
      }
      ++found;
    }
  }
  *count = found;
  return Status::success;
}

/// Adds a node that does `work`; `out` can be null.
template <class NodeHandle>
Status add(Graph* graph, NodeKind kind, const NodeHandle* needs, std::size_t count, NodeHandle* out,
           std::function<void()> work) {
  if (graph == nullptr || (count > 0 && needs == nullptr)) return Status::invalid_value;
  GraphNode node{.kind = kind, .needs = {}, .work = std::move(work)};
  for (std::size_t i = 0; i < count; ++i) node.needs.push_back(node_of(needs[i]));
  GraphNode* made = nullptr;
  const Status status = add_node(graph, std::move(node), &made);
  if (out != nullptr) *out = reinterpret_cast<NodeHandle>(made);
  return status;
}

/// The graph's work becomes one node of another.
template <class NodeHandle>
Status add_child(Graph* graph, const Graph& child, const NodeHandle* needs, std::size_t count, NodeHandle* out) {
  if (graph == nullptr) return Status::invalid_value;
  graph->touched.insert(graph->touched.end(), child.touched.begin(), child.touched.end());
  graph->touches_everything = graph->touches_everything || child.touches_everything;
  return add(graph, NodeKind::child_graph, needs, count, out, [nodes = child.nodes] {
    for (const auto& node : nodes) {
      if (node->work) node->work();
    }
  });
}

template <class ExecHandle>
Status instantiate(const Graph* graph, ExecHandle* out) {
  if (graph == nullptr || out == nullptr) return Status::invalid_value;
  *out = reinterpret_cast<ExecHandle>(copy_graph(*graph));
  return Status::success;
}

/// The executable graph does from now on what `graph` does.
inline Status update(Graph* executable, const Graph* graph) {
  if (executable == nullptr || graph == nullptr) return Status::invalid_value;
  executable->nodes = graph->nodes;
  executable->touched = graph->touched;
  executable->touches_everything = graph->touches_everything;
  return Status::success;
}

}  // namespace vramfit::phantom::graph_calls
