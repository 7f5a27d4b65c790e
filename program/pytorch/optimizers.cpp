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
    }
    const Tensor stacked = make(count, "norms");
    Tensor roots;
    {
      const Tensor powers = make(count, "powers");
      const Tensor copy = make(count, "all-reduce copy");
      roots = make(count, "roots");
    }
    total = make(1, "total norm");
  }
  Tensor scale;
  {
    Tensor sum = make(1, "total norm and epsilon");
    const Tensor reciprocal = make(1, "reciprocal");
    scale = make(1, "scale");
    sum = {};
  }
  const Tensor clamped = make(1, "clamped scale");
}

void adamw_step(Torch& torch, Fsdp2& fsdp, OptimizerImplementation implementation, Dtype state) {
  Heap& heap = torch.heap();
  const Scope scope(heap, "adamw");
  const std::vector<ShardedParameter*> parameters = in_module_order(fsdp);
  for (ShardedParameter* p : parameters) {
    if (p->exp_avg.elements != 0) continue;
    const auto make = [&](std::int64_t elements, Dtype dtype, const char* what) {
      return heap.make(elements, dtype, Category::optimizer_state, what + (" of " + p->name));
    };
    if (implementation == OptimizerImplementation::fused) p->step = make(1, Dtype::f32, "step");
    p->exp_avg = make(p->shard_elements, state, "exp_avg");
    p->exp_avg_sq = make(p->shard_elements, state, "exp_avg_sq");
  }
  if (implementation != OptimizerImplementation::foreach) return;
  std::vector<Tensor> denominators;
  denominators.reserve(parameters.size());
  for (const ShardedParameter* p : parameters) {
    denominators.push_back(heap.make(p->shard_elements, state, Category::temporaries, "exp_avg_sq_sqrt"));
  }
}

}  // namespace vramfit::eager
