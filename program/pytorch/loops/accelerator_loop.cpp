// On one GPU, mixed precision is autocast; with FSDP2 it is FSDP2's.
#include "program/pytorch/loops/accelerator_loop.h"

#include <optional>
#include <utility>

#include "program/pytorch/calls/autocast.h"
#include "program/pytorch/calls/liger.h"
#include "program/pytorch/optimizers/optimizers.h"

namespace vramfit::eager {

AcceleratorLoop::Inputs AcceleratorLoop::moved_inputs() {
  heap().values = Category::activations;
  Inputs inputs;
  inputs.ids = tokens("ids");
  inputs.mask = tokens("mask");
  inputs.labels = tokens("labels");
  inputs.documents.count = parts_.documents;
  return inputs;
}

/// Padded by one and shifted, so that every token predicts the next; a copy where rows don't follow each other.
Tensor AcceleratorLoop::shifted(const Tensor& labels, Tensor& padded) {
  const Job& job = parts_.job;
  padded = numbers("aten::constant_pad_nd", {reads(labels)}, checked_mul(job.micro_batch, job.sequence + 1), Dtype::i64,
                   "padded labels");
  if (job.micro_batch == 1) return padded;
  return numbers("aten::clone", {reads(padded)}, checked_mul(job.micro_batch, job.sequence), Dtype::i64,
                 "shifted labels");
}

Tensor AcceleratorLoop::token_loss(const Tensor& outputs, const Tensor& targets) {
  if (parts_.model.loss_kernel() == LossKernel::library) return torch().cross_entropy(outputs, targets);
  const Liger liger(torch());
  if (!is_fused()) {
    return liger.cross_entropy(outputs, targets, checked_mul(parts_.job.micro_batch, parts_.job.sequence));
  }
  const Model::OutputLayer layer = parts_.model.output_layer();
  return liger.fused_loss(outputs, targets, {layer.weights, layer.inputs, layer.outputs});
}

Tensor AcceleratorLoop::next_token_loss(const Tensor& outputs, const Tensor& labels, const Tensor& items) {
  const Tensor taken = is_fused() ? outputs : torch().cast(outputs, Dtype::f32);
  Tensor padded;
  const Tensor targets = shifted(labels, padded);
  const Tensor loss = token_loss(taken, targets);
  if (!items.storage) return loss;
  return has_policy() ? torch().divide_by(loss, items) : torch().divide(loss);
}

/// accelerate's autocast around the forward widens what it returns.
Tensor AcceleratorLoop::loss_of_model(const Inputs& inputs, const Tensor& items) {
  const Precision& precision = parts_.job.precision;
  Tensor logits, loss;
  {
    if (const auto dtype = parts_.wrapper.dtype_of_buffers()) parts_.model.convert_buffers(*dtype);
    parts_.wrapper.enter_model();
    Tensor seen = items;
    const bool casts = has_policy() && items.storage;
    if (casts) seen = number("aten::_to_copy", {reads(items)}, precision.compute, "labels that count, cast");
    const Autocast autocast(torch(), is_autocast() ? std::optional(precision.compute) : std::nullopt);
    logits = forward(inputs.ids, inputs.mask, casts ? seen : Tensor{});
    parts_.enter(Phase::loss);
    const Scope scope(heap(), "loss");
    if (is_fused()) parts_.wrapper.look_at(parts_.model.output_layer().weights);
    loss = parts_.model.has_loss_of_its_own() ? torch().cross_entropy(logits, inputs.labels)
                                              : next_token_loss(logits, inputs.labels, seen);
    parts_.model.leave();
    if (is_fused()) logits = {};  // of which there are none
  }
  const Scope scope(heap(), "loss");
  parts_.wrapper.end_module(loss);
  if (is_autocast() && !is_fused()) logits = torch().cast(logits, Dtype::f32);
  if (converts_outputs()) loss = torch().cast(loss, precision.compute);
  parts_.wrapper.end_forward(loss);
  loss = parts_.wrapper.leave_model(std::move(loss));
  parts_.wrapper.wrap_outputs(loss, logits);
  return loss;
}

void AcceleratorLoop::backward_of(Tensor loss, bool /*is_last*/) {
  {
    const Scope scope(heap(), "loss");
    loss = torch().divide(loss);  // whatever the number of micro-batches
  }
  parts_.enter(Phase::backward);
  const Tensor root = scales_loss() ? scaler_.scaled(torch(), loss) : loss;
  torch().backward(root, [this] { parts_.wrapper.finish_backward(); });
}

void AcceleratorLoop::unscale_gradients() {
  if (!scales_loss()) return;
  const MarkSum of_sharded = is_fsdp2() ? MarkSum::tensors : MarkSum::scaler;
  scaler_.unscale(torch(), parts_.wrapper, is_sharded() ? of_sharded : MarkSum::nobody);
}

Tensor AcceleratorLoop::clipped() { return clip_gradients(torch(), parts_.wrapper); }

void AcceleratorLoop::step() {
  {
    Tensor mark;
    if (scales_loss() && skips_on_card()) mark = scaler_.mark_for_optimizer(torch());
    step_optimizer();
  }
  if (scales_loss()) scaler_.update(torch());
  schedule();
  parts_.wrapper.zero_gradients();
}

}  // namespace vramfit::eager
