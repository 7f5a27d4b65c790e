#include "program/pytorch/autograd.h"

#include <queue>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace vramfit::eager {

namespace {

using NodePointer = std::shared_ptr<Node>;

struct EarlierFirst {
  bool operator()(const NodePointer& a, const NodePointer& b) const { return a->sequence < b->sequence; }
};

class Engine {
 public:
  explicit Engine(Backend& backend) : backend_(backend) {}

  void run(const NodePointer& root, Tensor gradient) {
    count_dependencies(root);
    gradients_[root.get()] = std::move(gradient);
    ready_.push(root);
    while (!ready_.empty()) {
      const NodePointer node = ready_.top();
      ready_.pop();
      evaluate(*node);
    }
  }

 private:
  void count_dependencies(const NodePointer& root) {
    std::unordered_set<Node*> seen{root.get()};
    std::vector<Node*> open{root.get()};
    while (!open.empty()) {
      Node* const node = open.back();
      open.pop_back();
      for (const Edge& edge : node->next) {
        if (edge.parameter >= 0) ++uses_[edge.parameter];
        if (edge.node == nullptr) continue;
        ++dependencies_[edge.node.get()];
        if (seen.insert(edge.node.get()).second) open.push_back(edge.node.get());
      }
    }
  }

  void evaluate(Node& node) {
    Heap& heap = backend_.heap();
    const Scope scope(heap, node.scope);
    const Category outer = std::exchange(heap.values, node.values);
    Tensor gradient = std::move(gradients_[&node]);
    gradients_.erase(&node);
    for (const auto& hook : node.before) hook();
    std::vector<Tensor> results = apply(node, gradient);
    for (std::size_t i = 0; i < results.size(); ++i) {
      const Edge& edge = node.next[i];
      if (!edge.wanted) {
        results[i] = {};
      } else if (edge.sum != Edge::Sum::none || edge.dtype) {
        results[i] = backend_.sum_to(results[i], edge);
      }
    }
    gradient = {};
    node.saved.clear();
    for (const bool is_parameter : {node.parameters_first, !node.parameters_first}) {
      for (std::size_t i = 0; i < results.size(); ++i) {
        if ((node.next[i].parameter >= 0) == is_parameter) pass_on(node.next[i], std::move(results[i]));
      }
    }
    node.next.clear();
    heap.values = outer;
  }

  std::vector<Tensor> apply(Node& node, Tensor& gradient) {
    std::vector<Tensor> saved;
    saved.reserve(node.saved.size());
    for (const Saved& one : node.saved) saved.push_back(backend_.unpack(one));
    for (Tensor& one : node.further) saved.push_back(std::move(one));
    node.further.clear();
    return node.backward(gradient, saved);
  }

  void pass_on(const Edge& edge, Tensor gradient) {
    if (edge.parameter >= 0) return pass_to_parameter(edge.parameter, std::move(gradient));
    if (edge.node == nullptr) return;
    Tensor& buffer = edge.output == 0 ? gradients_[edge.node.get()]
                                      : edge.node->further.at(static_cast<std::size_t>(edge.output) - 1);
    if (buffer.elements == 0) {
      buffer = std::move(gradient);
    } else {
      add_to(buffer, gradient);
    }
    if (--dependencies_[edge.node.get()] == 0) ready_.push(edge.node);
  }

  /// Once the gradients of all its uses are there.
  void pass_to_parameter(int parameter, Tensor gradient) {
    Tensor& buffer = sums_[parameter];
    if (buffer.elements == 0) {
      buffer = std::move(gradient);
    } else {
      add_to(buffer, gradient);
    }
    if (--uses_[parameter] == 0) backend_.accumulate(parameter, std::exchange(buffer, {}));
  }

  /// In place if nobody else reads it.
  void add_to(Tensor& buffer, const Tensor& gradient) {
    Heap& heap = backend_.heap();
    if (!buffer.is_view && !heap.is_shared(buffer)) return heap.run("aten::add_", {reads(gradient), changes(buffer)});
    Tensor sum = heap.make(buffer.elements, buffer.dtype, heap.values, "sum of gradients");
    heap.run("aten::add", {reads(buffer), reads(gradient), writes(sum)});
    buffer = std::move(sum);
  }

  Backend& backend_;
  std::unordered_map<Node*, int> dependencies_;
  std::unordered_map<Node*, Tensor> gradients_;
  std::unordered_map<int, int> uses_;     // of parameters, whose gradients are still to come
  std::unordered_map<int, Tensor> sums_;  // of parameters
  std::priority_queue<NodePointer, std::vector<NodePointer>, EarlierFirst> ready_;
};

}  // namespace

void run_backward(Backend& backend, const std::shared_ptr<Node>& root, Tensor gradient) {
  Engine(backend).run(root, std::move(gradient));
}

}  // namespace vramfit::eager
