#include <cmath>

#include "executor/ops/cross_entropy_torch.h"

namespace vramfit::kernels {

namespace {

template <typename T>
float log_sum_exp(const T* row, std::int64_t n) {
  const float highest = row_maximum(n, [=](std::int64_t c) { return static_cast<float>(row[c]); });
  return highest + std::log(row_sum(n, [=](std::int64_t c) { return fast_exp(static_cast<float>(row[c]) - highest); }));
}

template <typename T>
void gradient_row(const T* logits, T* target, float lse, std::int64_t label, const LogitsGradient& g) {
  const std::int64_t n = g.target.size(1);
  const auto scale = static_cast<float>(g.scale), cap = static_cast<float>(g.softcap);
  const bool add = g.add;
  if (label == kIgnoredLabel) {
    if (!add) std::fill(target, target + n, T{});
    return;
  }
  // The label's own element is read before the loop may write over it.
  const auto own = static_cast<float>(logits[label]);
  const auto before = static_cast<float>(target[label]);
  const auto slope = [cap](float y) { return cap == 0 ? 1.0F : 1.0F - (y / cap) * (y / cap); };
  if (cap == 0) {
    VRAMFIT_INDEPENDENT_ELEMENTS
    for (std::int64_t c = 0; c < n; ++c) put(target[c], scale * fast_exp(static_cast<float>(logits[c]) - lse), add);
  } else {
    VRAMFIT_INDEPENDENT_ELEMENTS
    for (std::int64_t c = 0; c < n; ++c) {
      const auto y = static_cast<float>(logits[c]);
      put(target[c], scale * fast_exp(y - lse) * slope(y), add);
    }
  }
  const float value = scale * (std::exp(own - lse) - 1.0F) * slope(own);
  target[label] = static_cast<T>(add ? before + value : value);
}

void forward_cpu(OpCall& call) {
  const double sum = cross_entropy_loss({call.inputs[0], call.inputs[1], call.outputs[1]});
  *data<float>(call.outputs[0]) = static_cast<float>(sum * call.facts.loss_scale);
}

void backward_cpu(OpCall& call) {
  if (!wants_input(call, 0)) return;
  cross_entropy_gradient(
      {call.inputs[0], call.inputs[1], call.outputs[1]},
      {.target = call.input_gradients[0], .scale = gradient_factor(call), .add = adds_input(call, 0)});
}

}  // namespace

double gradient_factor(const OpCall& call) {
  const at::Tensor* scale = call.facts.gradient_scale;
  return call.facts.loss_scale * (scale == nullptr ? 1.0 : static_cast<double>(*data<float>(*scale)));
}

double cross_entropy_loss(const LogitRows& rows) {
  const std::int64_t count = rows.logits.size(0), n = rows.logits.size(1);
  auto* lse = data<float>(rows.lse);
  const auto* labels = data<std::int64_t>(rows.labels);
  double sum = 0;
  with_type(rows.logits.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const Rows<T> logits(rows.logits);
    parallel_rows(count, n, [=](std::int64_t row) { lse[row] = log_sum_exp(logits[row], n); });
    for (std::int64_t row = 0; row < count; ++row) {
      if (labels[row] == kIgnoredLabel) continue;
      sum += static_cast<double>(lse[row]) - static_cast<double>(static_cast<float>(logits[row][labels[row]]));
    }
  });
  return sum;
}

void cross_entropy_gradient(const LogitRows& rows, const LogitsGradient& gradient) {
  const auto* lse = data<float>(rows.lse);
  const auto* labels = data<std::int64_t>(rows.labels);
  with_type(rows.logits.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const Rows<T> logits(rows.logits), target(gradient.target);
    parallel_rows(logits.count, logits.columns,
                  [&](std::int64_t row) { gradient_row(logits[row], target[row], lse[row], labels[row], gradient); });
  });
}

namespace {

void forward_cuda(OpCall& call) {
  LossBlocks blocks;
  allocate_rows_block(call, call.inputs[0].size(0), call.inputs[0].size(1), blocks);
  allocate_loss_blocks(call, call.inputs[0].size(0), call.inputs[0].size(1), blocks);
  call.outputs[0].zero_();
  cross_entropy_loss_cuda({call.inputs[0], call.inputs[1], call.outputs[1]}, call.facts.loss_scale, blocks,
                          call.outputs[0]);
}

void backward_cuda(OpCall& call) {
  if (!wants_input(call, 0)) return;
  LossBlocks blocks;
  allocate_rows_block(call, call.inputs[0].size(0), call.inputs[0].size(1), blocks);
  if (adds_input(call, 0) && !blocks.rows.defined()) {
    blocks.rows = call.temporaries.allocate("rows", call.inputs[0].sizes().vec(), Dtype::f32);
  }
  allocate_label_blocks(call, call.inputs[0].size(0), blocks);
  cross_entropy_gradient_cuda({call.inputs[0], call.inputs[1], call.outputs[1]},
                              {.target = call.input_gradients[0],
                               .scale = call.facts.loss_scale,
                               .add = adds_input(call, 0),
                               .device_scale = call.facts.gradient_scale},
                              blocks);
}

}  // namespace

const DeviceFunctions rows::cross_entropy{.cpu = {forward_cpu, backward_cpu}, .cuda = {forward_cuda, backward_cuda}};

}  // namespace vramfit::kernels
