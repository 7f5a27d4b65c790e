// FSDP2 of torch 2.11 as far as memory goes: groups of parameters that are gathered before their module runs and
// reduced after its backward. It has no precomputed list of instructions: its hooks determine the order while the
// module runs. Copy-in and all-gather have a stream, the reductions another; both wait for each other and for the
// compute stream by events (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "job/job.h"
#include "model_specs/graph.h"
#include "program/pytorch/calls/torch.h"
#include "program/pytorch/wrappers/wrapper.h"
#include "program/stages/trainable.h"

namespace vramfit::eager {

/// A parameter of a group: whole rows, sharded along dim 0 and padded to equal shards. Trained is rank 0's, the
/// largest.
struct ShardedParameter {
  Trained trained;                    // if it is: the optimizer has no other
  std::vector<Tensor> gathered = {};  // itself, of an NF4Tensor behind its scales
  Dtype dtype = Dtype::f32;           // of the shard
  Tensor gradient_on_host = {};       // with offload: what was reduced
  bool is_trained = true;
  const Quantization* format = nullptr;  // of a matrix in 4 bits: a column of numbers of `dtype`, several codes in each
  std::vector<Tensor> scales = {};       // of such a one: whole on each rank
  /// Of torchao's NF4Tensor in place of that: bytes of each rank's scales, and of theirs, which are gathered before the
  /// codes (fsdp_pre_all_gather).
  std::vector<std::int64_t> scale_bytes = {};
};

struct ParameterGroup {
  std::string name;
  std::vector<ShardedParameter> parameters;
  bool reshards_after_forward = true;
  bool is_gathered = false, is_prefetched = false;
  Tensor all_gathered;                    // output of the all-gather, until it is copied out
  int all_gather = -1;                    // the token of the latest
  Tensor reduced;                         // the sharded gradients: views of one buffer
  int all_reduce = -1;                    // the token of their sum over replicas; -1: none is under way
  Tensor all_reduced = {};                // what that works on, until backward is over (AllReduceState)
  int converted = -1;                     // the event after they were converted or added up; -1: none
  int left = -1;                          // the event after the copies of gradients to the host; -1: none are under way
  std::vector<int> forward_indices = {};  // in the order in which modules ended their forward
};

class Fsdp2 {
 public:
  /// `gathers`: the stream of copy-ins and all-gathers. Each root has its own (FSDPCommContext).
  Fsdp2(Torch& torch, const Graph& graph, const Job& job, Stream gathers = Stream::all_gather);

  /// The parameters of modules that fully_shard was called with. The index of the group. Groups come in the order in
  /// which the model's modules have them, the root's first: what backward leaves is finished in that order.
  int add_group(std::string name, const std::vector<int>& parameters, bool reshards_after_forward);
  /// Makes a parameter's shard. Labelled with its group's name.
  void load(int group, ShardedParameter& parameter);

  /// A group's parameters as they come from the host, before they are sharded: all of each, one after the other.
  std::vector<Tensor> move_whole(int group);
  /// The same of one parameter. Scales of a quantized one stay.
  Tensor move_whole(int group, ShardedParameter& parameter);

  /// The root's own hooks.
  void begin_forward();
  void end_forward();
  /// The hooks around a group's modules. What pre_forward returns is the input as the module sees it; post_forward puts
  /// the pre-backward hook on its output.
  Tensor pre_forward(int group, Tensor input);
  void post_forward(int group, const Tensor& output);
  /// FSDPModule.unshard() of modules that may never run: on the stream that asks for it.
  void gather_now(int group);
  /// DTensor.full_tensor() of a frozen parameter; nothing while its group is gathered.
  Tensor full_tensor(int group, const ShardedParameter& parameter);
  /// At the end of backward: reduces what is still gathered because its input needs no gradient, and releases what is
  /// still held.
  void finish_backward();
  void zero_gradients();
  /// `update` is called with each parameter whose gradient has been reduced, on the stream of reductions; then what was
  /// reduced is freed.
  void update_in_backward(std::function<void(Trained&)> update) { update_ = std::move(update); }
  /// set_requires_gradient_sync: whether backward reduces gradients, or leaves them whole for a later one to add to.
  void sync_gradients(bool syncs) { syncs_gradients_ = syncs; }

  /// CPUOffloadPolicy: shards, gradients and what the optimizer keeps are in host memory.
  bool offloads() const { return offloads_; }

  std::vector<ParameterGroup>& groups() { return groups_; }

 private:
  std::int64_t whole_elements(int parameter) const;
  void unshard(ParameterGroup& group, Stream stream);
  Accesses cast_shards(const ParameterGroup& group, std::vector<Tensor>& made, Stream stream);
  Accesses fetched_shards(const ParameterGroup& group, std::vector<Tensor>& made, Stream stream);
  void copy_out(ParameterGroup& group);
  void wait_for_unshard(ParameterGroup& group, bool is_forward);
  static void reshard(ParameterGroup& group);
  void pre_backward(ParameterGroup& group);
  void post_backward(ParameterGroup& group);
  void reduce(ParameterGroup& group);
  void move_gradients_to_host(ParameterGroup& group);
  void release_reduce_input();
  void update_reduced(ParameterGroup& group);

  Torch& torch_;
  Stream gathers_;
  std::int64_t ranks_, replicas_;
  bool syncs_gradients_ = true, offloads_, has_torchaos_codes_;
  Dtype compute_, reduce_;
  const Graph& graph_;
  std::vector<HeldParameter> held_;
  std::vector<ParameterGroup> groups_;
  std::vector<int> forward_order_;
  std::function<void(Trained&)> update_;  // empty: none within backward
  Tensor held_all_gathered_;              // of the group before: freed after the next copy-out, so that both overlap
  int held_copied_out_ = -1;              // the event after its copy-out
  Tensor held_reduce_input_;              // of the group before: freed when the next is reduced
  int held_reduced_ = -1;                 // the event after its reduce-scatter
};

}  // namespace vramfit::eager
