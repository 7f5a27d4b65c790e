#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/mm.h>

#include <cmath>

#include "executor/ops/cross_entropy_torch.h"
#include "executor/ops/gemm_torch.h"
#include "program/ops/rules.h"

namespace vramfit::kernels {

namespace {

/// What every chunk uses: buffers of the longest chunk's rows.
struct Chunks {
  explicit Chunks(const OpCall& call)
      : tokens(call.inputs[0].size(0)),
        width(call.inputs[0].size(1)),
        vocabulary(call.parameters[0].size(0)),
        rows(ceil_div(tokens, attributes(call).chunks)) {}
  std::int64_t tokens, width, vocabulary, rows;
  at::Tensor logits, lse;
  float* product = nullptr;
};

void allocate_chunk(OpCall& call, Chunks& chunks) {
  chunks.logits = call.temporaries.allocate("logits", {chunks.rows, chunks.vocabulary}, call.context.compute());
  chunks.lse = call.temporaries.allocate("lse", {chunks.rows}, Dtype::f32);
}

/// Scratch for every product of the call that isn't stored in fp32; none without one.
void allocate_product(OpCall& call, bool wants_x, bool wants_weight, Chunks& chunks) {
  const std::int64_t elements = chunked_product_elements(call.context, chunks.rows, wants_x, wants_weight);
  if (elements > 0) chunks.product = data<float>(call.temporaries.allocate("product", {elements}, Dtype::f32));
}

LogitRows chunk_rows(const OpCall& call, const Chunks& chunks, std::int64_t first, std::int64_t count) {
  return {chunks.logits.narrow(0, 0, count), call.inputs[1].narrow(0, first, count), chunks.lse.narrow(0, 0, count)};
}

void make_logits(OpCall& call, const Chunks& chunks, std::int64_t first, const at::Tensor& logits) {
  const bool has_bias = call.parameters.size() > 1;
  multiply(row_range(matrix(call.inputs[0]), first, logits.size(0)), transpose(matrix(call.parameters[0])),
           matrix(logits), {.bias = has_bias ? call.parameters[1].data_ptr() : nullptr, .product = chunks.product});
  const auto cap = static_cast<float>(attributes(call).softcap);
  if (cap == 0) return;
  with_type(logits.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T* y = data<T>(logits);
    put_elements<T>(logits, false, [=](std::int64_t e) { return cap * std::tanh(static_cast<float>(y[e]) / cap); });
  });
}

void bias_gradient(OpCall& call, const at::Tensor& d_logits, bool add) {
  with_type(d_logits.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const Rows<T> rows(d_logits);
    with_type(call.parameter_gradients[1].scalar_type(), [&](auto gradient_zero) {
      auto* target = data<decltype(gradient_zero)>(call.parameter_gradients[1]);
      column_sums(
          rows.count, rows.columns, [=](std::int64_t row, std::int64_t c) { return static_cast<float>(rows[row][c]); },
          [=](std::int64_t c, float sum) { put(target[c], sum, add); });
    });
  });
}

/// With a gradient wanted backward does all of it; the loss starts at zero here.
void linear_cross_entropy_forward_cpu(OpCall& call) {
  *data<float>(call.outputs[0]) = 0;
  if (call.needs.any()) return;
  Chunks chunks(call);
  allocate_chunk(call, chunks);
  allocate_product(call, false, false, chunks);
  double sum = 0;
  for (std::int64_t first = 0; first < chunks.tokens; first += chunks.rows) {
    const LogitRows rows = chunk_rows(call, chunks, first, std::min(chunks.rows, chunks.tokens - first));
    make_logits(call, chunks, first, rows.logits);
    sum += cross_entropy_loss(rows, LossShape(attributes(call)));
  }
  *data<float>(call.outputs[0]) = static_cast<float>(sum * call.facts.loss_scale);
}

void linear_cross_entropy_backward_cpu(OpCall& call) {
  Chunks chunks(call);
  const bool wants_x = wants_input(call, 0), wants_weight = wants_parameter(call, 0);
  allocate_chunk(call, chunks);
  allocate_product(call, wants_x, wants_weight, chunks);
  double sum = 0;
  for (std::int64_t first = 0; first < chunks.tokens; first += chunks.rows) {
    const std::int64_t count = std::min(chunks.rows, chunks.tokens - first);
    const LogitRows rows = chunk_rows(call, chunks, first, count);
    make_logits(call, chunks, first, rows.logits);
    sum += cross_entropy_loss(rows, LossShape(attributes(call)));
    cross_entropy_gradient(rows, {.target = rows.logits,
                                  .shape = LossShape(attributes(call)),
                                  .scale = gradient_factor(call),
                                  .softcap = attributes(call).softcap});
    const Matrix d_logits = matrix(rows.logits);
    if (wants_x) {
      multiply(d_logits, matrix(call.parameters[0]), row_range(matrix(call.input_gradients[0]), first, count),
               {.add = adds_input(call, 0), .product = chunks.product});
    }
    if (wants_weight) {
      multiply(transpose(d_logits), row_range(matrix(call.inputs[0]), first, count),
               matrix(call.parameter_gradients[0]),
               {.add = first > 0 || adds_parameter(call, 0), .product = chunks.product});
    }
    if (wants_parameter(call, 1)) bias_gradient(call, rows.logits, first > 0 || adds_parameter(call, 1));
  }
  *data<float>(call.outputs[0]) += static_cast<float>(sum * call.facts.loss_scale);
}

void make_logits_cuda(OpCall& call, std::int64_t first, at::Tensor logits) {
  const at::Tensor x = call.inputs[0].narrow(0, first, logits.size(0)), weight = call.parameters[0].t();
  if (call.parameters.size() > 1) {
    at::addmm_out(logits, call.parameters[1], x, weight);
  } else {
    at::mm_out(logits, x, weight);
  }
  const double cap = attributes(call).softcap;
  if (cap != 0) logits.div_(cap).tanh_().mul_(cap);
}

/// Losses of chunks and their gradients, by own kernels or by ATen's; what they work in is made in the order in which
/// the rule lists it.
class ChunkLosses {
 public:
  ChunkLosses(OpCall& call, const Chunks& chunks) : call_(call), has_own_(uses_own_kernel(call.context)) {
    if (has_own_) {
      row_losses_ = allocate_row_losses(call, chunks.rows);
      return;
    }
    allocate_rows_block(call, chunks.rows, chunks.vocabulary, blocks_);
    allocate_loss_blocks(call, chunks.rows, chunks.vocabulary, blocks_);
    if (call.needs.any()) allocate_label_blocks(call, chunks.rows, blocks_);
  }

  void add_loss(const LogitRows& rows) {
    const LossSum sum{LossShape(attributes(call_)), call_.facts.loss_scale, call_.outputs[0]};
    if (has_own_) return cross_entropy_loss_own(rows, row_losses_.narrow(0, 0, rows.logits.size(0)), sum);
    cross_entropy_loss_cuda(rows, blocks_, sum);
  }

  /// Over the logits.
  void make_gradient(const LogitRows& rows) {
    const LogitsGradient gradient{.target = rows.logits,
                                  .shape = LossShape(attributes(call_)),
                                  .scale = call_.facts.loss_scale,
                                  .softcap = attributes(call_).softcap,
                                  .device_scale = call_.facts.gradient_scale};
    if (has_own_) return cross_entropy_gradient_own(rows, gradient);
    cross_entropy_gradient_cuda(rows, gradient, blocks_);
  }

 private:
  OpCall& call_;
  bool has_own_;
  at::Tensor row_losses_;
  LossBlocks blocks_;
};

void linear_cross_entropy_forward_cuda(OpCall& call) {
  call.outputs[0].zero_();
  if (call.needs.any()) return;
  Chunks chunks(call);
  allocate_chunk(call, chunks);
  ChunkLosses losses(call, chunks);
  for (std::int64_t first = 0; first < chunks.tokens; first += chunks.rows) {
    const LogitRows rows = chunk_rows(call, chunks, first, std::min(chunks.rows, chunks.tokens - first));
    make_logits_cuda(call, first, rows.logits);
    losses.add_loss(rows);
  }
}

/// LibTorch has this sum on CUDA alone; the other form is for tests of this path's values.
void add_product_to_float(const at::Tensor& a, const at::Tensor& b, at::Tensor& gradient) {
  if (a.is_cuda()) {
    at::addmm_out(gradient, gradient, a, b, at::kFloat);
  } else {
    gradient.addmm_(a.to(at::kFloat), b.to(at::kFloat));
  }
}

/// gradient += a b, through `buffer` where that is defined. Otherwise the gradient has the factors' dtype, or is fp32.
void add_product_cuda(const at::Tensor& a, const at::Tensor& b, at::Tensor gradient, at::Tensor buffer) {
  if (buffer.defined()) {
    at::mm_out(buffer, a, b);
    gradient.add_(buffer);
  } else if (gradient.scalar_type() != a.scalar_type()) {
    add_product_to_float(a, b, gradient);
  } else if (gradient.size(0) == 1) {  // as a matrix it would be taken for a bias, and cublasLt's workspace be made
    at::Tensor batch = gradient.unsqueeze(0);
    at::baddbmm_out(batch, batch, a.unsqueeze(0), b.unsqueeze(0));
  } else {
    at::addmm_out(gradient, gradient, a, b);
  }
}

/// Buffers for the sums over chunks.
struct SumBuffers {
  at::Tensor weight, ones, bias;
};

SumBuffers allocate_sums_cuda(OpCall& call, const Chunks& chunks) {
  SumBuffers sums;
  const Dtype compute = call.context.compute();
  const Dtype reduce = call.context.precision.reduce;
  if (wants_parameter(call, 0) && reduce != compute && reduce != Dtype::f32) {
    sums.weight = call.temporaries.allocate("weight_gradient", {chunks.vocabulary, chunks.width}, compute);
  }
  if (wants_parameter(call, 1)) {
    sums.ones = call.temporaries.allocate("ones", {1, chunks.rows}, compute).fill_(1);
    sums.bias = call.temporaries.allocate("bias_gradient", {1, chunks.vocabulary}, compute);
  }
  return sums;
}

void linear_cross_entropy_backward_cuda(OpCall& call) {
  Chunks chunks(call);
  allocate_chunk(call, chunks);
  ChunkLosses losses(call, chunks);
  const SumBuffers sums = allocate_sums_cuda(call, chunks);
  for (std::size_t p = 0; p < call.parameters.size(); ++p) {
    if (wants_parameter(call, p) && !adds_parameter(call, p)) call.parameter_gradients[p].zero_();
  }
  if (wants_input(call, 0) && !adds_input(call, 0)) call.input_gradients[0].zero_();
  for (std::int64_t first = 0; first < chunks.tokens; first += chunks.rows) {
    const std::int64_t count = std::min(chunks.rows, chunks.tokens - first);
    const LogitRows rows = chunk_rows(call, chunks, first, count);
    make_logits_cuda(call, first, rows.logits);
    losses.add_loss(rows);
    losses.make_gradient(rows);
    const at::Tensor &d_logits = rows.logits, x = call.inputs[0].narrow(0, first, count);
    if (wants_input(call, 0)) {
      add_product_cuda(d_logits, call.parameters[0], call.input_gradients[0].narrow(0, first, count), {});
    }
    if (wants_parameter(call, 0)) add_product_cuda(d_logits.t(), x, call.parameter_gradients[0], sums.weight);
    if (wants_parameter(call, 1)) {
      add_product_cuda(sums.ones.narrow(1, 0, count), d_logits, call.parameter_gradients[1].unsqueeze(0), sums.bias);
    }
  }
}

}  // namespace

const DeviceFunctions rows::linear_cross_entropy{
    .cpu = {linear_cross_entropy_forward_cpu, linear_cross_entropy_backward_cpu},
    .cuda = {linear_cross_entropy_forward_cuda, linear_cross_entropy_backward_cuda},
    .own_cuda = {linear_cross_entropy_forward_cuda, linear_cross_entropy_backward_cuda}};

}  // namespace vramfit::kernels
