#include "program/pytorch/optimizers/optimizers.h"

#include <algorithm>

#include "program/pytorch/calls/kernels.h"
#include "program/pytorch/optimizers/host_update.h"

namespace vramfit::eager {

namespace {

Accesses accesses_of(const std::vector<Tensor>& tensors, program::Access (*how)(const Tensor&)) {
  Accesses accesses;
  for (const Tensor& tensor : tensors) accesses.push_back(how(tensor));
  return accesses;
}

/// Appends what is done with one tensor of every parameter.
void add(Accesses& accesses, const std::vector<Trained*>& parameters, Tensor Trained::*tensor,
         program::Access (*how)(const Tensor&)) {
  for (const Trained* p : parameters) accesses.push_back(how(p->*tensor));
}

/// The calls of foreach AdamW, each over all parameters.
void run_foreach(Heap& heap, const std::vector<Trained*>& parameters, const Accesses& gradients,
                 const std::vector<Tensor>& denominators) {
  const auto run = [&](const char* name, Accesses accesses,
                       std::vector<std::pair<Tensor Trained::*, program::Access (*)(const Tensor&)>> more) {
    for (const auto& [tensor, how] : more) add(accesses, parameters, tensor, how);
    heap.run(name, accesses);
  };
  const auto with_denominators = [&](program::Access (*how)(const Tensor&)) {
    Accesses accesses;
    for (const Tensor& denominator : denominators) accesses.push_back(how(denominator));
    return accesses;
  };
  run("aten::_foreach_mul_", {}, {{&Trained::value, changes}});
  run("aten::_foreach_lerp_", gradients, {{&Trained::exp_avg, changes}});
  run("aten::_foreach_mul_", {}, {{&Trained::exp_avg_sq, changes}});
  run("aten::_foreach_addcmul_", gradients, {{&Trained::exp_avg_sq, changes}});
  run("aten::_foreach_sqrt", with_denominators(writes), {{&Trained::exp_avg_sq, reads}});
  run("aten::_foreach_div_", with_denominators(changes), {});
  run("aten::_foreach_add_", with_denominators(changes), {});
  run("aten::_foreach_addcdiv_", with_denominators(reads), {{&Trained::exp_avg, reads}, {&Trained::value, changes}});
}

/// The calls of for-loop AdamW, parameter by parameter. The name `denom` of the loop keeps a parameter's denominator
/// until that of the next one is whole, so two live beside the root that the next one is made from.
void run_loop(Heap& heap, Wrapper& wrapper, const std::vector<Trained*>& parameters, Dtype state) {
  Tensor denominator;
  for (const Trained* parameter : parameters) {
    const Trained& p = *parameter;
    const Tensor gradient = wrapper.gradient_of(p);
    const Bytes gradient_bytes = p.elements * dtype_bytes(gradient.dtype);  // of the buffer, which may hold others too
    const auto move_by_gradient = [&](const char* name, const Tensor& average) {
      const double bytes = heap.bytes_of({changes(average)}) + static_cast<double>(gradient_bytes.n);
      heap.run(name, {changes(average), reads(gradient)}, Work{.bytes = bytes});
    };
    heap.run("aten::mul_", {changes(p.value)});
    move_by_gradient("aten::lerp_", p.exp_avg);
    heap.run("aten::mul_", {changes(p.exp_avg_sq)});
    move_by_gradient("aten::addcmul_", p.exp_avg_sq);
    Tensor root = heap.make(p.elements, state, Category::temporaries, "exp_avg_sq_sqrt");
    heap.run("aten::sqrt", {reads(p.exp_avg_sq), writes(root)});
    Tensor next = heap.make(p.elements, state, Category::temporaries, "denominator");
    heap.run("aten::div", {reads(root), writes(next)});
    root = {};
    heap.run("aten::add_", {changes(next)});
    denominator = std::move(next);
    heap.run("aten::addcdiv_", {changes(p.value), reads(p.exp_avg), reads(denominator)});
  }
}

void step_group(Heap& heap, Wrapper& wrapper, const OptimizerGroup& group, OptimizerImplementation implementation,
                Dtype state) {
  const std::vector<Trained*>& parameters = group.parameters;
  for (Trained* p : parameters) {
    if (p->exp_avg.elements != 0) continue;
    if (implementation == OptimizerImplementation::fused) p->step = make_state(heap, *p, 1, Dtype::f32, "step");
    p->exp_avg = make_state(heap, *p, p->elements, state, "exp_avg");
    p->exp_avg_sq = make_state(heap, *p, p->elements, state, "exp_avg_sq");
  }
  if (implementation == OptimizerImplementation::loop) return run_loop(heap, wrapper, parameters, state);
  const Accesses gradients = accesses_of(group.gradients, reads);
  if (implementation == OptimizerImplementation::fused || implementation == OptimizerImplementation::deepspeed) {
    Accesses accesses = gradients;
    for (Tensor Trained::*tensor : {&Trained::value, &Trained::exp_avg, &Trained::exp_avg_sq, &Trained::step}) {
      add(accesses, parameters, tensor, changes);
    }
    heap.run("aten::_fused_adamw_", accesses);
    return;
  }
  std::vector<Tensor> denominators;
  denominators.reserve(parameters.size());
  for (const Trained* p : parameters) {
    denominators.push_back(heap.make(p->elements, state, Category::temporaries, "exp_avg_sq_sqrt"));
  }
  run_foreach(heap, parameters, gradients, denominators);
}

}  // namespace

Tensor make_state(Heap& heap, const Trained& parameter, std::int64_t elements, Dtype dtype, const char* what) {
  Tensor made = heap.make(elements, dtype, Category::optimizer_state, what + (" of " + parameter.name));
  heap.run("aten::zeros_like", {writes(made)});
  return made;
}

Tensor clip_gradients(Torch& torch, Wrapper& wrapper) {
  Heap& heap = torch.heap();
  if (wrapper.clips_itself()) return wrapper.clip();
  if (wrapper.updates_on_host()) {
    clip_on_host(heap, wrapper);
    return {};
  }
  const Scope scope(heap, "clip");
  const std::vector<Trained*> parameters = wrapper.trained();
  const Dtype dtype = wrapper.gradients().front().dtype;
  const auto make = [&](std::int64_t elements, const char* what) {
    return heap.make(elements, dtype, Category::temporaries, what);
  };
  const auto count = static_cast<std::int64_t>(parameters.size());
  Tensor total;
  {
    std::vector<Tensor> norms;
    {
      const auto* const largest = *std::ranges::max_element(parameters, {}, &Trained::elements);
      const Tensor partials = heap.make(foreach_norm_partials(parameters.size(), largest->elements), Dtype::f32,
                                        Category::temporaries, "partial norms");
      for (std::size_t i = 0; i < parameters.size(); ++i) norms.push_back(make(1, "norm"));
      Accesses accesses = accesses_of(wrapper.gradients(), reads);
      for (const Tensor& norm : norms) accesses.push_back(writes(norm));
      heap.run("aten::_foreach_norm", accesses);
    }
    Tensor stacked = make(count, "norms");
    Accesses accesses{writes(stacked)};
    for (const Tensor& norm : norms) accesses.push_back(reads(norm));
    heap.run("aten::stack", accesses);
    const Tensor reduced = wrapper.reduced_norms(stacked);
    total = make(1, "total norm");
    heap.run("aten::linalg_vector_norm", {reads(reduced), writes(total)});
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
  Accesses accesses = accesses_of(wrapper.gradients(), changes);
  accesses.push_back(reads(clamped));
  heap.run("aten::_foreach_mul_", accesses);
  return total;
}

void adamw_step(Torch& torch, Wrapper& wrapper, OptimizerImplementation implementation, Dtype state) {
  if (wrapper.updates_on_host()) return adamw_on_host(torch.heap(), wrapper, state);
  if (implementation == OptimizerImplementation::paged) return paged_adamw_step(torch, wrapper);
  const Scope scope(torch.heap(), "adamw");
  for (const OptimizerGroup& group : wrapper.groups()) step_group(torch.heap(), wrapper, group, implementation, state);
}

}  // namespace vramfit::eager
