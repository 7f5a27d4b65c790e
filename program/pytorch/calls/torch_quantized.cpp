// Matrices in 4 bits as bitsandbytes 0.50.2 computes with them on CUDA (bitsandbytes/nn/modules.py: Linear4bit,
// autograd/_functions.py: MatMul4Bit, backends/cuda/ops.py: gemm_4bit).
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/units.h"
#include "program/pytorch/calls/fused_4bit.h"
#include "program/pytorch/calls/torch.h"

namespace vramfit::eager {

std::vector<Tensor> Torch::make_quantized(int parameter, std::int64_t elements, const Quantization& format,
                                          std::string_view name) {
  const Tensor packed = heap_.make(ceil_div(elements, 2), Dtype::u8, Category::parameters, std::string(name));
  heap_.run("bitsandbytes::quantize_4bit", {writes(packed)});
  std::vector<Tensor> tensors{packed};
  for (Tensor& tensor : make_quantization_state(parameter, elements, format, name)) {
    tensors.push_back(std::move(tensor));
  }
  set_parameter(parameter, packed, false);
  return tensors;
}

std::vector<Tensor> Torch::make_quantization_state(int parameter, std::int64_t elements, const Quantization& format,
                                                   std::string_view name) {
  std::vector<Tensor> tensors;
  const auto add = [&](std::int64_t count, Dtype dtype, const std::string& what) {
    tensors.push_back(heap_.make(count, dtype, Category::parameters, fmt::format("{}{}", name, what)));
    heap_.run("bitsandbytes::quantize_4bit", {writes(tensors.back())});
  };
  const std::int64_t blocks = ceil_div(elements, format.block);
  add(blocks, format.scale_block > 0 ? Dtype::u8 : Dtype::f32, ": scales");
  constexpr std::int64_t kCodes = 16, kScaleCodes = 256;
  add(kCodes, Dtype::f32, ": codes");
  if (format.scale_block > 0) {
    add(ceil_div(blocks, format.scale_block), Dtype::f32, ": scales of scales");
    add(kScaleCodes, Dtype::f32, ": codes of scales");
    add(1, Dtype::f32, ": offset of scales");
  }
  parameters_.at(static_cast<std::size_t>(parameter)).format = &format;
  return tensors;
}

bool Torch::is_quantized(int parameter) const {
  return parameters_.at(static_cast<std::size_t>(parameter)).format != nullptr;
}

/// Scales of blocks in fp32, where they are quantized themselves; otherwise none.
Tensor Torch::dequantized_scales(int parameter, std::int64_t elements) {
  const Quantization& format = *parameters_.at(static_cast<std::size_t>(parameter)).format;
  if (format.scale_block == 0) return {};
  return computed("bitsandbytes::dequantize_blockwise", {reads_parameter(parameter)},
                  temporary(ceil_div(elements, format.block), Dtype::f32, "scales"));
}

Tensor Torch::dequantized(program::Access codes, std::int64_t elements, const Tensor& scales, Dtype dtype) {
  return computed("bitsandbytes::dequantize_4bit", {codes, reads(scales)},
                  temporary(elements, dtype, "weight, dequantized"));
}

/// At its first use, for good (Linear4bit.forward: bias.data = bias.data.to(x.dtype)).
void Torch::convert_bias(int parameter, Dtype dtype) {
  const Held& held = parameters_.at(static_cast<std::size_t>(parameter));
  if (held.dtype == dtype) return;
  Tensor* const frozen = held.frozen;
  if (frozen == nullptr) throw NotModelled("--method qlora with biases that are trained");
  *frozen = computed("aten::_to_copy", {reads(*frozen)},
                     heap_.make(frozen->elements, dtype, Category::parameters, "bias, converted"));
  set_frozen_parameter(parameter, *frozen);
}

/// The product of x and dequantized weights. Forward adds the scales' offset into a second tensor, and holds both until
/// the product is there. With hooks on modules, linears are those of DeepSpeed (zero/linear.py), which add biases in
/// place.
Tensor Torch::product_with_dequantized(const Tensor& x, int parameter, const WorkShape& shape, int bias) {
  const std::int64_t elements = checked_mul(shape.columns, shape.inner);
  const Tensor scales = dequantized_scales(parameter, elements);
  Tensor shifted;
  if (scales.elements > 0) shifted = computed("aten::add", {reads(scales)}, make_like(scales, "scales"));
  const Tensor weight = dequantized(reads_parameter(parameter), elements, shifted, x.dtype);
  Accesses factors{reads(x), reads(weight)};
  const bool is_fused = bias >= 0 && !has_replaced_layers();
  if (is_fused) factors.push_back(reads_parameter(bias));
  Tensor y = product(factors, shape, x.dtype, is_fused);
  if (bias >= 0 && !is_fused) heap_.run("aten::add_", {reads_parameter(bias), changes(y)});
  return y;
}

/// Backward adds the scales' offset in place. Autograd's node keeps the codes that forward read, as an attribute
/// (ctx.tensors): no checkpoint sees them, and they stay as long as the graph does. That matters where they come and
/// go.
Tensor Torch::linear_4bit(const Tensor& x, int parameter, std::int64_t inputs, std::int64_t outputs,
                          QuantizedTypes types, int bias) {
  const Dtype compute = types.compute;
  const Tensor input = cast(x, compute);
  const bool has_bias = bias >= 0;
  if (has_bias) convert_bias(bias, compute);
  const std::int64_t rows = input.elements / inputs, elements = checked_mul(inputs, outputs);
  if (rows < kFewestRowsOf4Bit) {
    throw NotModelled(
        fmt::format("--method qlora with {} tokens a micro-batch (from {} on it is)", rows, kFewestRowsOf4Bit));
  }
  Tensor y;
  if (rows <= most_rows_of_fused_4bit(inputs, outputs, device_)) {
    Accesses factors{reads(input), reads_parameter(parameter)};
    if (has_bias) factors.push_back(reads_parameter(bias));
    y = multiplied(factors, {rows, outputs, inputs}, value(checked_mul(rows, outputs), compute, "product"));
  } else {
    y = product_with_dequantized(input, parameter, {rows, outputs, inputs}, bias);
  }
  const Tensor codes = has_replaced_layers() ? hooks_->values_of(parameter) : Tensor{};
  y = record(std::move(y), {edge_to(input)}, {}, [=, this](Tensor& g, const std::vector<Tensor>&) {
    if (codes.storage) keep_with_loss(codes);
    Tensor scales = dequantized_scales(parameter, elements);
    Tensor weight = dequantized(reads_hooked(codes, parameter), elements, scales, types.original);
    scales = {};
    if (types.original != compute) {
      weight = computed("aten::_to_copy", {reads(weight)}, temporary(elements, compute, "weight, cast"));
    }
    Tensor gradient = value(checked_mul(rows, inputs), compute, "input gradient");
    ensure_workspace();
    return std::vector<Tensor>{multiplied({reads(g), reads(weight)}, {rows, inputs, outputs}, std::move(gradient))};
  });
  return cast(y, x.dtype);
}

}  // namespace vramfit::eager
