#include "program/ops/lora.h"

#include "executor/ops/adapter_torch.h"
#include "executor/ops/kernels_torch.h"

namespace vramfit::kernels {

namespace {

bool drops(const OpCall& call) { return attributes(call).dropout > 0; }
double scale_of(const OpCall& call) { return attributes(call).scale; }

void forward(OpCall& call) {
  const Products multiply_into(call, lora_forward_scratch(call.context));
  const Dropout dropout = make_dropout(call);
  const at::Tensor& hidden = call.outputs[1];
  multiply_into(
      {.a = adapter_input(call, dropout), .b = call.parameters[0].t(), .out = hidden, .factor = scale_of(call)});
  multiply_into({.a = hidden, .b = call.parameters[1].t(), .out = call.outputs[0], .add = true});
  if (has_norms(call.context)) find_norms(call, call.parameters[2]);
}

/// A dropped element has no part in the gradient; the others' grows by the same factor as in forward.
void input_gradient(const OpCall& call, const Products& multiply_into, const at::Tensor& hidden,
                    const Dropout& dropout) {
  const at::Tensor& target = call.input_gradients[0];
  const at::Tensor& a = call.parameters[0];
  const bool add = adds_input(call, 0);
  if (!drops(call)) return multiply_into({.a = hidden, .b = a, .out = target, .add = add});
  const at::Tensor masked = add ? dropout.dropped : target;
  multiply_into({.a = hidden, .b = a, .out = masked});
  drop(call, dropout, masked);
  if (add) target.add_(masked);
}

void backward(OpCall& call) {
  pass_gradient(call, 1);
  const bool wants_hidden = wants_hidden_gradient(call.needs);
  if (!wants_hidden && !wants_parameter(call, 1)) return;
  const at::Tensor& dy = *call.output_gradient;
  const Products multiply_into(call, lora_backward_scratch(call.context));
  if (wants_parameter(call, 1)) {
    multiply_into(
        {.a = dy.t(), .b = call.outputs[1], .out = call.parameter_gradients[1], .add = adds_parameter(call, 1)});
  }
  if (!wants_hidden) return;
  const LoraSizes s = lora_sizes(call.context);
  const at::Tensor hidden = call.temporaries.allocate("hidden gradient", {s.tokens, s.rank}, call.context.compute());
  const Dropout dropout = make_dropout(call);
  multiply_into({.a = dy, .b = call.parameters[1], .out = hidden, .factor = scale_of(call)});
  if (wants_parameter(call, 0)) {
    multiply_into({.a = hidden.t(),
                   .b = adapter_input(call, dropout),
                   .out = call.parameter_gradients[0],
                   .add = adds_parameter(call, 0)});
  }
  if (wants_input(call, 0)) input_gradient(call, multiply_into, hidden, dropout);
}

}  // namespace

const DeviceFunctions rows::lora{
    .cpu = {forward, backward}, .cuda = {forward, backward}, .own_cuda = {forward, backward}};

}  // namespace vramfit::kernels
