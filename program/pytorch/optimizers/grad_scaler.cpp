#include "program/pytorch/optimizers/grad_scaler.h"

#include <utility>

namespace vramfit::eager {

namespace {

Tensor number(Torch& torch, const char* call, const Accesses& inputs, Dtype dtype, const char* what) {
  return torch.computed(call, inputs, torch.heap().make(1, dtype, Category::temporaries, what));
}

}  // namespace

Tensor GradScaler::scaled(Torch& torch, const Tensor& loss) {
  const Scope scope(torch.heap(), "loss scale");
  if (!scale_.storage) {  // _lazy_init_scale_growth_tracker
    scale_ = number(torch, "aten::full", {}, Dtype::f32, "loss scale");
    growth_ = number(torch, "aten::full", {}, Dtype::i32, "steps since it grew");
  }
  return torch.multiply_by_constant(loss, scale_);
}

/// The reciprocal is taken in fp64. Whatever is passed to gradients on a device is a copy (_MultiDeviceReplicator.get).
void GradScaler::unscale(Torch& torch, Wrapper& wrapper, MarkSum sum) {
  const Scope scope(torch.heap(), "loss scale");
  Tensor reciprocal;
  {
    Tensor inverse;
    {
      const Tensor precise = number(torch, "aten::_to_copy", {reads(scale_)}, Dtype::i64, "loss scale in fp64");
      inverse = number(torch, "aten::reciprocal", {reads(precise)}, Dtype::i64, "reciprocal in fp64");
    }
    reciprocal = number(torch, "aten::_to_copy", {reads(inverse)}, Dtype::f32, "reciprocal");
  }
  const Tensor zero = number(torch, "aten::full", {}, Dtype::f32, "no overflow");
  is_on_host_ = wrapper.updates_on_host();
  if (is_on_host_) {
    unscale_on_host(torch.heap(), wrapper);
    if (sum == MarkSum::scaler) sum_over_ranks(torch.heap(), found_on_card(torch));
    return;
  }
  found_ = number(torch, "aten::_to_copy", {reads(zero)}, Dtype::f32, "whether one overflowed");
  const Tensor factor = number(torch, "aten::_to_copy", {reads(reciprocal)}, Dtype::f32, "reciprocal of this card");
  Accesses accesses{reads(factor), changes(found_)};
  for (const Tensor& gradient : wrapper.gradients()) accesses.push_back(changes(gradient));
  torch.heap().run("aten::_amp_foreach_non_finite_check_and_unscale_", accesses);
  // torch/distributed/tensor/_dispatch.py: found_inf_reduce_handler
  Tensor summed = found_;
  if (sum == MarkSum::tensors)
    summed = number(torch, "aten::clone", {reads(found_)}, Dtype::f32, "whether one overflowed");
  if (sum != MarkSum::nobody) sum_over_ranks(torch.heap(), summed);
}

void GradScaler::sum_over_ranks(Heap& heap, const Tensor& mark) {
  heap.wait(heap.start(program::Collective::all_reduce, program::Axis::data, {changes(mark)}, Stream::compute,
                       dtype_bytes(Dtype::f32)),
            Stream::compute);
}

/// Factor and mark are copied there, where ranks sum the mark up, too.
void GradScaler::unscale_on_host(Heap& heap, Wrapper& wrapper) {
  Accesses changed;
  double bytes = 0;
  for (const Tensor& gradient : wrapper.gradients()) {
    changed.push_back(changes(gradient));
    bytes += bytes_in(gradient);
  }
  heap.run("aten::_amp_foreach_non_finite_check_and_unscale_", changed, {.bytes = 2 * bytes}, Stream::host);
}

Tensor GradScaler::found_on_card(Torch& torch) const {
  return is_on_host_ ? number(torch, "aten::_to_copy", {}, Dtype::f32, "whether one overflowed") : found_;
}

Tensor GradScaler::mark_for_optimizer(Torch& torch) {
  const Scope scope(torch.heap(), "loss scale");
  const Tensor found = found_on_card(torch);
  return number(torch, "aten::add", {reads(found)}, Dtype::f32, "whether one overflowed, over cards");
}

void GradScaler::update(Torch& torch) {
  const Scope scope(torch.heap(), "loss scale");
  const Tensor found = found_on_card(torch);
  torch.heap().run("aten::_amp_update_scale_", {changes(scale_), changes(growth_), reads(found)});
  found_ = {};
}

}  // namespace vramfit::eager
