#include "program/pytorch/optimizers/host_update.h"

#include <vector>

namespace vramfit::eager {

namespace {

Tensor zeros(Heap& heap, const Trained& parameter, std::int64_t elements, Dtype dtype, const char* what) {
  Tensor made = heap.make_on_host(elements, dtype, Category::optimizer_state, what + (" of " + parameter.name));
  heap.run("aten::zeros_like", {writes(made)}, {.bytes = bytes_in(made)}, Stream::host);
  return made;
}

void update(Heap& heap, Trained& p, const Tensor& gradient, Dtype state) {
  if (p.exp_avg.elements == 0) {
    p.exp_avg = zeros(heap, p, p.elements, state, "exp_avg");
    p.exp_avg_sq = zeros(heap, p, p.elements, state, "exp_avg_sq");
  }
  const double changed = bytes_in(p.value) + bytes_in(p.exp_avg) + bytes_in(p.exp_avg_sq);
  heap.run("aten::_fused_adamw_", {reads(gradient), changes(p.value), changes(p.exp_avg), changes(p.exp_avg_sq)},
           {.bytes = bytes_in(gradient) + 2 * changed}, Stream::host);
}

}  // namespace

void clip_on_host(Heap& heap, Wrapper& wrapper) {
  const Scope scope(heap, "clip");
  Accesses read, changed;
  double bytes = 0;
  for (const Tensor& gradient : wrapper.gradients()) {
    read.push_back(reads(gradient));
    changed.push_back(changes(gradient));
    bytes += bytes_in(gradient);
  }
  heap.run("aten::_foreach_norm", read, {.bytes = bytes}, Stream::host);
  heap.run("aten::_foreach_mul_", changed, {.bytes = 2 * bytes}, Stream::host);
}

void adamw_on_host(Heap& heap, Wrapper& wrapper, Dtype state) {
  const Scope scope(heap, "adamw");
  for (const OptimizerGroup& group : wrapper.groups()) {
    for (Trained* p : group.parameters) update(heap, *p, wrapper.gradient_of(*p), state);
  }
}

}  // namespace vramfit::eager
