#include "program/pytorch/walk/autograd.h"

#include <queue>
#include <utility>
#include <vector>

namespace vramfit::eager {

namespace {

using NodePointer = Shared<Node>;

struct EarlierFirst {
  bool operator()(const NodePointer& a, const NodePointer& b) const { return a->sequence < b->sequence; }
};

class Engine {
 public:
  explicit Engine(Backend& backend) : backend_(backend) {}

  void run(const NodePointer& root, Tensor gradient) {
    count_uses(*root);
    root->gradient = std::move(gradient);
    ready_.push(root);
    while (!ready_.empty()) {
      const NodePointer node = ready_.top();
      ready_.pop();
      evaluate(*node);
    }
  }

 private:
  void count_uses(Node& root) {
    std::vector<Node*> open{&root};
    while (!open.empty()) {
      Node* const node = open.back();
      open.pop_back();
      for (const Edge& edge : node->next) {
        if (edge.parameter >= 0) ++sum_of(edge.parameter).awaited;
        if (edge.node != nullptr && edge.node->awaited++ == 0) open.push_back(edge.node.get());
      }
    }
  }

  void evaluate(Node& node) {
    Heap& heap = backend_.heap();
    const Scope scope(heap, node.scope);
    const Category outer = std::exchange(heap.values, node.values);
    Tensor gradient = std::move(node.gradient);
    for (const auto& hook : node.before) hook();
    Node* const around = std::exchange(backend_.running, &node);
    std::vector<Tensor> further = std::move(node.further);
    node.further.clear();
    std::vector<Tensor> results = apply(node, gradient, further);
    backend_.running = around;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const Edge& edge = node.next[i];
      if (edge.wanted && (edge.sum != Edge::Sum::none || edge.dtype)) {
        results[i] = backend_.sum_to(results[i], edge);
        if (edge.sum != Edge::Sum::none && edge.dtype) results[i] = backend_.sum_to(results[i], edge);  // converted
      }
    }
    for (const auto& hook : node.after) hook();
    gradient = {};
    further.clear();
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!node.next[i].wanted) results[i] = {};
    }
    node.saved.clear();
    for (const bool is_parameter : {node.parameters_first, !node.parameters_first}) {
      for (std::size_t i = 0; i < results.size(); ++i) {
        if ((node.next[i].parameter >= 0) == is_parameter) pass_on(node.next[i], std::move(results[i]));
      }
    }
    node.next.clear();
    heap.values = outer;
  }

  std::vector<Tensor> apply(Node& node, Tensor& gradient, const std::vector<Tensor>& further) {
    std::vector<Tensor> saved;
    saved.reserve(node.saved.size() + further.size());
    for (const Saved& one : node.saved) saved.push_back(backend_.unpack(one));
    saved.insert(saved.end(), further.begin(), further.end());
    return node.backward(gradient, saved);
  }

  void pass_on(const Edge& edge, Tensor gradient) {
    if (edge.parameter >= 0) return pass_to_parameter(edge.parameter, std::move(gradient));
    if (edge.node == nullptr) return;
    Tensor& buffer =
        edge.output == 0 ? edge.node->gradient : edge.node->further.at(static_cast<std::size_t>(edge.output) - 1);
    if (buffer.elements == 0) {
      buffer = std::move(gradient);
    } else {
      add_to(buffer, gradient, edge.node->stream);
    }
    if (--edge.node->awaited == 0) ready_.push(edge.node);
  }

  /// The gradient of a parameter, of which some of its uses are still to come.
  struct Sum {
    int awaited = 0;
    Tensor gradient;
  };
  Sum& sum_of(int parameter) {
    const auto index = static_cast<std::size_t>(parameter);
    if (sums_.size() <= index) sums_.resize(index + 1);
    return sums_[index];
  }

  void pass_to_parameter(int parameter, Tensor gradient) {
    Sum& sum = sum_of(parameter);
    if (sum.gradient.elements == 0) {
      sum.gradient = std::move(gradient);
    } else {
      add_to(sum.gradient, gradient, Stream::compute);
      gradient = {};
    }
    if (--sum.awaited == 0) backend_.accumulate(parameter, std::exchange(sum.gradient, {}));
  }

  /// In place if nobody else reads it.
  void add_to(Tensor& buffer, const Tensor& gradient, Stream stream) {
    Heap& heap = backend_.heap();
    const bool is_beside = stream != Stream::compute;
    if (is_beside) heap.wait_for_stream(stream, Stream::compute);
    if (!buffer.is_view && !heap.is_shared(buffer)) {
      heap.run("aten::add_", {reads(gradient), changes(buffer)}, stream);
    } else {
      Tensor sum = heap.make(buffer.elements, buffer.dtype, heap.values, "sum of gradients", stream);
      heap.run("aten::add", {reads(buffer), reads(gradient), writes(sum)}, stream);
      buffer = std::move(sum);
    }
    if (is_beside) heap.wait_for_stream(Stream::compute, stream);  // before its pool has the gradients again
  }

  Backend& backend_;
  std::vector<Sum> sums_;  // by parameter
  std::priority_queue<NodePointer, std::vector<NodePointer>, EarlierFirst> ready_;
};

}  // namespace

void run_backward(Backend& backend, const Shared<Node>& root, Tensor gradient) {
  Engine(backend).run(root, std::move(gradient));
}

}  // namespace vramfit::eager
