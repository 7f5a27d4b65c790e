// FSDP1 (FullyShardedDataParallel) of torch 2.11 as far as memory goes, with use_orig_params: a unit's parameters are
// views of one flat tensor, of which each rank has a part. Casts of parts, gathers and reductions have a stream each
// (torch/distributed/fsdp/_runtime_utils.py: _init_streams), and so has what they allocate.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "job/job.h"
#include "model_specs/graph.h"
#include "program/pytorch/torch.h"
#include "program/pytorch/wrapper.h"

namespace vramfit::eager {

/// A parameter in its unit's flat tensor, and what of it the rank has.
struct FlatParameter {
  int parameter = -1;
  std::int64_t begin = 0, elements = 0;
  Trained trained;  // of no elements: the rank has nothing of it
};

/// Where parameters lie in a flat tensor (_flat_param.py: _init_flat_param_and_metadata): each at a multiple of 16
/// bytes of what they are gathered in, and all of it divisible by the ranks.
struct FlatLayout {
  std::vector<std::int64_t> begins;
  std::vector<std::int64_t> padding;  // elements of each, between parameters and at the end
  std::int64_t elements = 0;          // with padding
};
FlatLayout flat_layout(const std::vector<std::int64_t>& parameters, Dtype gathered, std::int64_t ranks);

/// What one call of FullyShardedDataParallel wraps but for what others in it do.
struct FlatUnit {
  std::string name;
  std::vector<FlatParameter> parameters;
  FlatLayout layout;
  bool is_root = false, reshards_after_forward = true;
  Tensor shard;           // in the dtype of storage
  Tensor whole;           // gathered, in the dtype of computing
  Tensor gradient;        // of the shard
  Tensor whole_gradient;  // of micro-batches that reduce nothing
  bool needs_gather = false;
  int forward_index = -1;  // in the order in which units ended their forward
};

class Fsdp1 {
 public:
  Fsdp1(Torch& torch, const Graph& graph, const Job& job);

  /// The index of the unit. They come in the order in which the model's modules have them, the root's first.
  int add_unit(std::string name, const std::vector<int>& parameters, bool is_root, bool reshards_after_forward);
  /// Makes a unit's shard, of parameters that come from the host, and are broadcast by rank 0 (sync_module_states).
  void load(int unit);

  /// What the root does before its arguments are converted.
  void begin_forward();
  void pre_forward(int unit);
  /// Puts the hook before the unit's backward on its output.
  void post_forward(int unit, const Tensor& output);
  void finish_backward();
  void zero_gradients();
  void sync_gradients(bool syncs) { syncs_gradients_ = syncs; }

  std::vector<FlatUnit>& units() { return units_; }
  const std::vector<FlatUnit>& units() const { return units_; }

 private:
  Heap& heap() { return torch_.heap(); }
  bool is_cast() const { return compute_ != storage_; }
  std::int64_t shard_elements(const FlatUnit& unit) const { return unit.layout.elements / ranks_; }
  void initialize();
  void gather(FlatUnit& unit);
  void release(FlatUnit& unit);
  void see_parameters(int unit);
  void pre_backward(int unit);
  void prefetch_before(const FlatUnit& unit);
  void post_backward(FlatUnit& unit, Tensor gradient);
  void make_gradient_views(const FlatUnit& unit);
  void reduce(FlatUnit& unit, Tensor gradient);
  Tensor joined(const FlatUnit& unit, const std::vector<Tensor>& gradients);

  Torch& torch_;
  const Graph& graph_;
  std::int64_t ranks_;
  Dtype compute_, storage_, reduce_;
  BackwardPrefetch prefetch_;
  bool syncs_gradients_ = true, is_initialized_ = false, are_zeroed_ = false;
  std::vector<FlatUnit> units_;
  std::vector<int> forward_order_;
};

}  // namespace vramfit::eager
