#include "phantom/core/graph.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "phantom/core/contents.h"

namespace vramfit::phantom {

namespace {

using Nodes = std::vector<GraphNode*>;

struct Capture {
  Graph* graph = nullptr;
  const Stream* origin = nullptr;
  std::uint64_t id = 0;
  bool spoiled = false;
  std::map<const Stream*, Nodes> tails{};  // of each stream that takes part
  std::map<const Event*, Nodes> events{};
};

struct State {
  std::recursive_mutex mutex;  // a captured call of the host may come back here
  std::unordered_set<const Graph*> graphs;
  std::vector<std::unique_ptr<Capture>> captures;
  std::unordered_map<const Stream*, Capture*> by_stream;
  std::uint64_t next_id = 1;
};

// Never destroyed: programs destroy graphs in their own destructors.
State& state() {
  static auto* const kState = new State;  // NOLINT(cppcoreguidelines-owning-memory)
  return *kState;
}

std::atomic<int> active_captures{0};  // the common case, none, must cost nothing

Capture* capture_of(State& s, const Stream* stream) {
  const auto found = s.by_stream.find(stream);
  return found == s.by_stream.end() ? nullptr : found->second;
}

void add_node(Capture& capture, const Stream* stream, NodeKind kind, std::function<void()> work) {
  auto node =
      std::make_shared<GraphNode>(GraphNode{.kind = kind, .needs = capture.tails[stream], .work = std::move(work)});
  capture.tails[stream] = {node.get()};
  capture.graph->nodes.push_back(std::move(node));
}

void end(State& s, const Capture* capture) {
  std::erase_if(s.by_stream, [&](const auto& entry) { return entry.second == capture; });
  std::erase_if(s.captures, [&](const auto& entry) { return entry.get() == capture; });
  --active_captures;
}

}  // namespace

Status begin_capture(Stream* stream) {
  if (stream == nullptr || stream->id == 0) return Status::capture_unsupported;  // the legacy stream cannot
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (capture_of(s, stream) != nullptr) return Status::illegal_state;
  auto capture = std::make_unique<Capture>(Capture{.graph = create_graph(), .origin = stream, .id = s.next_id++});
  capture->tails[stream] = {};
  s.by_stream[stream] = capture.get();
  s.captures.push_back(std::move(capture));
  ++active_captures;
  return Status::success;
}

Status end_capture(Stream* stream, Graph** graph) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const Capture* const capture = capture_of(s, stream);
  if (capture == nullptr) return Status::illegal_state;
  if (capture->origin != stream) return Status::capture_unmatched;
  *graph = capture->graph;
  const bool spoiled = capture->spoiled;
  end(s, capture);
  if (!spoiled) return Status::success;
  destroy_graph(*graph);
  *graph = nullptr;
  return Status::capture_invalidated;
}

bool is_capturing() { return active_captures != 0; }

CaptureStatus capture_status(const Stream* stream, Graph** graph, std::uint64_t* id) {
  if (active_captures == 0) return CaptureStatus::none;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const Capture* const capture = capture_of(s, stream);
  if (capture == nullptr) return CaptureStatus::none;
  if (graph != nullptr) *graph = capture->graph;
  if (id != nullptr) *id = capture->id;
  return capture->spoiled ? CaptureStatus::invalidated : CaptureStatus::active;
}

std::vector<GraphNode*>* capture_tail(const Stream* stream) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Capture* const capture = capture_of(s, stream);
  return capture == nullptr ? nullptr : &capture->tails[stream];
}

bool capture_record(const Stream* stream, const Event* event) {
  if (active_captures == 0) return false;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  for (const auto& other : s.captures) other->events.erase(event);
  Capture* const capture = capture_of(s, stream);
  if (capture == nullptr) return false;
  capture->events[event] = capture->tails[stream];
  return true;
}

bool capture_wait(Stream* stream, const Event* event) {
  if (active_captures == 0) return false;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  for (const auto& capture : s.captures) {
    const auto found = capture->events.find(event);
    if (found == capture->events.end()) continue;
    Nodes& tail = capture->tails[stream];
    for (GraphNode* const node : found->second) {
      if (std::find(tail.begin(), tail.end(), node) == tail.end()) tail.push_back(node);
    }
    s.by_stream[stream] = capture.get();
    return true;
  }
  return false;
}

bool spoil_capture(const Stream* stream) {
  if (active_captures == 0) return false;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Capture* const capture = capture_of(s, stream);
  if (capture != nullptr) capture->spoiled = true;
  return capture != nullptr;
}

Status submit(const Stream* stream, NodeKind kind, const std::function<Status()>& work) {
  if (active_captures != 0) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (Capture* const capture = capture_of(s, stream)) {
      add_node(*capture, stream, kind, [work] { work(); });
      return Status::success;
    }
  }
  return work();
}

void submit_kernel(const Stream* stream) {
  if (active_captures == 0) return;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (Capture* const capture = capture_of(s, stream)) add_node(*capture, stream, NodeKind::kernel, {});
}

void note_touched(std::span<const void* const> pointers) {
  if (active_captures == 0) return;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  for (const auto& capture : s.captures) {
    capture->graph->touched.insert(capture->graph->touched.end(), pointers.begin(), pointers.end());
  }
}

void note_touched_everything() {
  if (active_captures == 0) return;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  for (const auto& capture : s.captures) capture->graph->touches_everything = true;
}

Graph* create_graph() { return copy_graph(Graph{}); }

Graph* copy_graph(const Graph& graph) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  auto copy = std::make_unique<Graph>(graph);
  copy->id = s.next_id++;
  std::sort(copy->touched.begin(), copy->touched.end());
  copy->touched.erase(std::unique(copy->touched.begin(), copy->touched.end()), copy->touched.end());
  s.graphs.insert(copy.get());
  return copy.release();
}

bool is_graph(const Graph* graph) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return s.graphs.contains(graph);
}

Status destroy_graph(Graph* graph) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (s.graphs.erase(graph) == 0) return Status::invalid_value;
  const std::unique_ptr<Graph> owner(graph);
  return Status::success;
}

Status add_node(Graph* graph, GraphNode node, GraphNode** made) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (!s.graphs.contains(graph)) return Status::invalid_value;
  for (const GraphNode* const needed : node.needs) {
    const auto is_it = [&](const auto& other) { return other.get() == needed; };
    if (std::none_of(graph->nodes.begin(), graph->nodes.end(), is_it)) return Status::invalid_value;
  }
  graph->nodes.push_back(std::make_shared<GraphNode>(std::move(node)));
  *made = graph->nodes.back().get();
  return Status::success;
}

// A graph launched into a stream that captures becomes part of the other graph.
Status launch_graph(const Graph& graph, const Stream* stream) {
  Status status = Status::success;
  for (const auto& node : graph.nodes) {
    if (node->work) {
      status = submit(stream, node->kind, [node] {
        node->work();
        return Status::success;
      });
    } else {
      submit_kernel(stream);
    }
    if (status != Status::success) return status;
  }
  // After the copies: which came first is not known, and a kernel's bytes are the uncertain ones.
  if (graph.touches_everything) touched_everything();
  touched(graph.touched, "a CUDA graph");
  return Status::success;
}

}  // namespace vramfit::phantom
