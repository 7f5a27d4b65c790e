// CUDA graphs: what a stream captures instead of doing it, and does each time the graph is launched. What kernels and
// library calls touched is kept for the graph as a whole: a library call knows no stream here, and too much is safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "phantom/core/status.h"
#include "phantom/core/streams.h"
#include "phantom/core/visibility.h"

namespace vramfit::phantom {

/// By the numbers of cudaGraphNodeType and CUgraphNodeType.
enum class NodeKind {
  kernel = 0,
  copy = 1,
  fill = 2,
  host = 3,
  child_graph = 4,
  empty = 5,
  wait_event = 6,
  record_event = 7
};

/// What cudaGraphNode_t points to.
struct GraphNode {
  NodeKind kind{};
  std::vector<GraphNode*> needs;
  std::function<void()> work;  // empty for what moves no known bytes
};

/// What cudaGraph_t and cudaGraphExec_t point to; an executable one is a copy.
struct Graph {
  std::uint64_t id = 0;
  std::vector<std::shared_ptr<GraphNode>> nodes;
  std::vector<const void*> touched;
  bool touches_everything = false;
};

enum class CaptureStatus { none = 0, active = 1, invalidated = 2 };

PHANTOM_CORE Status begin_capture(Stream* stream);
/// The graph belongs to the caller. An invalidated capture gives none and fails.
PHANTOM_CORE Status end_capture(Stream* stream, Graph** graph);
/// The id is the same for all streams of a capture. `graph` and `id` can be null.
PHANTOM_CORE CaptureStatus capture_status(const Stream* stream, Graph** graph, std::uint64_t* id);
/// Whether any stream of the process captures.
bool is_capturing();
/// The nodes that the stream's next one waits for.
PHANTOM_CORE std::vector<GraphNode*>* capture_tail(const Stream* stream);

// Part of submitting work: what comes after them on a capturing stream is not to be done now.
/// An event recorded on a capturing stream belongs to the capture. False if the stream captures nothing.
PHANTOM_CORE bool capture_record(const Stream* stream, const Event* event);
/// A stream that waits for such an event joins the capture. False if the event is an ordinary one.
PHANTOM_CORE bool capture_wait(Stream* stream, const Event* event);
/// Waiting for a capturing stream is an error and spoils the capture. False if it captures nothing.
PHANTOM_CORE bool spoil_capture(const Stream* stream);

/// Does the work, or, while the stream captures, puts it into the graph. For copies, fills and calls of the host.
PHANTOM_CORE Status submit(const Stream* stream, NodeKind kind, const std::function<Status()>& work);
/// A kernel on the stream; its pointers reach the graph through note_touched.
PHANTOM_CORE void submit_kernel(const Stream* stream);

/// For touched() and touched_everything(): adds to every graph that is being captured.
PHANTOM_CORE void note_touched(std::span<const void* const> pointers);
PHANTOM_CORE void note_touched_everything();

PHANTOM_CORE Graph* create_graph();
PHANTOM_CORE Graph* copy_graph(const Graph& graph);
PHANTOM_CORE bool is_graph(const Graph* graph);
PHANTOM_CORE Status destroy_graph(Graph* graph);
/// A node put there by hand. Fails if one that it needs is not of the graph.
PHANTOM_CORE Status add_node(Graph* graph, GraphNode node, GraphNode** made);
/// Does its work, in the order in which it was captured.
PHANTOM_CORE Status launch_graph(const Graph& graph, const Stream* stream);

}  // namespace vramfit::phantom
