#include <ATen/ops/addcmul.h>
#include <ATen/ops/mul.h>

#include "executor/ops/adapter_torch.h"
#include "executor/ops/kernels_torch.h"
#include "program/ops/lora.h"
#include "program/ops/magnitude.h"

namespace vramfit::kernels {

namespace {

constexpr std::size_t kA = 0, kB = 1, kMagnitudes = 2, kMatrix = 3;  // parameters
constexpr std::size_t kOut = 0, kHidden = 1, kNorms = 2, kSum = 3;   // outputs

double scale_of(const OpCall& call) { return attributes(call).scale; }
bool is_on_cpu(const OpCall& call) { return call.context.device.kind == DeviceKind::cpu; }

/// Whose shape is (I, O).
at::Tensor as_columns(const OpCall& call) {
  return attributes(call).transposed_weight ? call.parameters[kMatrix] : call.parameters[kMatrix].t();
}

at::Tensor scaled_b(OpCall& call) {
  const LoraSizes s = lora_sizes(call.context);
  return call.temporaries.allocate("B, scaled", {s.outputs, s.rank}, call.context.compute());
}

/// Magnitudes over norms, one for each output: found by loops on CPU, as they are needed, and on CUDA once, by calls.
class Factors {
 public:
  explicit Factors(OpCall& call) : call_(call), is_cpu_(is_on_cpu(call)) {
    if (is_cpu_) return;
    factors_ = call.temporaries.allocate("factors", {1, call.outputs[kNorms].numel()}, Dtype::f32);
    factors_.copy_(call.outputs[kNorms]).reciprocal_().mul_(call.parameters[kMagnitudes]);
  }

  /// [N, O]: to = (factor - 1) from, or added to it. `changes`: on CUDA, room [1, O] for factor - 1; the factors' own
  /// once nothing reads them.
  void change(const at::Tensor& from, at::Tensor to, bool add, at::Tensor changes) const {
    if (!is_cpu_) {
      changes.copy_(factors_).sub_(1);
      if (add) {
        to.addcmul_(from, changes);
      } else {
        at::mul_out(to, from, changes);
      }
      return;
    }
    with_type(to.scalar_type(), [&](auto zero) { change_rows<decltype(zero)>(from, to, add); });
  }

  /// [O, R]: to = factor * from row by row, or added to it.
  void scale_rows(const at::Tensor& from, at::Tensor to, bool add) const {
    if (!is_cpu_) {
      if (add) {
        to.addcmul_(from, factors_.t());
      } else {
        at::mul_out(to, from, factors_.t());
      }
      return;
    }
    with_type(to.scalar_type(), [&](auto zero) { scale_rows_on_cpu<decltype(zero)>(from, to, add); });
  }

  const at::Tensor& on_cuda() const { return factors_; }

 private:
  template <typename T>
  void change_rows(const at::Tensor& from, const at::Tensor& to, bool add) const {
    const Rows<T> x(from), y(to);
    const T *norms = data<T>(call_.outputs[kNorms]), *magnitudes = data<T>(call_.parameters[kMagnitudes]);
    parallel_rows(x.count, x.columns, [=](std::int64_t row) {
      const T* values = x[row];
      T* target = y[row];
      VRAMFIT_INDEPENDENT_ELEMENTS
      for (std::int64_t c = 0; c < x.columns; ++c) {
        const float factor = static_cast<float>(magnitudes[c]) / static_cast<float>(norms[c]);
        put(target[c], (factor - 1) * static_cast<float>(values[c]), add);
      }
    });
  }

  template <typename T>
  void scale_rows_on_cpu(const at::Tensor& from, const at::Tensor& to, bool add) const {
    const Rows<T> x(from), y(to);
    const T *norms = data<T>(call_.outputs[kNorms]), *magnitudes = data<T>(call_.parameters[kMagnitudes]);
    parallel_rows(x.count, x.columns, [=](std::int64_t row) {
      const float factor = static_cast<float>(magnitudes[row]) / static_cast<float>(norms[row]);
      const T* values = x[row];
      T* target = y[row];
      VRAMFIT_INDEPENDENT_ELEMENTS
      for (std::int64_t c = 0; c < x.columns; ++c) put(target[c], factor * static_cast<float>(values[c]), add);
    });
  }

  OpCall& call_;
  bool is_cpu_;
  at::Tensor factors_;
};

/// As PEFT adds them: W x' times f - 1, then h B^T times f. While magnitudes are the norms, the first adds nothing.
void forward(OpCall& call) {
  const Products multiply_into(call, dropped_dora_forward_scratch(call.context));
  const Dropout dropout = make_dropout(call);
  const at::Tensor &out = call.outputs[kOut], &hidden = call.outputs[kHidden], &sum = call.outputs[kSum];
  const at::Tensor kept = adapter_input(call, dropout);
  multiply_into({.a = kept, .b = call.parameters[kA].t(), .out = hidden, .factor = scale_of(call)});
  multiply_into({.a = kept, .b = as_columns(call), .out = sum});
  find_norms(call, call.parameters[kMatrix]);
  const Factors factors(call);
  at::Tensor changes;
  if (!is_on_cpu(call)) changes = call.temporaries.allocate("changes", factors.on_cuda().sizes().vec(), Dtype::f32);
  factors.change(sum, out, true, changes);
  const at::Tensor b = scaled_b(call);
  factors.scale_rows(call.parameters[kB], b, false);
  multiply_into({.a = hidden, .b = b.t(), .out = out, .add = true});
  multiply_into({.a = hidden, .b = call.parameters[kB].t(), .out = sum, .add = true});
}

template <typename T>
void magnitude_gradient_on_cpu(const OpCall& call) {
  const Rows<T> sum(call.outputs[kSum]), dy(*call.output_gradient);
  const T* norms = data<T>(call.outputs[kNorms]);
  T* target = data<T>(call.parameter_gradients[kMagnitudes]);
  const bool add = adds_parameter(call, kMagnitudes);
  column_sums(
      sum.count, sum.columns,
      [=](std::int64_t row, std::int64_t c) {
        return static_cast<float>(dy[row][c]) * static_cast<float>(sum[row][c]);
      },
      [=](std::int64_t c, float total) { put(target[c], total / static_cast<float>(norms[c]), add); });
}

void magnitude_gradient(OpCall& call) {
  if (is_on_cpu(call)) {
    with_type(call.output_gradient->scalar_type(), [&](auto zero) { magnitude_gradient_on_cpu<decltype(zero)>(call); });
    return;
  }
  const at::Tensor& sum = call.outputs[kSum];
  const std::int64_t width = sum.size(1);
  const at::Tensor rows = call.temporaries.allocate("rows", {summed_tokens(sum.size(0), width), width}, Dtype::f32);
  at::Tensor sums = sums_of_products(call, {.kept = sum, .rows = rows}).view({width});
  sums.div_(call.outputs[kNorms]);
  at::Tensor& target = call.parameter_gradients[kMagnitudes];
  adds_parameter(call, kMagnitudes) ? target.add_(sums) : target.copy_(sums);
}

/// What reaches x through A and B, and through the matrix f - 1 times; the rest is the linear's affair.
void input_gradient(OpCall& call, const Products& multiply_into, const Factors& factors, const at::Tensor& hidden,
                    const Dropout& dropout) {
  const LoraSizes s = lora_sizes(call.context);
  at::Tensor target = call.input_gradients[0];
  const at::Tensor changed =
      call.temporaries.allocate("changed gradient", {s.tokens, s.outputs}, call.context.compute());
  const bool add = adds_input(call, 0);
  const at::Tensor masked = add ? dropout.dropped : target;
  factors.change(*call.output_gradient, changed, false, factors.on_cuda());
  multiply_into({.a = changed, .b = as_columns(call).t(), .out = masked});
  multiply_into({.a = hidden, .b = call.parameters[kA], .out = masked, .add = true});
  drop(call, dropout, masked);
  if (add) target.add_(masked);
}

void backward(OpCall& call) {
  pass_gradient(call, 1);
  const bool wants_hidden = wants_hidden_gradient(call.needs), wants_b = wants_parameter(call, kB);
  if (!wants_hidden && !wants_b && !wants_parameter(call, kMagnitudes)) return;
  const at::Tensor& dy = *call.output_gradient;
  const Products multiply_into(call, dropped_dora_backward_scratch(call.context, call.needs));
  const Factors factors(call);
  if (wants_parameter(call, kMagnitudes)) magnitude_gradient(call);
  if (!wants_hidden && !wants_b) return;
  const at::Tensor b = scaled_b(call);
  if (wants_b) {
    multiply_into({.a = dy.t(), .b = call.outputs[kHidden], .out = b});
    factors.scale_rows(b, call.parameter_gradients[kB], adds_parameter(call, kB));
  }
  if (!wants_hidden) return;
  const LoraSizes s = lora_sizes(call.context);
  const at::Tensor hidden = call.temporaries.allocate("hidden gradient", {s.tokens, s.rank}, call.context.compute());
  const Dropout dropout = make_dropout(call);
  factors.scale_rows(call.parameters[kB], b, false);
  multiply_into({.a = dy, .b = b, .out = hidden, .factor = scale_of(call)});
  if (wants_parameter(call, kA)) {
    multiply_into({.a = hidden.t(),
                   .b = adapter_input(call, dropout),
                   .out = call.parameter_gradients[kA],
                   .add = adds_parameter(call, kA)});
  }
  if (wants_input(call, 0)) input_gradient(call, multiply_into, factors, hidden, dropout);
}

}  // namespace

const DeviceFunctions rows::dropped_dora{
    .cpu = {forward, backward}, .cuda = {forward, backward}, .own_cuda = {forward, backward}};

}  // namespace vramfit::kernels
