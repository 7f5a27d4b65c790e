#include <ATen/ops/addcmul.h>
#include <ATen/ops/mul.h>

#include "executor/kernels/own_kernels_torch.h"
#include "executor/ops/kernels_torch.h"

namespace vramfit::kernels {

namespace {

/// Halves of a head are the two coordinates of `half` pairs (rotate_half); pairs beyond are left alone.
struct Sizes {
  explicit Sizes(const OpCall& call)
      : heads(attributes(call).heads),
        dim(attributes(call).head_dim),
        half(cos(call).size(1)),
        sequence(call.context.shape.sequence) {}
  static const at::Tensor& cos(const OpCall& call) {
    return (*call.facts.rope_cos)[static_cast<std::size_t>(attributes(call).rope_table)];
  }
  static const at::Tensor& sin(const OpCall& call) {
    return (*call.facts.rope_sin)[static_cast<std::size_t>(attributes(call).rope_table)];
  }
  std::int64_t heads, dim, half, sequence;
};

/// to = or += `from` rotated by sign * angle; in place where they are the same.
template <typename T, typename Buffer>
void rotate_by(const OpCall& call, const at::Tensor& from, const at::Tensor& to, float sign, bool add) {
  const Sizes s(call);
  const Rows<T> source(from), target(to);
  const Rows<Buffer> cos(Sizes::cos(call)), sin(Sizes::sin(call));
  parallel_rows(source.count, source.columns, [=](std::int64_t row) {
    const Buffer *c = cos[row % s.sequence], *n = sin[row % s.sequence];
    for (std::int64_t head = 0; head < s.heads; ++head) {
      const T* x = source[row] + head * s.dim;
      T* y = target[row] + head * s.dim;
      VRAMFIT_INDEPENDENT_ELEMENTS
      for (std::int64_t i = 0; i < s.half; ++i) {
        const auto a = static_cast<float>(x[i]), b = static_cast<float>(x[i + s.half]);
        const auto stay = static_cast<float>(c[i]), turn = sign * static_cast<float>(n[i]);
        put(y[i], a * stay - b * turn, add);
        put(y[i + s.half], b * stay + a * turn, add);
      }
      for (std::int64_t i = 2 * s.half; i < s.dim; ++i) put(y[i], static_cast<float>(x[i]), add);
    }
  });
}

template <typename T>
void rotate(const OpCall& call, const at::Tensor& from, const at::Tensor& to, float sign, bool add) {
  with_type(Sizes::cos(call).scalar_type(),
            [&](auto zero) { rotate_by<T, decltype(zero)>(call, from, to, sign, add); });
}

// outputs[0] is inputs[0].
void rope_forward_cpu(OpCall& call) {
  with_type(call.outputs[0].scalar_type(),
            [&](auto zero) { rotate<decltype(zero)>(call, call.outputs[0], call.outputs[0], 1.0F, false); });
}

void rope_backward_cpu(OpCall& call) {
  if (!wants_input(call, 0)) return;
  with_type(call.output_gradient->scalar_type(), [&](auto zero) {
    rotate<decltype(zero)>(call, *call.output_gradient, call.input_gradients[0], -1.0F, adds_input(call, 0));
  });
}

/// In place with one temporary: half = x1 sin, x1 = x1 cos - x2 sin, x2 = x2 cos + half.
void rotate_cuda(OpCall& call, at::Tensor& x, double sign) {
  const Sizes s(call);
  const std::int64_t tokens = x.size(0);
  at::Tensor half =
      call.temporaries.allocate("half", {tokens / s.sequence, s.sequence, s.heads, s.half}, call.context.compute());
  const at::Tensor heads = x.view({tokens / s.sequence, s.sequence, s.heads, s.dim});
  at::Tensor x1 = heads.narrow(3, 0, s.half), x2 = heads.narrow(3, s.half, s.half);
  const at::Tensor cos = Sizes::cos(call).unsqueeze(1), sin = Sizes::sin(call).unsqueeze(1);
  at::mul_out(half, x1, sin);
  x1.mul_(cos).addcmul_(x2, sin, -sign);
  x2.mul_(cos).add_(half, sign);
}

void rope_forward_cuda(OpCall& call) { rotate_cuda(call, call.outputs[0], 1); }

void rope_backward_cuda(OpCall& call) {
  if (!wants_input(call, 0)) return;
  at::Tensor& dx = call.input_gradients[0];
  if (adds_input(call, 0)) {
    at::Tensor turned = call.temporaries.allocate("turned", dx.sizes().vec(), call.context.compute());
    turned.copy_(*call.output_gradient);
    rotate_cuda(call, turned, -1);
    dx.add_(turned);
    return;
  }
  if (dx.data_ptr() != call.output_gradient->data_ptr()) dx.copy_(*call.output_gradient);
  rotate_cuda(call, dx, -1);
}

struct Turned {
  const at::Tensor &from, &to;
  bool backwards, add;
};

void rotate_own(const OpCall& call, const Turned& turned) {
  const Sizes s(call);
  const at::Tensor &cos = Sizes::cos(call), &sin = Sizes::sin(call), &from = turned.from, &to = turned.to;
  const auto stride = [](const at::Tensor& t) { return std::max(t.stride(0), t.size(1)); };
  check_launch(require_own_kernels().rotate({.from = from.const_data_ptr(),
                                             .to = to.mutable_data_ptr(),
                                             .number = number_of(from.scalar_type()),
                                             .rows = from.size(0),
                                             .from_stride = stride(from),
                                             .to_stride = stride(to),
                                             .heads = static_cast<int>(s.heads),
                                             .dim = static_cast<int>(s.dim),
                                             .half = static_cast<int>(s.half),
                                             .cos = cos.const_data_ptr(),
                                             .sin = sin.const_data_ptr(),
                                             .table = number_of(cos.scalar_type()),
                                             .sequence = s.sequence,
                                             .backwards = turned.backwards,
                                             .add = turned.add},
                                            stream_of(to)));
}

void forward_own(OpCall& call) { rotate_own(call, {call.outputs[0], call.outputs[0], false, false}); }

void backward_own(OpCall& call) {
  if (!wants_input(call, 0)) return;
  rotate_own(call, {*call.output_gradient, call.input_gradients[0], true, adds_input(call, 0)});
}

}  // namespace

const DeviceFunctions rows::rope{.cpu = {rope_forward_cpu, rope_backward_cpu},
                                 .cuda = {rope_forward_cuda, rope_backward_cuda},
                                 .own_cuda = {forward_own, backward_own}};

}  // namespace vramfit::kernels
