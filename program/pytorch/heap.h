// The counted side of a PyTorch program: tensors whose storages are blocks of the ledger.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "model_specs/dtype.h"
#include "program/ledger.h"

namespace vramfit::eager {

struct Node;

/// A tensor as the allocator and autograd see it. Copies share the storage, which is freed with the last of them.
struct Tensor {
  std::shared_ptr<void> storage;  // null: no tensor
  std::int64_t elements = 0;
  Dtype dtype = Dtype::bf16;
  bool is_view = false;  // another shape of a storage that an op made: never added to in place
  bool wants_gradient = false;
  std::shared_ptr<Node> made_by;  // the node of autograd that takes its gradient; null: a leaf
};

/// The same storage without its history: what is saved for backward.
Tensor detached(const Tensor& tensor);

/// Makes tensors in a ledger. Labels are "SCOPE: WHAT"; the scope is the module whose code runs.
class Heap {
 public:
  explicit Heap(LedgerWriter& writer);
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;
  Heap(Heap&&) = delete;
  Heap& operator=(Heap&&) = delete;

  /// On `stream`; a tensor of no elements has no block.
  Tensor make(std::int64_t elements, Dtype dtype, Category category, std::string_view what,
              Stream stream = Stream::compute);
  /// The category of tensors that forward and backward pass on: activations, or logits_and_loss in the loss's region.
  Category values = Category::activations;
  std::string scope;

 private:
  LedgerWriter& writer_;
  // Storages may outlive the ledger (a run ends with its states live); they must not write to it then.
  std::shared_ptr<bool> is_open_;
};

/// Names the module whose code runs until the end of the block.
class Scope {
 public:
  Scope(Heap& heap, std::string name) : heap_(heap), outer_(std::move(heap.scope)) { heap.scope = std::move(name); }
  ~Scope() { heap_.scope = std::move(outer_); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  Scope(Scope&&) = delete;
  Scope& operator=(Scope&&) = delete;

 private:
  Heap& heap_;
  std::string outer_;
};

}  // namespace vramfit::eager
