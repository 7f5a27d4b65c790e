#include <ATen/ops/mm.h>

#include "executor/ops/kernels_torch.h"

namespace vramfit::kernels {

namespace {

// outputs[0] is inputs[0]; every token is of type 0.
void type_embedding_forward_cpu(OpCall& call) {
  with_type(call.outputs[0].scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const Rows<T> y(call.outputs[0]);
    const T* from = data<T>(call.parameters[0]);
    parallel_rows(y.count, y.columns, [=](std::int64_t row) {
      for (std::int64_t c = 0; c < y.columns; ++c) put(y[row][c], static_cast<float>(from[c]), true);
    });
  });
}

template <typename T, typename G>
void add_tokens(OpCall& call) {
  const Rows<T> dy(*call.output_gradient);
  G* target = data<G>(call.parameter_gradients[0]);
  const bool add = adds_parameter(call, 0);
  if (!add) std::fill(target, target + call.parameter_gradients[0].numel(), G{});
  column_sums(
      dy.count, dy.columns, [=](std::int64_t row, std::int64_t c) { return static_cast<float>(dy[row][c]); },
      [=](std::int64_t c, float sum) { put(target[c], sum, add); });
}

void type_embedding_backward_cpu(OpCall& call) {
  if (wants_parameter(call, 0)) {
    with_type(call.output_gradient->scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      with_type(call.parameter_gradients[0].scalar_type(),
                [&](auto gradient_zero) { add_tokens<T, decltype(gradient_zero)>(call); });
    });
  }
  pass_gradient(call, 0);
}

void type_embedding_forward_cuda(OpCall& call) { call.outputs[0].add_(call.parameters[0].select(0, 0)); }

void type_embedding_backward_cuda(OpCall& call) {
  if (wants_parameter(call, 0)) {
    const at::Tensor& dy = *call.output_gradient;
    at::Tensor ones = call.temporaries.allocate("ones", {1, dy.size(0)}, call.context.compute());
    at::Tensor sum = call.temporaries.allocate("sum", {1, dy.size(1)}, call.context.compute());
    at::mm_out(sum, ones.fill_(1), dy);
    if (!adds_parameter(call, 0)) call.parameter_gradients[0].zero_();
    call.parameter_gradients[0].narrow(0, 0, 1).add_(sum);
  }
  pass_gradient(call, 0);
}

}  // namespace

const DeviceFunctions rows::type_embedding{.cpu = {type_embedding_forward_cpu, type_embedding_backward_cpu},
                                           .cuda = {type_embedding_forward_cuda, type_embedding_backward_cuda}};

}  // namespace vramfit::kernels
