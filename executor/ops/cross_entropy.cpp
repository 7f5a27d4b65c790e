#include <array>
#include <cmath>

#include "base/text/units.h"
#include "executor/ops/cross_entropy_torch.h"

namespace vramfit::kernels {

namespace {

template <typename T>
float log_sum_exp(const T* row, std::int64_t n) {
  const float highest = row_maximum(n, [=](std::int64_t c) { return static_cast<float>(row[c]); });
  return highest + std::log(row_sum(n, [=](std::int64_t c) { return fast_exp(static_cast<float>(row[c]) - highest); }));
}

/// The loss of a labelled row.
template <typename T>
double row_loss(const T* row, std::int64_t n, float lse, std::int64_t label, const LossShape& shape) {
  const double of_all = lse;
  double loss = of_all - static_cast<double>(static_cast<float>(row[label]));
  if (shape.smoothing != 0) {
    const double mean = row_sum(n, [=](std::int64_t c) { return static_cast<float>(row[c]); }) / static_cast<double>(n);
    loss = (1 - shape.smoothing) * loss + shape.smoothing * (of_all - mean);
  }
  return shape.z == 0 ? loss : loss + shape.z * of_all * of_all;
}

/// What is the same for all rows of a gradient.
struct RowGradient {
  explicit RowGradient(const LogitsGradient& g)
      : columns(g.target.size(1)),
        scale(static_cast<float>(g.scale)),
        cap(static_cast<float>(g.softcap)),
        z(static_cast<float>(2 * g.shape.z)),
        own(static_cast<float>(1 - g.shape.smoothing)),
        each(static_cast<float>(g.shape.smoothing / static_cast<double>(columns))),
        add(g.add) {}
  /// By which the probabilities of a row are multiplied, but for the scale.
  float factor(float lse) const { return z == 0 ? 1.0F : 1.0F + z * lse; }
  std::int64_t columns;
  float scale, cap, z, own, each;
  bool add;
};

template <typename T>
void gradient_row(const T* logits, T* target, float lse, std::int64_t label, const RowGradient& g) {
  const std::int64_t n = g.columns;
  const float scale = g.scale, cap = g.cap;
  const bool add = g.add;
  if (label == kIgnoredLabel) {
    if (!add) std::fill(target, target + n, T{});
    return;
  }
  // The label's own element is read before the loop may write over it.
  const auto own = static_cast<float>(logits[label]);
  const auto before = static_cast<float>(target[label]);
  const auto slope = [cap](float y) { return cap == 0 ? 1.0F : 1.0F - (y / cap) * (y / cap); };
  const float factor = g.factor(lse), of_probability = scale * factor, of_each = scale * g.each;
  if (cap == 0) {
    VRAMFIT_INDEPENDENT_ELEMENTS
    for (std::int64_t c = 0; c < n; ++c) {
      put(target[c], of_probability * fast_exp(static_cast<float>(logits[c]) - lse) - of_each, add);
    }
  } else {
    VRAMFIT_INDEPENDENT_ELEMENTS
    for (std::int64_t c = 0; c < n; ++c) {
      const auto y = static_cast<float>(logits[c]);
      put(target[c], (of_probability * fast_exp(y - lse) - of_each) * slope(y), add);
    }
  }
  const float value = scale * (factor * std::exp(own - lse) - (g.own + g.each)) * slope(own);
  target[label] = static_cast<T>(add ? before + value : value);
}

void cross_entropy_forward_cpu(OpCall& call) {
  const double sum = cross_entropy_loss({call.inputs[0], call.inputs[1], call.outputs[1]}, LossShape(attributes(call)));
  *data<float>(call.outputs[0]) = static_cast<float>(sum * call.facts.loss_scale);
}

void cross_entropy_backward_cpu(OpCall& call) {
  if (!wants_input(call, 0)) return;
  cross_entropy_gradient({call.inputs[0], call.inputs[1], call.outputs[1]}, {.target = call.input_gradients[0],
                                                                             .shape = LossShape(attributes(call)),
                                                                             .scale = gradient_factor(call),
                                                                             .add = adds_input(call, 0)});
}

}  // namespace

double gradient_factor(const OpCall& call) {
  const at::Tensor* scale = call.facts.gradient_scale;
  return call.facts.loss_scale * (scale == nullptr ? 1.0 : static_cast<double>(*data<float>(*scale)));
}

double cross_entropy_loss(const LogitRows& rows, const LossShape& shape) {
  const std::int64_t count = rows.logits.size(0), n = rows.logits.size(1);
  auto* lse = data<float>(rows.lse);
  const auto* labels = data<std::int64_t>(rows.labels);
  double sum = 0;
  with_type(rows.logits.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const Rows<T> logits(rows.logits);
    const auto loss_of = [&](std::int64_t row) {
      return labels[row] == kIgnoredLabel ? 0 : row_loss(logits[row], n, lse[row], labels[row], shape);
    };
    if (shape.smoothing == 0) {
      parallel_rows(count, n, [=](std::int64_t row) { lse[row] = log_sum_exp(logits[row], n); });
      for (std::int64_t row = 0; row < count; ++row) sum += loss_of(row);
      return;
    }
    // Each loss takes a pass over its row, which is in cache then: sums of stretches of rows, whatever threads they
    // have.
    std::array<double, 256> sums{};
    const std::int64_t rows_of_sum = ceil_div(count, std::ssize(sums));
    parallel_rows(ceil_div(count, rows_of_sum), checked_mul(rows_of_sum, n), [&](std::int64_t part) {
      for (std::int64_t row = part * rows_of_sum; row < std::min(count, (part + 1) * rows_of_sum); ++row) {
        lse[row] = log_sum_exp(logits[row], n);
        sums[static_cast<std::size_t>(part)] += loss_of(row);
      }
    });
    for (const double part : sums) sum += part;
  });
  return sum;
}

void cross_entropy_gradient(const LogitRows& rows, const LogitsGradient& gradient) {
  const auto* lse = data<float>(rows.lse);
  const auto* labels = data<std::int64_t>(rows.labels);
  with_type(rows.logits.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const Rows<T> logits(rows.logits), target(gradient.target);
    const RowGradient of_row(gradient);
    parallel_rows(logits.count, logits.columns,
                  [&](std::int64_t row) { gradient_row(logits[row], target[row], lse[row], labels[row], of_row); });
  });
}

namespace {

void cross_entropy_forward_cuda(OpCall& call) {
  LossBlocks blocks;
  allocate_rows_block(call, call.inputs[0].size(0), call.inputs[0].size(1), blocks);
  allocate_loss_blocks(call, call.inputs[0].size(0), call.inputs[0].size(1), blocks);
  call.outputs[0].zero_();
  cross_entropy_loss_cuda({call.inputs[0], call.inputs[1], call.outputs[1]}, blocks,
                          {LossShape(attributes(call)), call.facts.loss_scale, call.outputs[0]});
}

void cross_entropy_backward_cuda(OpCall& call) {
  if (!wants_input(call, 0)) return;
  LossBlocks blocks;
  allocate_rows_block(call, call.inputs[0].size(0), call.inputs[0].size(1), blocks);
  if (adds_input(call, 0) && !blocks.rows.defined()) {
    blocks.rows = call.temporaries.allocate("rows", call.inputs[0].sizes().vec(), Dtype::f32);
  }
  allocate_label_blocks(call, call.inputs[0].size(0), blocks);
  cross_entropy_gradient_cuda({call.inputs[0], call.inputs[1], call.outputs[1]},
                              {.target = call.input_gradients[0],
                               .shape = LossShape(attributes(call)),
                               .scale = call.facts.loss_scale,
                               .add = adds_input(call, 0),
                               .device_scale = call.facts.gradient_scale},
                              blocks);
}

void cross_entropy_forward_own(OpCall& call) {
  const at::Tensor row_losses = allocate_row_losses(call, call.inputs[0].size(0));
  call.outputs[0].zero_();
  cross_entropy_loss_own({call.inputs[0], call.inputs[1], call.outputs[1]}, row_losses,
                         {LossShape(attributes(call)), call.facts.loss_scale, call.outputs[0]});
}

void cross_entropy_backward_own(OpCall& call) {
  if (!wants_input(call, 0)) return;
  cross_entropy_gradient_own({call.inputs[0], call.inputs[1], call.outputs[1]},
                             {.target = call.input_gradients[0],
                              .shape = LossShape(attributes(call)),
                              .scale = call.facts.loss_scale,
                              .add = adds_input(call, 0),
                              .device_scale = call.facts.gradient_scale});
}

}  // namespace

const DeviceFunctions rows::cross_entropy{.cpu = {cross_entropy_forward_cpu, cross_entropy_backward_cpu},
                                          .cuda = {cross_entropy_forward_cuda, cross_entropy_backward_cuda},
                                          .own_cuda = {cross_entropy_forward_own, cross_entropy_backward_own}};

}  // namespace vramfit::kernels
