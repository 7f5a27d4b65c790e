// FSDP1 (FullyShardedDataParallel) of torch 2.11 as far as memory goes, with use_orig_params: a unit's parameters are
// views of one flat tensor, of which each rank has a part. Casts of parts, gathers and reductions have a stream each
// (torch/distributed/fsdp/_runtime_utils.py: _init_streams), and so has what they allocate. Sums over replicas have
// one more, which goes by the name to_host here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "job/job.h"
#include "model_specs/graph.h"
#include "program/pytorch/calls/torch.h"
#include "program/pytorch/wrappers/wrapper.h"
#include "program/stages/trainable.h"

namespace vramfit::eager {

/// A parameter in its unit's flat tensor, and what of it the rank has.
struct FlatParameter {
  int parameter = -1;
  std::int64_t begin = 0, elements = 0;
  Trained trained;                  // of no elements: the rank has nothing of it
  std::vector<Tensor> scales = {};  // of a quantized one, whole on each rank; what is flat are its codes
};

/// Where parameters lie in a flat tensor (_flat_param.py: _init_flat_param_and_metadata): each at a multiple of 16
/// bytes of what they are gathered in, and all of it divisible by the ranks.
struct FlatLayout {
  std::vector<std::int64_t> begins;
  std::vector<std::int64_t> padding;  // elements of each, between parameters and at the end
  std::int64_t elements = 0;          // with padding
};
FlatLayout flat_layout(const std::vector<std::int64_t>& parameters, Dtype gathered, std::int64_t ranks);

/// What one call of FullyShardedDataParallel is given: parameters that are all trained or all frozen.
struct FlatUnitParts {
  std::string name;
  std::vector<int> parameters;
  bool is_root = false, reshards_after_forward = true;
};

/// What it wraps but for what others in it do.
struct FlatUnit {
  FlatUnitParts parts;
  std::vector<FlatParameter> parameters;
  FlatLayout layout;
  bool is_trained = true;
  Dtype storage = Dtype::f32;
  Dtype loaded = Dtype::f32;  // what it is joined and sharded in, before its shard is made one of `storage`
  Tensor shard;               // in the dtype of storage; offloaded: in host memory
  Tensor whole;               // gathered, in the dtype of computing
  Tensor gradient;            // of the shard
  Tensor on_host;             // the same, offloaded
  Tensor whole_gradient;      // of micro-batches that reduce nothing
  Tensor as_loaded = {};  // the shard as it was loaded, which parameters are views of until the unit is first resharded
  bool needs_gather = false;
  bool is_gathered_ahead = false;
  bool is_seen_whole = false;    // whether its parameters, looked at from outside, are the gathered ones
  bool awaits_gradient = false;  // its backward has begun and its gradient isn't there
  int forward_index = -1;        // in the order in which units ended their forward
  int place = -1;                // in the order in which units began their first one
  bool awaits_forward = false;   // this micro-batch's
};

class Fsdp1 {
 public:
  Fsdp1(Torch& torch, const Graph& graph, const Job& job);

  /// The index of the unit. They come in the order in which the model's modules have them: the root's first, and one
  /// that has others within itself before these.
  int add_unit(FlatUnitParts parts);
  /// Makes a unit's shard, of parameters that come from the host, and are broadcast by rank 0 (sync_module_states).
  void load(int unit);

  bool offloads() const { return offloads_; }
  /// Where the optimizer has a unit's gradient.
  const Tensor& gradient_of(const FlatUnit& unit) const { return offloads_ ? unit.on_host : unit.gradient; }

  /// What the root does before its arguments are converted.
  void begin_forward();
  /// `input`: what the unit's module is called with.
  void pre_forward(int unit, const Tensor& input);
  /// Puts the hook before the unit's backward on its output.
  void post_forward(int unit, const Tensor& output);
  void finish_backward();
  void zero_gradients();
  void sync_gradients(bool syncs) { syncs_gradients_ = syncs; }

  std::vector<FlatUnit>& units() { return units_; }
  const std::vector<FlatUnit>& units() const { return units_; }

 private:
  Heap& heap() { return torch_.heap(); }
  bool is_cast(const FlatUnit& unit) const { return compute_ != unit.storage; }
  std::int64_t flat_elements(int parameter) const;
  std::int64_t shard_elements(const FlatUnit& unit) const { return unit.layout.elements / ranks_; }
  void initialize();
  void gather(FlatUnit& unit);
  Tensor sent(const FlatUnit& unit);
  void release(FlatUnit& unit);
  void reshard(FlatUnit& unit, bool frees);
  bool frees_in_backward(const FlatUnit& unit) const { return syncs_gradients_ || unit.parts.reshards_after_forward; }
  void see_parameters(int unit);
  void pre_backward(int unit);
  void prefetch_before(const FlatUnit& unit);
  void prefetch_behind(int unit);
  void gather_ahead(FlatUnit& unit);
  void end_backward(FlatUnit& unit);
  void post_backward(FlatUnit& unit, Tensor gradient);
  void make_gradient_views(const FlatUnit& unit);
  void reduce(FlatUnit& unit, Tensor gradient);
  void move_to_host(FlatUnit& unit);
  Tensor joined(const FlatUnit& unit, const std::vector<Tensor>& gradients);

  Torch& torch_;
  const Graph& graph_;
  std::int64_t ranks_, replicas_;
  bool offloads_;
  Dtype compute_, reduce_;
  BackwardPrefetch prefetch_;
  bool gathers_ahead_in_forward_;
  bool has_narrow_adapters_;  // as TRL makes those over 4 bits (sft_trainer.py: __init__)
  bool syncs_gradients_ = true, is_initialized_ = false, are_zeroed_ = false, has_run_ = false;
  std::vector<HeldParameter> held_;  // by parameter
  std::vector<FlatUnit> units_;
  std::vector<int> forward_order_, first_order_;  // in which they ended, and in which they began their first forward
};

}  // namespace vramfit::eager
