#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "executor/ops/fp8_torch.h"
#include "executor/ops/gemm_torch.h"
#include "executor/ops/kernels_torch.h"
#include "program/ops/fp8.h"
#include "program/ops/rules.h"

namespace vramfit::kernels {

namespace {

/// The weight as [O, I], however it is stored.
Matrix weight_of(const OpCall& call, const at::Tensor& weight) {
  return attributes(call).transposed_weight ? transpose(matrix(weight)) : matrix(weight);
}

float* product_buffer(OpCall& call, std::int64_t elements) {
  if (elements == 0) return nullptr;
  return data<float>(call.temporaries.allocate("product", {elements}, Dtype::f32));
}

void linear_forward_cpu(OpCall& call) {
  if (multiplies_in_fp8(call.context)) return fp8_forward_cpu(call);
  const Matrix x = matrix(call.inputs[0]), y = matrix(call.outputs[0]);
  const bool has_bias = call.parameters.size() > 1;
  multiply(x, transpose(weight_of(call, call.parameters[0])), y,
           {.bias = has_bias ? call.parameters[1].data_ptr() : nullptr,
            .product = product_buffer(call, linear_forward_scratch(call.context))});
}

void bias_gradient(OpCall& call) {
  with_type(call.output_gradient->scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const Rows<T> dy(*call.output_gradient);
    T* target = data<T>(call.parameter_gradients[1]);
    const bool add = adds_parameter(call, 1);
    column_sums(
        dy.count, dy.columns, [=](std::int64_t row, std::int64_t c) { return static_cast<float>(dy[row][c]); },
        [=](std::int64_t c, float sum) { put(target[c], sum, add); });
  });
}

void products_cpu(OpCall& call) {
  const Matrix dy = matrix(*call.output_gradient);
  const Matrix weight = weight_of(call, call.parameters[0]);
  const bool wants_x = wants_input(call, 0), wants_weight = wants_parameter(call, 0);
  float* product = product_buffer(call, linear_backward_scratch(call.context, wants_x, wants_weight));
  if (wants_x) {
    multiply(dy, weight, matrix(call.input_gradients[0]), {.add = adds_input(call, 0), .product = product});
  }
  if (wants_weight) {
    const Matrix x = matrix(call.inputs[0]), target = matrix(call.parameter_gradients[0]);
    const Store store{.add = adds_parameter(call, 0), .product = product};
    attributes(call).transposed_weight ? multiply(transpose(x), dy, target, store)
                                       : multiply(transpose(dy), x, target, store);
  }
}

void linear_backward_cpu(OpCall& call) {
  multiplies_in_fp8(call.context) ? fp8_backward_cpu(call) : products_cpu(call);
  if (wants_parameter(call, 1)) bias_gradient(call);
}

/// Whose shape is (I, O).
at::Tensor as_columns(const OpCall& call, const at::Tensor& weight) {
  return attributes(call).transposed_weight ? weight : weight.t();
}

void linear_forward_cuda(OpCall& call) {
  if (multiplies_in_fp8(call.context)) return fp8_forward_cuda(call);
  const at::Tensor weight = as_columns(call, call.parameters[0]);
  if (call.parameters.size() > 1) {
    at::addmm_out(call.outputs[0], call.parameters[1], call.inputs[0], weight);
  } else {
    at::mm_out(call.outputs[0], call.inputs[0], weight);
  }
}

void multiply_cuda(const at::Tensor& a, const at::Tensor& b, at::Tensor out, bool add) {
  if (add) {
    at::addmm_out(out, out, a, b);
  } else {
    at::mm_out(out, a, b);
  }
}

void products_cuda(OpCall& call) {
  const at::Tensor& dy = *call.output_gradient;
  if (wants_input(call, 0)) {
    multiply_cuda(dy, as_columns(call, call.parameters[0]).t(), call.input_gradients[0], adds_input(call, 0));
  }
  if (wants_parameter(call, 0)) {
    const at::Tensor& x = call.inputs[0];
    const bool transposed = attributes(call).transposed_weight;
    multiply_cuda(transposed ? x.t() : dy.t(), transposed ? dy : x, call.parameter_gradients[0],
                  adds_parameter(call, 0));
  }
}

void linear_backward_cuda(OpCall& call) {
  const at::Tensor& dy = *call.output_gradient;
  at::Tensor ones;
  if (wants_parameter(call, 1)) ones = call.temporaries.allocate("ones", {1, dy.size(0)}, call.context.compute());
  multiplies_in_fp8(call.context) ? fp8_backward_cuda(call) : products_cuda(call);
  if (wants_parameter(call, 1)) {
    multiply_cuda(ones.fill_(1), dy, call.parameter_gradients[1].unsqueeze(0), adds_parameter(call, 1));
  }
}

}  // namespace

const DeviceFunctions rows::linear{.cpu = {linear_forward_cpu, linear_backward_cpu},
                                   .cuda = {linear_forward_cuda, linear_backward_cuda}};

}  // namespace vramfit::kernels
