#include "executor/ops/kernels_torch.h"

namespace vramfit::kernels {

namespace {

// outputs[0] is inputs[0]; row r of x has position r mod S.
void position_embedding_forward_cpu(OpCall& call) {
  with_type(call.outputs[0].scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const Rows<T> y(call.outputs[0]), table(call.parameters[0]);
    const std::int64_t sequence = call.context.shape.sequence;
    parallel_rows(y.count, y.columns, [=](std::int64_t row) {
      const T* from = table[row % sequence];
      for (std::int64_t c = 0; c < y.columns; ++c) put(y[row][c], static_cast<float>(from[c]), true);
    });
  });
}

template <typename T, typename G>
void add_sequences(OpCall& call) {
  const Rows<T> dy(*call.output_gradient);
  const Rows<G> table(call.parameter_gradients[0]);
  const std::int64_t sequence = call.context.shape.sequence;
  const bool add = adds_parameter(call, 0);
  parallel_rows(table.count, table.columns, [=](std::int64_t position) {
    for (std::int64_t c = 0; c < table.columns; ++c) {
      float sum = 0;
      if (position < sequence) {
        for (std::int64_t row = position; row < dy.count; row += sequence) sum += static_cast<float>(dy[row][c]);
      }
      put(table[position][c], sum, add);
    }
  });
}

void position_embedding_backward_cpu(OpCall& call) {
  if (wants_parameter(call, 0)) {
    with_type(call.output_gradient->scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      with_type(call.parameter_gradients[0].scalar_type(),
                [&](auto gradient_zero) { add_sequences<T, decltype(gradient_zero)>(call); });
    });
  }
  pass_gradient(call, 0);
}

void position_embedding_forward_cuda(OpCall& call) {
  const std::int64_t sequence = call.context.shape.sequence, width = call.outputs[0].size(1);
  call.outputs[0].view({-1, sequence, width}).add_(call.parameters[0].narrow(0, 0, sequence));
}

void position_embedding_backward_cuda(OpCall& call) {
  if (wants_parameter(call, 0)) {
    const std::int64_t sequence = call.context.shape.sequence;
    const at::Tensor& dy = *call.output_gradient;
    if (!adds_parameter(call, 0)) call.parameter_gradients[0].zero_();
    at::Tensor used = call.parameter_gradients[0].narrow(0, 0, sequence);
    for (std::int64_t first = 0; first < dy.size(0); first += sequence) used.add_(dy.narrow(0, first, sequence));
  }
  pass_gradient(call, 0);
}

}  // namespace

const DeviceFunctions rows::position_embedding{
    .cpu = {position_embedding_forward_cpu, position_embedding_backward_cpu},
    .cuda = {position_embedding_forward_cuda, position_embedding_backward_cuda}};

}  // namespace vramfit::kernels
