// PyTorch's autograd as far as memory goes: what nodes keep for backward, the order in which they run, and when their
// gradients and saved tensors are released. Derived from traces of the caching allocator under torch 2.11
// (docs/pytorch-runtimes.md).
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "program/pytorch/walk/heap.h"

namespace vramfit::eager {

class Frame;

/// Stands for a tensor that a checkpoint did not keep and will recompute.
struct Recomputed {
  std::shared_ptr<Frame> frame;
  Tensor tensor;
};

/// Stands for a tensor that was taken elsewhere.
class Absent {
 public:
  Absent() = default;
  Absent(const Absent&) = delete;
  Absent& operator=(const Absent&) = delete;
  Absent(Absent&&) = delete;
  Absent& operator=(Absent&&) = delete;
  virtual ~Absent() = default;
  virtual Tensor bring() = 0;
};

/// A tensor kept for backward: held itself, to be recomputed, or to be brought back.
struct Saved {
  Tensor tensor = {};
  std::shared_ptr<Recomputed> recomputed = {};
  std::shared_ptr<Absent> absent = {};
};

/// Sees every tensor that is saved while it is installed (torch.autograd.graph.saved_tensors_hooks).
class SavedTensorHook {
 public:
  SavedTensorHook() = default;
  SavedTensorHook(const SavedTensorHook&) = delete;
  SavedTensorHook& operator=(const SavedTensorHook&) = delete;
  SavedTensorHook(SavedTensorHook&&) = delete;
  SavedTensorHook& operator=(SavedTensorHook&&) = delete;
  virtual ~SavedTensorHook() = default;
  virtual Saved pack(const Tensor& tensor) = 0;
};

/// Where the gradient of one input of a node goes, and what it is summed to where the input was broadcast.
struct Edge {
  enum class Sum { none, over_rows, over_columns } sum = Sum::none;
  Shared<Node> node;                // the input's maker
  int output = 0;                   // which of its outputs the input is
  int parameter = -1;               // the input is this parameter
  std::optional<Dtype> dtype = {};  // of the input where the gradient comes in a wider one, and is converted last
  std::int64_t elements = 0;        // of the input
  bool is_parameter = false;        // the input is one, whose gradient `node` takes if there is one
  bool wanted = true;               // whether the input, or what it was made from, is trained
};

struct Node {
  static constexpr std::int64_t kLeaf = std::numeric_limits<std::int64_t>::max();  // of a tensor that no node made
  std::int64_t sequence = 0;
  std::string scope;  // labels of backward
  Category values = Category::activations;
  std::vector<Edge> next;
  std::vector<Saved> saved;
  /// Gradients of the inputs, one per edge, from the gradient of the output and the unpacked saved tensors. That of an
  /// edge that isn't wanted is dropped, and need not be made.
  std::function<std::vector<Tensor>(Tensor& gradient, const std::vector<Tensor>& saved)> backward;
  /// Whether parameters get their gradients before other inputs do. In mm a weight reaches its node through a
  /// transposition that was recorded before the input's view, and so runs after it; in addmm it is the other way
  /// around.
  bool parameters_first = false;
  std::vector<std::function<void()>> before;      // hooks on the output's gradient
  std::vector<std::function<void()>> after = {};  // hooks behind its own work, which may be added while it runs
  /// Where it runs, and gradients that come from several places are summed (engine.cpp: InputBuffer::add).
  Stream stream = Stream::compute;
  /// Gradients of its further outputs, which `backward` gets behind the saved tensors.
  std::vector<Tensor> further = {};
  // While backward runs: the gradient of the output as far as it has come, and what is still to come.
  Tensor gradient = {};
  int awaited = 0;
};

/// What the autograd engine needs from the library that it runs on.
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  Backend(Backend&&) = delete;
  Backend& operator=(Backend&&) = delete;
  virtual ~Backend() = default;
  virtual Heap& heap() = 0;
  virtual Tensor unpack(const Saved& saved) = 0;
  virtual Tensor sum_to(const Tensor& gradient, const Edge& edge) = 0;
  /// The gradient of `parameter`, taken over as its .grad.
  virtual void accumulate(int parameter, Tensor gradient) = 0;
  /// The node that backward runs; otherwise nothing.
  Node* running = nullptr;
};

/// Runs all nodes that lead to `root`, the most recently created first. A node's incoming gradients live until the node
/// has returned, and so do its saved tensors (recomputed ones only until its own work is done). Then its results are
/// added to existing gradients: in place if the storage has no other owner and is not a view, otherwise into a new
/// tensor.
void run_backward(Backend& backend, const Shared<Node>& root, Tensor gradient);

}  // namespace vramfit::eager
