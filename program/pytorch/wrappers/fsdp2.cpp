#include "program/pytorch/wrappers/fsdp2.h"

#include <algorithm>
#include <utility>

#include "base/numbers/index.h"
#include "program/pytorch/calls/kernels.h"
#include "program/pytorch/calls/nf4.h"
#include "program/stages/offload.h"

namespace vramfit::eager {

namespace {

/// What of a group takes part: all-gathers have all of it, reductions what is trained.
enum class Part { all, cast, trained };

bool has(const ShardedParameter& p, Part part, Dtype compute) {
  return part == Part::all || (part == Part::cast ? p.dtype != compute : p.is_trained);
}

std::vector<std::int64_t> chunk_bytes(const ParameterGroup& group, Part part, Dtype dtype) {
  std::vector<std::int64_t> bytes;
  for (const ShardedParameter& p : group.parameters) {
    if (part == Part::all) bytes.insert(bytes.end(), p.scale_bytes.begin(), p.scale_bytes.end());
    if (has(p, part, dtype)) bytes.push_back((p.trained.elements * dtype_bytes(dtype)).n);
  }
  return bytes;
}

/// What copies write.
Accesses gathered_of(const ParameterGroup& group) {
  Accesses accesses;
  for (const ShardedParameter& p : group.parameters) {
    for (const Tensor& part : p.gathered) accesses.push_back(writes(part));
  }
  return accesses;
}

std::int64_t shard_elements(const ParameterGroup& group, Part part, Dtype compute) {
  std::int64_t sum = 0;
  for (const ShardedParameter& p : group.parameters) {
    if (has(p, part, compute)) sum = checked_add(sum, p.trained.elements);
  }
  return sum;
}

}  // namespace

Fsdp2::Fsdp2(Torch& torch, const Graph& graph, const Job& job, Stream gathers)
    : torch_(torch),
      gathers_(gathers),
      ranks_(job.mesh.shard),
      replicas_(job.mesh.replicate),
      offloads_(offload_of(job).parameters),
      has_torchaos_codes_(job.modeling == Modeling::torchtune),
      compute_(job.precision.compute),
      reduce_(job.precision.reduce),
      graph_(graph),
      held_(held_parameters(graph, job)) {}

/// As it is stored. Codes of 4 bits lie in numbers of the compute dtype (bnb_4bit_quant_storage), so that FSDP2 takes
/// them for weights (bitsandbytes/backends/cuda/ops.py: quantize_4bit).
std::int64_t Fsdp2::whole_elements(int index) const {
  const std::int64_t count = element_count(graph_.parameters[at(index)]);
  if (held_[at(index)].quantization == nullptr) return count;
  return (count + 1) / (2 * dtype_bytes(compute_).n);
}

int Fsdp2::add_group(std::string name, const std::vector<int>& parameters, bool reshards_after_forward) {
  ParameterGroup group{.name = std::move(name),
                       .parameters = {},
                       .reshards_after_forward = reshards_after_forward,
                       .all_gathered = {},
                       .reduced = {}};
  for (const int index : parameters) {
    const Parameter& parameter = graph_.parameters[at(index)];
    const HeldParameter& held = held_[at(index)];
    Nf4Scales scales;
    if (held.quantization != nullptr && has_torchaos_codes_) scales = nf4_scales_of_rank(parameter, ranks_);
    const std::int64_t count = whole_elements(index),
                       rows = held.quantization != nullptr ? count : parameter.shape.front();
    const std::int64_t elements = rows == 0 ? 0 : checked_mul(ceil_div(rows, ranks_), count / rows);
    group.parameters.push_back({.trained = {.parameter = index,
                                            .name = parameter.name,
                                            .elements = elements,
                                            .value = {},
                                            .exp_avg = {},
                                            .exp_avg_sq = {},
                                            .step = {},
                                            .columns = parameter.shape.size() == 2 ? parameter.shape.back() : 0},
                                .dtype = held.quantization != nullptr ? compute_ : held.dtype,
                                .gradient_on_host = {},
                                .is_trained = held.trainable,
                                .format = held.quantization,
                                .scale_bytes = std::move(scales)});
  }
  groups_.push_back(std::move(group));
  return static_cast<int>(groups_.size()) - 1;
}

/// What is copied into the all-gather's output, in the compute dtype: one flat copy of the shards that have another.
Accesses Fsdp2::cast_shards(const ParameterGroup& group, std::vector<Tensor>& made, Stream stream) {
  Heap& heap = torch_.heap();
  Accesses cast, copied;
  for (const ShardedParameter& p : group.parameters) {
    (has(p, Part::cast, compute_) ? cast : copied).push_back(reads(p.trained.value));
  }
  made.push_back(heap.make(shard_elements(group, Part::cast, compute_), compute_, Category::communication,
                           "all-gather input", stream));
  if (cast.empty()) return copied;
  cast.push_back(writes(made.back()));
  heap.run("aten::_foreach_copy_", cast, stream);
  copied.push_back(reads(made.back()));
  return copied;
}

/// The same of shards in host memory, which come to the card one after the other (_fsdp_param.py: all_gather_inputs).
Accesses Fsdp2::fetched_shards(const ParameterGroup& group, std::vector<Tensor>& made, Stream stream) {
  Heap& heap = torch_.heap();
  const auto make = [&](const ShardedParameter& p, Dtype dtype, const char* what) {
    return heap.make(p.trained.elements, dtype, Category::communication, what + (" of " + p.trained.name), stream);
  };
  Accesses copied;
  for (const ShardedParameter& p : group.parameters) {
    Tensor shard = make(p, p.dtype, "shard");
    heap.copy_over_link(p.trained.value, shard, stream);
    if (has(p, Part::cast, compute_)) {
      Tensor cast = make(p, compute_, "all-gather input");
      heap.run("aten::_to_copy", {reads(shard), writes(cast)}, stream);
      shard = std::move(cast);
    }
    copied.push_back(reads(shard));
    made.push_back(std::move(shard));
  }
  return copied;
}

/// Copy-in and all-gather have their own stream; copies of the shards in the compute dtype live until the collective is
/// issued. Shards on the card that have it already are copied into the output at once.
void Fsdp2::unshard(ParameterGroup& group, Stream stream) {
  if (group.is_prefetched || group.is_gathered) return;
  const Scope scope(torch_.heap(), group.name);
  Heap& heap = torch_.heap();
  std::vector<Tensor> made;
  Accesses copied = offloads_ ? fetched_shards(group, made, stream) : cast_shards(group, made, stream);
  std::int64_t bytes = 0;
  for (const std::int64_t chunk : chunk_bytes(group, Part::all, compute_)) bytes += chunk;
  group.all_gathered =
      heap.make(checked_mul(bytes, ranks_), Dtype::u8, Category::communication, "all-gather output", stream);
  copied.push_back({group.all_gathered.storage.buffer(), program::How::write_part});
  heap.run("fsdp::all_gather_copy_in", copied, stream);
  group.all_gather = heap.start(program::Collective::all_gather, program::Axis::shard, {changes(group.all_gathered)},
                                stream, Bytes{bytes});
  group.is_prefetched = true;
}

void Fsdp2::copy_out(ParameterGroup& group) {
  Heap& heap = torch_.heap();
  heap.wait(group.all_gather, Stream::compute);
  for (ShardedParameter& p : group.parameters) {
    const auto add = [&](std::int64_t count, Dtype dtype, const char* what) {
      p.gathered.push_back(
          heap.make(checked_mul(count, ranks_), dtype, Category::unsharded_parameters, what + p.trained.name));
    };
    for (const std::int64_t bytes : p.scale_bytes) add(bytes, Dtype::u8, "gathered scales of ");
    add(p.trained.elements, compute_, "gathered ");
    torch_.set_parameter(p.trained.parameter, p.gathered.back(), p.is_trained);
  }
  const Tensor table = heap.make(split_copy_table(chunk_bytes(group, Part::all, compute_), ranks_, torch_.device()).n,
                                 Dtype::u8, Category::temporaries, "copy-out table");
  Accesses accesses = gathered_of(group);
  accesses.push_back(reads(group.all_gathered));
  heap.run("fsdp::split_with_sizes_copy", accesses);
}

/// In forward the all-gather's output is kept until the next group is copied out.
void Fsdp2::wait_for_unshard(ParameterGroup& group, bool is_forward) {
  if (!group.is_prefetched) return;
  Tensor before;
  if (is_forward) before = std::exchange(held_all_gathered_, {});
  const Scope scope(torch_.heap(), group.name);
  if (before.storage) torch_.heap().wait(held_copied_out_, gathers_);
  copy_out(group);
  Tensor all_gathered = std::exchange(group.all_gathered, {});
  if (is_forward) {
    held_all_gathered_ = std::move(all_gathered);
    held_copied_out_ = torch_.heap().record(Stream::compute);
  } else {
    torch_.heap().wait_for_stream(gathers_, Stream::compute);
  }
  group.is_gathered = true;
  group.is_prefetched = false;
}

void Fsdp2::reshard(ParameterGroup& group) {
  for (ShardedParameter& p : group.parameters) p.gathered.clear();
  group.is_gathered = false;
}

/// Gathers wait for the optimizer, and so do copies of gradients to where it has read others.
void Fsdp2::begin_forward() {
  torch_.heap().wait_for_stream(gathers_, Stream::compute);
  if (!offloads_) return;
  for (const Stream stream : {gathers_, Stream::reduce_scatter}) {
    torch_.heap().wait_for_stream(stream, Stream::host);
  }
}

void Fsdp2::end_forward() {
  if (!held_all_gathered_.storage) return;
  torch_.heap().wait(held_copied_out_, gathers_);
  held_all_gathered_ = {};
}

Tensor Fsdp2::pre_forward(int g, Tensor input) {
  ParameterGroup& group = groups_[at(g)];
  unshard(group, gathers_);
  wait_for_unshard(group, true);
  if (!input.wants_gradient) return input;
  return torch_.pass_through(std::move(input), [this, g] { post_backward(groups_[at(g)]); });
}

void Fsdp2::post_forward(int g, const Tensor& output) {
  ParameterGroup& group = groups_[at(g)];
  if (group.reshards_after_forward) reshard(group);
  group.forward_indices.push_back(static_cast<int>(forward_order_.size()));
  forward_order_.push_back(g);
  if (output.made_by) output.made_by->before.emplace_back([this, g] { pre_backward(groups_[at(g)]); });
}

/// Gathers this group if necessary, then starts the gather of the group that ran before it in forward.
void Fsdp2::pre_backward(ParameterGroup& group) {
  unshard(group, gathers_);
  wait_for_unshard(group, false);
  if (group.forward_indices.empty()) return;
  const int before = group.forward_indices.back() - 1;
  group.forward_indices.pop_back();
  if (before >= 0) unshard(groups_[at(forward_order_[at(before)])], gathers_);
}

/// The gradients in the compute dtype are copied into one buffer of the reduce dtype and released, except for the last,
/// which a local variable of the copying function keeps. The reduced shards of all parameters are one buffer on another
/// stream.
void Fsdp2::post_backward(ParameterGroup& group) {
  Heap& heap = torch_.heap();
  const Scope scope(heap, group.name);
  if (!syncs_gradients_) return reshard(group);
  std::vector<Tensor> gradients;
  for (const ShardedParameter& p : group.parameters) {
    if (!p.is_trained) continue;
    Tensor gradient = torch_.take_gradient(p.trained.parameter);
    if (gradient.storage) gradients.push_back(std::move(gradient));  // other uses are still to come
  }
  reshard(group);
  if (gradients.empty()) return;
  release_reduce_input();
  held_reduce_input_ = heap.make(checked_mul(shard_elements(group, Part::trained, compute_), ranks_), reduce_,
                                 Category::communication, "reduce-scatter input");
  {
    const Tensor table = heap.make(chunk_cat_table(chunk_bytes(group, Part::trained, reduce_)).n, Dtype::u8,
                                   Category::temporaries, "copy-in table");
    Accesses accesses{writes(held_reduce_input_)};
    for (const Tensor& gradient : gradients) accesses.push_back(reads(gradient));
    heap.run("fsdp::chunk_cat", accesses);
  }
  const Tensor last = gradients.back();
  gradients.clear();
  reduce(group);
}

/// NCCL runs the reduce-scatter on its own stream's order, so that what follows there waits for it. What is reduced in
/// another dtype than the shards have is converted there, and added to what an earlier micro-batch left.
void Fsdp2::reduce(ParameterGroup& group) {
  Heap& heap = torch_.heap();
  heap.wait_for_stream(Stream::reduce_scatter, Stream::compute);
  const std::int64_t elements = shard_elements(group, Part::trained, compute_);
  const Dtype dtype = std::ranges::find(group.parameters, true, &ShardedParameter::is_trained)->dtype;
  const bool is_converted = reduce_ != dtype;
  const Tensor before = group.reduced;
  group.reduced = heap.make(elements, reduce_, is_converted ? Category::communication : Category::gradients,
                            is_converted ? "reduce-scatter output" : "sharded gradients", Stream::reduce_scatter);
  const int token = heap.start(program::Collective::reduce_scatter, program::Axis::shard,
                               {reads(held_reduce_input_), writes(group.reduced)}, Stream::reduce_scatter,
                               elements * dtype_bytes(reduce_));
  heap.wait(token, Stream::reduce_scatter);
  held_reduced_ = heap.record(Stream::reduce_scatter);
  if (replicas_ > 1) {
    group.all_reduce = heap.start(program::Collective::all_reduce, program::Axis::replicate, {changes(group.reduced)},
                                  Stream::reduce_scatter);
    group.all_reduced = group.reduced;
  }
  if (is_converted) {
    Tensor converted = heap.make(elements, dtype, Category::gradients, "sharded gradients", Stream::reduce_scatter);
    heap.run("aten::_to_copy", {reads(group.reduced), writes(converted)}, Stream::reduce_scatter);
    group.reduced = std::move(converted);
    group.converted = heap.record(Stream::reduce_scatter);
  }
  if (before.storage) {
    heap.run("aten::add_", {reads(group.reduced), changes(before)}, Stream::reduce_scatter);
    group.reduced = before;
    group.converted = heap.record(Stream::reduce_scatter);
  }
  if (offloads_) move_gradients_to_host(group);
  if (update_) update_reduced(group);
}

/// _fsdp_param_group.py: get_all_gather_streams, outside of forward and backward as FSDP2 knows them.
void Fsdp2::gather_now(int g) {
  unshard(groups_[at(g)], Stream::compute);
  wait_for_unshard(groups_[at(g)], false);
}

/// On the stream that asks for it, and in the dtype of the shards.
Tensor Fsdp2::full_tensor(int g, const ShardedParameter& p) {
  if (groups_[at(g)].is_gathered) return {};
  Heap& heap = torch_.heap();
  const Scope scope(heap, groups_[at(g)].name);
  Tensor full = heap.make(checked_mul(p.trained.elements, ranks_), p.dtype, Category::unsharded_parameters,
                          "full " + p.trained.name);
  const int token =
      heap.start(program::Collective::all_gather, program::Axis::shard, {writes(full), reads(p.trained.value)},
                 Stream::compute, p.trained.elements * dtype_bytes(p.dtype));
  heap.wait(token, Stream::compute);
  torch_.set_parameter(p.trained.parameter, full, p.is_trained);
  return full;
}

void Fsdp2::finish_backward() {
  for (ParameterGroup& group : groups_) {
    if (group.is_gathered) post_backward(group);
    if (group.all_gathered.storage) {  // prefetched for a backward that it has no part in
      torch_.heap().wait(group.all_gather, Stream::compute);
      group.all_gathered = {};
      group.is_prefetched = false;
    }
    for (int* token : {&group.all_reduce, &group.converted}) {
      if (*token >= 0) torch_.heap().wait(std::exchange(*token, -1), Stream::compute);
    }
    group.all_reduced = {};
    if (group.left >= 0) torch_.heap().wait(std::exchange(group.left, -1), Stream::host);
  }
  for (ParameterGroup& group : groups_) group.forward_indices.clear();
  release_reduce_input();
  forward_order_.clear();
}

void Fsdp2::zero_gradients() {
  for (ParameterGroup& group : groups_) {
    group.reduced = {};
    for (ShardedParameter& p : group.parameters) p.gradient_on_host = {};
  }
}

Tensor Fsdp2::move_whole(int g, ShardedParameter& p) {
  const Scope scope(torch_.heap(), groups_[at(g)].name);
  const int index = p.trained.parameter;
  const std::int64_t elements = element_count(graph_.parameters[at(index)]);
  const bool is_nf4 = !p.scale_bytes.empty();  // which becomes one when it is on the card
  if (p.format != nullptr && !is_nf4) {
    p.scales = torch_.make_quantization_state(index, elements, *p.format, p.trained.name);
  }
  Tensor whole = torch_.heap().make(is_nf4 ? elements : whole_elements(index), p.dtype, Category::unsharded_parameters,
                                    "whole " + p.trained.name);
  torch_.heap().run("aten::_to_copy", {writes(whole)}, {.bytes = 0});
  return whole;
}

std::vector<Tensor> Fsdp2::move_whole(int g) {
  std::vector<Tensor> whole;
  for (ShardedParameter& p : groups_[at(g)].parameters) whole.push_back(move_whole(g, p));
  return whole;
}

void Fsdp2::load(int g, ShardedParameter& p) {
  const Scope scope(torch_.heap(), groups_[at(g)].name);
  p.trained.value = torch_.heap().make(p.trained.elements, p.dtype, Category::parameters, "shard of " + p.trained.name);
  torch_.heap().run("aten::normal_", {writes(p.trained.value)});
  if (!p.scale_bytes.empty()) p.scales = make_nf4_scales(torch_, p.scale_bytes, p.trained.name);
  if (!offloads_) return;
  const Tensor on_card =
      std::exchange(p.trained.value, torch_.heap().make_pinned(p.trained.elements, p.dtype, Category::parameters,
                                                               "shard in host memory of " + p.trained.name));
  torch_.heap().wait_for_stream(Stream::compute, Stream::host);
  torch_.heap().copy_over_link(on_card, p.trained.value, Stream::compute);
}

}  // namespace vramfit::eager
