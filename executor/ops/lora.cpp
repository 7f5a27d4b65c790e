#include "program/ops/lora.h"

#include <ATen/ops/addmm.h>

#include <algorithm>

#include "executor/ops/gemm_torch.h"
#include "executor/ops/kernels_torch.h"
#include "executor/ops/random_mask_torch.h"

namespace vramfit::kernels {

namespace {

bool drops(const OpCall& call) { return attributes(call).dropout > 0; }
double scale_of(const OpCall& call) { return attributes(call).scale; }

/// Where dropout works, made in the order in which the rule lists it.
struct Dropout {
  at::Tensor dropped;      // [N, I]
  at::Tensor words, bits;  // on CUDA
};

Dropout make_dropout(OpCall& call) {
  Dropout d;
  if (!drops(call)) return d;
  const LoraSizes s = lora_sizes(call.context);
  d.dropped = call.temporaries.allocate("dropped", {s.tokens, s.inputs}, call.context.compute());
  if (call.context.device.kind == DeviceKind::cpu) return d;
  const std::int64_t part = dropout_part(call.context);
  d.words = call.temporaries.allocate("dropout: words", {part}, Dtype::i64);
  d.bits = call.temporaries.allocate("dropout: bits", {part}, Dtype::i64);
  return d;
}

/// Multiplies [N, I] by the mask of this micro-batch: element (row, position, column) of the data order, so that
/// neither the mesh nor a recomputation changes it.
void drop(const OpCall& call, const Dropout& d, const at::Tensor& values) {
  const auto& graph = call.context.graph;
  const auto a = static_cast<std::size_t>(call.context.op.parameters.front().parameter);
  const std::int64_t row_elements = checked_mul(call.context.shape.sequence, values.size(1));
  MaskDraw draw{.key = dropout_key(call.facts.seed, call.facts.step, graph.parameters[a].name),
                .first = checked_mul(call.facts.first_global_row, row_elements),
                .keep = 1 - attributes(call).dropout};
  at::Tensor flat = values.view({-1});
  if (!d.words.defined()) return mask_on_cpu(flat, draw);
  for (std::int64_t first = 0; first < flat.numel(); first += d.words.numel()) {
    at::Tensor part = flat.narrow(0, first, std::min(d.words.numel(), flat.numel() - first));
    mask_by_calls(part, draw, d.words, d.bits);
    draw.first += part.numel();
  }
}

/// What A multiplies.
at::Tensor adapter_input(const OpCall& call, const Dropout& d) {
  if (!drops(call)) return call.inputs[0];
  at::Tensor dropped = d.dropped;
  dropped.copy_(call.inputs[0]);
  drop(call, d, dropped);
  return dropped;
}

/// out = factor * a b, or added to out.
struct Product {
  at::Tensor a, b;  // either may be transposed
  at::Tensor out;
  bool add = false;
  double factor = 1;
};

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

/// Runs products on the call's device; on CPU, 16-bit ones through a scratch that they share.
class Products {
 public:
  Products(OpCall& call, std::int64_t scratch) : is_cpu_(call.context.device.kind == DeviceKind::cpu) {
    if (is_cpu_ && scratch > 0) {
      scratch_ = data<float>(call.temporaries.allocate("product", {scratch}, Dtype::f32));
    }
  }
  void operator()(Product p) const {
    if (is_cpu_) return multiply_on_cpu(p, scratch_);
    at::addmm_out(p.out, p.out, p.a, p.b, p.add ? 1 : 0, p.factor);
  }

 private:
  bool is_cpu_;
  float* scratch_ = nullptr;
};

void forward(OpCall& call) {
  const Products multiply_into(call, lora_forward_scratch(call.context));
  const Dropout dropout = make_dropout(call);
  const at::Tensor& hidden = call.outputs[1];
  multiply_into(
      {.a = adapter_input(call, dropout), .b = call.parameters[0].t(), .out = hidden, .factor = scale_of(call)});
  multiply_into({.a = hidden, .b = call.parameters[1].t(), .out = call.outputs[0], .add = true});
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

const DeviceFunctions rows::lora{.cpu = {forward, backward}, .cuda = {forward, backward}};

}  // namespace vramfit::kernels
