// What a walk of PyTorch's code writes down: tensors whose storages are buffers of a program, and the calls that work
// on them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "model_specs/dtype.h"
#include "program/lowering/writer.h"
#include "program/pytorch/walk/accesses.h"
#include "program/pytorch/walk/shared.h"
#include "program/readers/least_reserved.h"

namespace vramfit::eager {

struct Node;

/// The main list of a program while it is written. Outlives all tensors.
struct Recording {
  program::Writer writer;
  program::Labels labels;
  std::vector<program::View> views;  // of tensors that are parts of a storage
  int tokens = 0;
  bool calls = true;  // false: what is computed, sent and waited for is left out, and allocations alone are written
  std::optional<Bytes> reserves_below = {};  // what writes more ends with ReservesTooMuch
  ReservedSoFar reserved = {};               // then
};

/// A tensor as the allocator and autograd see it. Copies share the storage, which is freed with the last of them.
struct Tensor {
  program::Held storage;  // empty: no tensor
  std::int64_t elements = 0;
  Dtype dtype = Dtype::bf16;
  bool is_view = false;  // another shape of a storage that an op made: never added to in place
  bool wants_gradient = false;
  Shared<Node> made_by;  // the node of autograd that takes its gradient; null: a leaf
  int output = 0;        // which of the node's outputs it is
  int part = -1;         // which part of its storage it is, in Recording::views; -1: all of it
};

/// The same storage without its history: what is saved for backward.
Tensor detached(const Tensor& tensor);

/// Bytes of the numbers in it, whatever its storage has beyond them (PyTorch's pool of pinned memory rounds up).
inline double bytes_in(const Tensor& tensor) {
  return static_cast<double>((tensor.elements * dtype_bytes(tensor.dtype)).n);
}

/// What a call does with a tensor. Accesses of no tensor are left out.
inline program::Access access_of(const Tensor& tensor, program::How how) {
  return {.buffer = tensor.storage.buffer(), .how = how, .view = tensor.part};
}
inline program::Access reads(const Tensor& tensor) { return access_of(tensor, program::How::read); }
inline program::Access writes(const Tensor& tensor) { return access_of(tensor, program::How::write); }
inline program::Access changes(const Tensor& tensor) { return access_of(tensor, program::How::add); }

/// Makes tensors in a recording. Labels are "SCOPE: WHAT"; the scope is the module whose code runs.
class Heap {
 public:
  explicit Heap(Recording& recording) : recording_(recording) {}

  /// On `stream`, where it isn't the current one; a tensor of no elements has no buffer. A buffer that was freed is
  /// taken again for what has the same label and size, so that all steps but the first name the same ones.
  Tensor make(std::int64_t elements, Dtype dtype, Category category, std::string_view what,
              Stream stream = Stream::compute);
  /// The same outside the allocator, in memory that moves to whoever touches it (cudaMallocManaged).
  Tensor make_managed(std::int64_t elements, Dtype dtype, Category category, std::string_view what);
  /// The same in host memory; page-locked by PyTorch's pool (pinned_by_pool), or as any other.
  Tensor make_pinned(std::int64_t elements, Dtype dtype, Category category, std::string_view what);
  Tensor make_on_host(std::int64_t elements, Dtype dtype, Category category, std::string_view what);
  /// narrow(0, first, elements) of a flat tensor, which keeps all of its storage.
  Tensor narrow(const Tensor& flat, std::int64_t first, std::int64_t elements);
  /// Nothing frees it: it belongs to whoever it was given to (a loss that is kept for a log).
  void keep(Tensor tensor);

  void empty_cache() { recording_.writer.write(program::EmptyCache{}); }

  /// One call of a library's function: one kernel that reads and writes once what it touches, or what `work` says.
  void run(std::string_view name, const Accesses& accesses, Stream stream = Stream::compute);
  void run(std::string_view name, const Accesses& accesses, const Work& work, Stream stream = Stream::compute);
  /// A copy between the card and its host, of as much as `to` holds. The driver copies pageable memory by way of pinned
  /// buffers of its own, with the host's processor, which waits: before it fills them, and until they have arrived
  /// (CUDA Runtime API, API synchronization behavior: Memcpy).
  void copy_over_link(const Tensor& from, const Tensor& to, Stream stream);
  /// The bytes of what is touched; what is changed is read and written.
  double bytes_of(const Accesses& accesses) const;
  /// Over what is accessed first, which holds the whole data; `part`: of each rank, if not all of it. The
  /// token to wait for.
  int start(program::Collective collective, program::Axis axis, const Accesses& accesses, Stream stream,
            Bytes part = {});
  /// A token for all that `stream` has been given so far.
  int record(Stream stream);
  void wait(int token, Stream stream);
  /// `waiting` goes on once `stream` has done all that it has been given so far.
  void wait_for_stream(Stream waiting, Stream stream) { wait(record(stream), waiting); }

  /// Whether another tensor shares its storage.
  bool is_shared(const Tensor& tensor) const { return recording_.writer.owners(tensor.storage.buffer()) > 1; }

  /// The category of tensors that forward and backward pass on: activations, or logits_and_loss in the loss's region.
  Category values = Category::activations;
  std::string scope;
  /// Where what names the compute stream is made and runs (torch.cuda.stream).
  Stream current = Stream::compute;

 private:
  Stream at(Stream stream) const { return stream == Stream::compute ? current : stream; }
  program::Range range_of(const Accesses& accesses);
  Bytes size_of(const program::Access& access) const;
  bool is_pageable(const Tensor& tensor) const;
  /// What the host's processor does for a copy of pageable memory.
  void stage(const Tensor& pageable);
  /// A tensor with a storage like `buffer`, whose label is made of `what`.
  Tensor stored(std::int64_t elements, Dtype dtype, program::Buffer buffer, std::string_view what);
  /// Those of one label. There may be tens of thousands: inputs of all micro-batches of a step.
  struct Labelled {
    std::vector<int> buffers;
    std::optional<std::size_t> all_held = {};  // all of them were when buffers had been let go of so many times
  };
  /// The first of them that is free and like `wanted`; -1: none.
  int free_one(Labelled& among, const program::Buffer& wanted) const;
  void keep_below_limit();

  Recording& recording_;
  std::vector<Labelled> buffers_;                                       // by label
  std::map<std::tuple<std::int64_t, std::int64_t, Dtype>, int> parts_;  // numbers of views
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
