#include "executor/ops/adapter_torch.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>

#include "executor/ops/gemm_torch.h"
#include "executor/ops/kernels_torch.h"
#include "executor/ops/random_mask_torch.h"
#include "program/ops/lora.h"
#include "program/ops/rules.h"

namespace vramfit::kernels {

namespace {

bool drops(const OpCall& call) { return attributes(call).dropout > 0; }
double scale_of(const OpCall& call) { return attributes(call).scale; }

}  // namespace

Dropout make_dropout(OpCall& call) {
  Dropout d;
  if (!drops(call)) return d;
  const LoraSizes s = lora_sizes(call.context);
  d.dropped = call.temporaries.allocate("dropped", {s.tokens, s.inputs}, call.context.compute());
  if (call.context.device.kind == DeviceKind::cpu || uses_own_kernel(call.context)) return d;
  const std::int64_t part = dropout_part(call.context);
  d.words = call.temporaries.allocate("dropout: words", {part}, Dtype::i64);
  d.bits = call.temporaries.allocate("dropout: bits", {part}, Dtype::i64);
  return d;
}

namespace {

MaskDraw mask_of(const OpCall& call, std::int64_t columns) {
  const auto& graph = call.context.graph;
  const auto a = static_cast<std::size_t>(call.context.op.parameters.front().parameter);
  const std::int64_t row_elements = checked_mul(call.context.shape.sequence, columns);
  return {.key = dropout_key(call.facts.seed, call.facts.step, graph.parameters[a].name),
          .first = checked_mul(call.facts.first_global_row, row_elements),
          .keep = 1 - attributes(call).dropout};
}

}  // namespace

void drop(const OpCall& call, const Dropout& d, const at::Tensor& values) {
  MaskDraw draw = mask_of(call, values.size(1));
  at::Tensor flat = values.view({-1});
  if (uses_own_kernel(call.context)) return mask_by_kernel(flat, flat, draw);
  if (!d.words.defined()) return mask_on_cpu(flat, draw);
  for (std::int64_t first = 0; first < flat.numel(); first += d.words.numel()) {
    at::Tensor part = flat.narrow(0, first, std::min(d.words.numel(), flat.numel() - first));
    mask_by_calls(part, draw, d.words, d.bits);
    draw.first += part.numel();
  }
}

at::Tensor adapter_input(const OpCall& call, const Dropout& d) {
  const at::Tensor& x = call.inputs[0];
  if (!drops(call)) return x;
  at::Tensor dropped = d.dropped;
  if (uses_own_kernel(call.context) && x.is_contiguous()) {
    mask_by_kernel(x, dropped, mask_of(call, x.size(1)));
    return dropped;
  }
  dropped.copy_(x);
  drop(call, d, dropped);
  return dropped;
}

namespace {

Matrix matrix_of(const at::Tensor& t) {
  // A single row or column may be read either way, but its stride must be that of a matrix.
  return t.stride(1) == 1 ? matrix(t) : transpose(matrix(t.t()));
}

void multiply_on_cpu(const Product& p, float* scratch) {
  const Matrix a = matrix_of(p.a), b = matrix_of(p.b), out = matrix(p.out);
  const auto factor = static_cast<float>(p.factor);
  if (out.type == at::kFloat) return multiply_f32(factor, a, b, p.add ? 1.0F : 0.0F, out);
  multiply(a, b, out, {.add = p.add, .product = scratch, .factor = factor});
}

}  // namespace

Products::Products(OpCall& call, std::int64_t scratch) : is_cpu_(call.context.device.kind == DeviceKind::cpu) {
  if (is_cpu_ && scratch > 0) {
    scratch_ = data<float>(call.temporaries.allocate("product", {scratch}, Dtype::f32));
  }
}

void Products::operator()(const Product& p) const {
  if (is_cpu_) return multiply_on_cpu(p, scratch_);
  at::Tensor out = p.out;
  at::addmm_out(out, out, p.a, p.b, p.add ? 1 : 0, p.factor);
}

namespace {

/// Of the rows of W + scale * B A, W lying as rows or as columns.
template <typename T>
void norms_of_rows(const OpCall& call, const at::Tensor& matrix) {
  constexpr std::int64_t kBlock = 256;  // columns
  const Rows<T> a(call.parameters[0]), b(call.parameters[1]);
  const bool swapped = attributes(call).transposed_weight;
  const std::int64_t row_step = matrix.stride(swapped ? 1 : 0), column_step = matrix.stride(swapped ? 0 : 1);
  const T* weight = data<T>(matrix);
  T* norms = data<T>(call.outputs[2]);
  const auto scale = static_cast<float>(scale_of(call));
  parallel_rows(b.count, a.columns * (1 + a.count), [=](std::int64_t row) {
    double squares = 0;
    float sum[kBlock];
    for (std::int64_t first = 0; first < a.columns; first += kBlock) {
      const std::int64_t count = std::min(kBlock, a.columns - first);
      const T* from = weight + row * row_step + first * column_step;
      for (std::int64_t c = 0; c < count; ++c) sum[c] = static_cast<float>(from[c * column_step]);
      for (std::int64_t r = 0; r < a.count; ++r) {
        const float factor = scale * static_cast<float>(b[row][r]);
        const T* to_add = a[r] + first;
        for (std::int64_t c = 0; c < count; ++c) sum[c] += factor * static_cast<float>(to_add[c]);
      }
      squares += row_sum(count, [&](std::int64_t c) { return sum[c] * sum[c]; });
    }
    norms[row] = static_cast<T>(std::sqrt(static_cast<float>(squares)));
  });
}

void norms_by_calls(OpCall& call, const at::Tensor& matrix) {
  const LoraSizes s = lora_sizes(call.context);
  const std::int64_t most = norm_rows(call.context);
  const at::Tensor squares = call.temporaries.allocate("squares", {s.outputs, 1}, Dtype::f32);
  const at::Tensor rows = call.temporaries.allocate("rows", {most, s.inputs}, Dtype::f32);
  const at::Tensor ones = call.temporaries.allocate("ones", {s.inputs, 1}, Dtype::f32).fill_(1);
  at::Tensor a = call.parameters[0], b;
  if (call.context.compute() != Dtype::f32) {
    a = call.temporaries.allocate("A", {s.rank, s.inputs}, Dtype::f32).copy_(a);
    b = call.temporaries.allocate("B", {most, s.rank}, Dtype::f32);
  }
  const at::Tensor weight = attributes(call).transposed_weight ? matrix.t() : matrix;
  for (std::int64_t first = 0; first < s.outputs; first += most) {
    const std::int64_t count = std::min(most, s.outputs - first);
    at::Tensor part = rows.narrow(0, 0, count), sums = squares.narrow(0, first, count);
    at::Tensor left = call.parameters[1].narrow(0, first, count);
    if (b.defined()) left = b.narrow(0, 0, count).copy_(left);
    part.copy_(weight.narrow(0, first, count));
    at::addmm_out(part, part, left, a, 1, scale_of(call));
    part.mul_(part);
    at::mm_out(sums, part, ones);
  }
  squares.sqrt_();
  call.outputs[2].copy_(squares.view({s.outputs}));
}

}  // namespace

void find_norms(OpCall& call, const at::Tensor& matrix) {
  if (call.context.device.kind != DeviceKind::cpu) return norms_by_calls(call, matrix);
  with_type(call.outputs[2].scalar_type(), [&](auto zero) { norms_of_rows<decltype(zero)>(call, matrix); });
}

at::Tensor sums_of_products(OpCall& call, const ScaledSums& of) {
  const at::Tensor& dy = *call.output_gradient;
  const std::int64_t part = of.rows.size(0), tokens = of.kept.size(0), width = of.kept.size(1);
  const at::Tensor ones = call.temporaries.allocate("ones", {part, 1}, Dtype::f32).fill_(1);
  // A column: a row would be taken for a bias, and the product given to cuBLASLt, which wants memory of its own.
  at::Tensor sums = call.temporaries.allocate("sums", {width, 1}, Dtype::f32).zero_();
  for (std::int64_t first = 0; first < tokens; first += part) {
    const std::int64_t count = std::min(part, tokens - first);
    at::Tensor terms = of.rows.narrow(0, 0, count);
    terms.copy_(of.kept.narrow(0, first, count));
    if (of.shift != nullptr) terms.sub_(*of.shift);
    terms.mul_(dy.narrow(0, first, count));
    at::addmm_out(sums, sums, terms.t(), ones.narrow(0, 0, count));
  }
  return sums;
}

}  // namespace vramfit::kernels
