// torch.optim.SGD with momentum and without weight decay, in its foreach form, which it takes by itself on a card
// (torch/optim/sgd.py: _multi_tensor_sgd).
#include <algorithm>

#include "program/pytorch/optimizers/optimizers.h"

namespace vramfit::eager {

namespace {

/// The first gradient, copied.
void make_buffer(Heap& heap, Trained& p, const Tensor& gradient) {
  p.exp_avg = heap.make(p.elements, gradient.dtype, Category::optimizer_state, "momentum_buffer of " + p.name);
  heap.run("aten::clone", {reads(gradient), writes(p.exp_avg)}, {.bytes = 2 * bytes_in(p.exp_avg)});
}

void step_group(Heap& heap, Wrapper& wrapper, const OptimizerGroup& group) {
  const std::vector<Trained*>& parameters = group.parameters;
  const bool is_first = std::ranges::any_of(parameters, [](const Trained* p) { return p->exp_avg.elements == 0; });
  Accesses buffers, values;
  for (Trained* p : parameters) {
    if (is_first) make_buffer(heap, *p, wrapper.gradient_of(*p));
    buffers.push_back(changes(p->exp_avg));
  }
  if (!is_first) {
    heap.run("aten::_foreach_mul_", buffers);
    Accesses added = buffers;
    for (const Tensor& gradient : group.gradients) added.push_back(reads(gradient));
    heap.run("aten::_foreach_add_", added);
  }
  for (const Trained* p : parameters) {
    values.push_back(reads(p->exp_avg));
    values.push_back(changes(p->value));
  }
  heap.run("aten::_foreach_add_", values);
}

}  // namespace

void sgd_step(Torch& torch, Wrapper& wrapper, OptimizerImplementation /*implementation*/, Dtype /*state*/) {
  const Scope scope(torch.heap(), "sgd");
  for (const OptimizerGroup& group : wrapper.groups()) step_group(torch.heap(), wrapper, group);
}

}  // namespace vramfit::eager
