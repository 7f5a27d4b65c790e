#include "program/pytorch/optimizers.h"

#include <algorithm>

#include "program/pytorch/kernels.h"

namespace vramfit::eager {

namespace {

/// In the order of the model's modules: the root's first parameter, the blocks', the root's others.
std::vector<ShardedParameter*> in_module_order(Fsdp2& fsdp) {
  std::vector<ShardedParameter*> order;
  std::vector<ParameterGroup>& groups = fsdp.groups();
  ParameterGroup& root = groups.back();
  order.push_back(&root.parameters.front());
  for (std::size_t g = 0; g + 1 < groups.size(); ++g) {
    for (ShardedParameter& p : groups[g].parameters) order.push_back(&p);
  }
  for (std::size_t i = 1; i < root.parameters.size(); ++i) order.push_back(&root.parameters[i]);
  return order;
}

/// All sharded gradients, as `how` says.
Accesses gradients_of(Fsdp2& fsdp, program::Access (*how)(const Tensor&)) {
  Accesses accesses;
  for (const ParameterGroup& group : fsdp.groups()) accesses.push_back(how(group.reduced));
  return accesses;
}

/// Appends what is done with one tensor of every parameter.
void add(Accesses& accesses, const std::vector<ShardedParameter*>& parameters, Tensor ShardedParameter::*tensor,
         program::Access (*how)(const Tensor&)) {
  for (const ShardedParameter* p : parameters) accesses.push_back(how(p->*tensor));
}

/// The calls of foreach AdamW, each over all parameters.
void run_foreach(Heap& heap, const std::vector<ShardedParameter*>& parameters, const Accesses& gradients,
                 const std::vector<Tensor>& denominators) {
  const auto run = [&](const char* name, Accesses accesses,
                       std::vector<std::pair<Tensor ShardedParameter::*, program::Access (*)(const Tensor&)>> more) {
    for (const auto& [tensor, how] : more) add(accesses, parameters, tensor, how);
    heap.run(name, accesses);
  };
  const auto with_denominators = [&](program::Access (*how)(const Tensor&)) {
    Accesses accesses;
    for (const Tensor& denominator : denominators) accesses.push_back(how(denominator));
    return accesses;
  };
  run("aten::_foreach_mul_", {}, {{&ShardedParameter::shard, changes}});
  run("aten::_foreach_lerp_", gradients, {{&ShardedParameter::exp_avg, changes}});
  run("aten::_foreach_mul_", {}, {{&ShardedParameter::exp_avg_sq, changes}});
  run("aten::_foreach_addcmul_", gradients, {{&ShardedParameter::exp_avg_sq, changes}});
  run("aten::_foreach_sqrt", with_denominators(writes), {{&ShardedParameter::exp_avg_sq, reads}});
  run("aten::_foreach_div_", with_denominators(changes), {});
  run("aten::_foreach_add_", with_denominators(changes), {});
  run("aten::_foreach_addcdiv_", with_denominators(reads),
      {{&ShardedParameter::exp_avg, reads}, {&ShardedParameter::shard, changes}});
}

}  // namespace

void clip_gradients(Torch& torch, Fsdp2& fsdp) {
  Heap& heap = torch.heap();
  const Scope scope(heap, "clip");
  const std::vector<ShardedParameter*> parameters = in_module_order(fsdp);
  const auto make = [&](std::int64_t elements, const char* what) {
    return heap.make(elements, Dtype::f32, Category::temporaries, what);
  };
  const auto count = static_cast<std::int64_t>(parameters.size());
  Tensor total;
  {
    std::vector<Tensor> norms;
    {
      const auto* const largest = *std::ranges::max_element(parameters, {}, &ShardedParameter::shard_elements);
      const Tensor partials = make(foreach_norm_partials(parameters.size(), largest->shard_elements), "partial norms");
      for (std::size_t i = 0; i < parameters.size(); ++i) norms.push_back(make(1, "norm"));
      Accesses accesses = gradients_of(fsdp, reads);
      for (const Tensor& norm : norms) accesses.push_back(writes(norm));
      heap.run("aten::_foreach_norm", accesses);
    }
    const Tensor stacked = make(count, "norms");
    Accesses accesses{writes(stacked)};
    for (const Tensor& norm : norms) accesses.push_back(reads(norm));
    heap.run("aten::stack", accesses);
    Tensor roots;
    {
      const Tensor powers = make(count, "powers");
      heap.run("aten::pow", {reads(stacked), writes(powers)});
      const Tensor copy = make(count, "all-reduce copy");
      heap.run("aten::clone", {reads(powers), writes(copy)});
      heap.wait(heap.start(program::Collective::all_reduce, program::Axis::shard, {changes(copy)}, Stream::compute),
                Stream::compute);
      roots = make(count, "roots");
      heap.run("aten::pow", {reads(copy), writes(roots)});
    }
    total = make(1, "total norm");
    heap.run("aten::linalg_vector_norm", {reads(roots), writes(total)});
  }
  Tensor scale;
  {
    Tensor sum = make(1, "total norm and epsilon");
    heap.run("aten::add", {reads(total), writes(sum)});
    const Tensor reciprocal = make(1, "reciprocal");
    heap.run("aten::reciprocal", {reads(sum), writes(reciprocal)});
    scale = make(1, "scale");
    heap.run("aten::mul", {reads(reciprocal), writes(scale)});
    sum = {};
  }
  const Tensor clamped = make(1, "clamped scale");
  heap.run("aten::clamp", {reads(scale), writes(clamped)});
  Accesses accesses = gradients_of(fsdp, changes);
  accesses.push_back(reads(clamped));
  heap.run("aten::_foreach_mul_", accesses);
}

void adamw_step(Torch& torch, Fsdp2& fsdp, OptimizerImplementation implementation, Dtype state) {
  Heap& heap = torch.heap();
  const Scope scope(heap, "adamw");
  const std::vector<ShardedParameter*> parameters = in_module_order(fsdp);
  for (ShardedParameter* p : parameters) {
    if (p->exp_avg.elements != 0) continue;
    const auto make = [&](std::int64_t elements, Dtype dtype, const char* what) {
      Tensor made = heap.make(elements, dtype, Category::optimizer_state, what + (" of " + p->name));
      heap.run("aten::zeros_like", {writes(made)});
      return made;
    };
    if (implementation == OptimizerImplementation::fused) p->step = make(1, Dtype::f32, "step");
    p->exp_avg = make(p->shard_elements, state, "exp_avg");
    p->exp_avg_sq = make(p->shard_elements, state, "exp_avg_sq");
  }
  const Accesses gradients = gradients_of(fsdp, reads);
  if (implementation != OptimizerImplementation::foreach) {
    Accesses accesses = gradients;
    for (Tensor ShardedParameter::*tensor : {&ShardedParameter::shard, &ShardedParameter::exp_avg,
                                             &ShardedParameter::exp_avg_sq, &ShardedParameter::step}) {
      add(accesses, parameters, tensor, changes);
    }
    heap.run("aten::_fused_adamw_", accesses);
    return;
  }
  std::vector<Tensor> denominators;
  denominators.reserve(parameters.size());
  for (const ShardedParameter* p : parameters) {
    denominators.push_back(heap.make(p->shard_elements, state, Category::temporaries, "exp_avg_sq_sqrt"));
  }
  run_foreach(heap, parameters, gradients, denominators);
}

}  // namespace vramfit::eager
