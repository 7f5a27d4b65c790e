#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/reciprocal.h>

#include <cmath>

#include "executor/ops/fp8_torch.h"
#include "executor/ops/kernels_torch.h"
#include "program/ops/fp8.h"

namespace vramfit::kernels {

namespace {

/// What a factor is multiplied by before it is rounded, and what its products are multiplied by: [1] fp32 each. They
/// stay on the device: no step waits for a number.
struct Scale {
  at::Tensor scale, inverse;
};

// The quotient of two fp32 numbers is the same whether it is rounded from fp64, as torchao does it, or not. Beyond 2^31
// elements a reduction would be split, so it is made in parts; `scale` holds the part's amax until it is needed.
Scale scale_of(OpCall& call, const std::string& name, const at::Tensor& factor, double largest) {
  Scale s{call.temporaries.allocate(name + "_scale", {1}, Dtype::f32),
          call.temporaries.allocate(name + "_inverse", {1}, Dtype::f32)};
  const at::Tensor values = factor.view(-1);
  for (std::int64_t first = 0; first < values.numel(); first += kNormPart) {
    const at::Tensor part = values.narrow(0, first, std::min(kNormPart, values.numel() - first));
    at::Tensor amax = (first == 0 ? s.inverse : s.scale).view(at::IntArrayRef{});
    at::linalg_vector_norm_out(amax, part, INFINITY, {}, false, at::kFloat);
    at::Tensor all = s.inverse;
    if (first > 0) at::maximum_out(all, all, s.scale);
  }
  s.scale.fill_(largest).div_(s.inverse).clamp_max_(largest / kLeastAmax);
  at::Tensor inverse = s.inverse;
  at::reciprocal_out(inverse, s.scale);
  return s;
}

/// In which order a factor's numbers lie: those of a row, or of a column, side by side.
enum class Order { rows, columns };

// One kernel reads, scales in fp32 and rounds: [1] beside [rows, columns] promotes, a number would not. No scaled
// number exceeds the format's largest by more than rounding, so nothing is clamped.
at::Tensor cast(const at::Tensor& factor, const Scale& scale, at::ScalarType format, Order order) {
  const at::TensorOptions options = factor.options().dtype(format);
  at::Tensor rounded = order == Order::rows ? at::empty(factor.sizes(), options)
                                            : at::empty({factor.size(1), factor.size(0)}, options).t();
  at::mul_out(rounded, factor, scale.scale);
  return rounded;
}

/// Two factors of a product: rows of the first and columns of the second lie side by side, as cublasLt wants FP8.
struct Factors {
  at::Tensor a, b;
  const Scale &a_scale, &b_scale;

  void multiply(std::int64_t row, std::int64_t rows, at::Tensor out, const std::optional<at::Tensor>& bias,
                bool fast) const {
    at::_scaled_mm_out(out, a.narrow(0, row, rows), b, a_scale.inverse, b_scale.inverse, bias, {}, out.scalar_type(),
                       fast);
  }
};

/// A gradient, written or added to.
void multiply_into(const Factors& factors, const at::Tensor& gradient, bool add) {
  const std::int64_t rows = gradient.size(0), most = std::min(rows, kFp8ProductRows);
  const at::Tensor block = at::empty({most, gradient.size(1)}, gradient.options());
  if (!add) return factors.multiply(0, rows, gradient, {}, false);
  for (std::int64_t row = 0; row < rows; row += most) {
    const std::int64_t count = std::min(most, rows - row);
    const at::Tensor product = block.narrow(0, 0, count);
    factors.multiply(row, count, product, {}, false);
    gradient.narrow(0, row, count).add_(product);
  }
}

}  // namespace

// Sums are kept short in forward alone (`fast`: partial sums leave the tensor cores' registers less often), as
// torchao's recipe has it.
void fp8_forward_cuda(OpCall& call) {
  const at::Tensor &x = call.inputs[0], &weight = call.parameters[0];
  const Scale x_scale = scale_of(call, "x", x, kLargestE4m3);
  const Scale weight_scale = scale_of(call, "weight", weight, kLargestE4m3);
  const at::Tensor a = cast(x, x_scale, at::kFloat8_e4m3fn, Order::rows);
  const at::Tensor b = cast(weight, weight_scale, at::kFloat8_e4m3fn, Order::rows).t();
  const std::optional<at::Tensor> bias =
      call.parameters.size() > 1 ? std::optional<at::Tensor>(call.parameters[1]) : std::nullopt;
  Factors{a, b, x_scale, weight_scale}.multiply(0, x.size(0), call.outputs[0], bias, true);
}

void fp8_backward_cuda(OpCall& call) {
  if (!wants_input(call, 0) && !wants_parameter(call, 0)) return;
  const at::Tensor& dy = *call.output_gradient;
  const Scale dy_scale = scale_of(call, "dy", dy, kLargestE5m2);
  if (wants_input(call, 0)) {
    const Scale scale = scale_of(call, "weight", call.parameters[0], kLargestE4m3);
    const at::Tensor a = cast(dy, dy_scale, at::kFloat8_e5m2, Order::rows);
    const at::Tensor b = cast(call.parameters[0], scale, at::kFloat8_e4m3fn, Order::columns);
    multiply_into({a, b, dy_scale, scale}, call.input_gradients[0], adds_input(call, 0));
  }
  if (wants_parameter(call, 0)) {
    const Scale scale = scale_of(call, "x", call.inputs[0], kLargestE4m3);
    const at::Tensor a = cast(dy, dy_scale, at::kFloat8_e5m2, Order::columns).t();
    const at::Tensor b = cast(call.inputs[0], scale, at::kFloat8_e4m3fn, Order::columns);
    multiply_into({a, b, dy_scale, scale}, call.parameter_gradients[0], adds_parameter(call, 0));
  }
}

}  // namespace vramfit::kernels
