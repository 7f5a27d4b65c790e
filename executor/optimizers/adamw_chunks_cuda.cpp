#include "executor/optimizers/adamw_chunks_torch.h"

#include <ATen/ops/div.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>

#include "executor/ops/random_words_torch.h"

namespace vramfit {

/// By exp, as pow of a number and a tensor allocates 8 bytes on the GPU.
at::Tensor bias_correction(at::Tensor number, const at::Tensor& steps, double beta) {
  number.copy_(steps);
  return number.mul_(std::log(beta)).exp_().neg_().add_(1);
}

AdamwChunks::AdamwChunks(OptimizerCall& call, std::int64_t block)
    : call_(call),
      scratch_{
          .elements = call.parameters.numel(), .block = block, .rows = call.stretches.empty() ? kRows : kRowsWithWords},
      steps_(call.states.back()) {}

void AdamwChunks::begin() const {
  steps_.add_(1);
  const OptimizerOptions& o = call_.options;
  correction(0, o["beta1"]).reciprocal_().mul_(o.learning_rate);
  number(kStepSize).copy_(corrections().narrow(0, 0, 1));
  correction(1, o["beta2"]).sqrt_();
  number(kRoot).copy_(corrections().narrow(0, 1, 1));
  if (call_.found_inf == nullptr) return;
  number(kKeep).copy_(*call_.found_inf).neg_().add_(1);
  at::Tensor is_skipped = skipped();
  at::ne_out(is_skipped, *call_.found_inf, 0);
}

void AdamwChunks::end() const {
  if (call_.found_inf != nullptr) steps_.sub_(*call_.found_inf);
}

at::Tensor AdamwChunks::skipped() const { return number(kSkipped).view(at::kBool).narrow(0, 0, 1); }

/// Of int64, over two rows.
at::Tensor AdamwChunks::wide_row(int which) const {
  const ScratchPart begin = scratch_.row(which);
  return call_.scratch->narrow(0, begin.begin, 2 * chunk_.count).view(at::kLong);
}

at::Tensor AdamwChunks::correction(std::int64_t moment, double beta) const {
  return bias_correction(corrections().narrow(0, moment, 1), steps_, beta);
}

void AdamwChunks::read_gradient(at::Tensor& g) const {
  g.copy_(of_chunk(call_.gradients, 1));
  if (call_.gradient_divisor != nullptr) g.div_(*call_.gradient_divisor);
  if (call_.found_inf != nullptr) g.nan_to_num_(0, 0, 0);
}

void AdamwChunks::move_averages(at::Tensor& m, at::Tensor& v, const at::Tensor& g) const {
  const OptimizerOptions& o = call_.options;
  m.mul_(o["beta1"]).add_(g, 1 - o["beta1"]);
  v.mul_(o["beta2"]).addcmul_(g, g, 1 - o["beta2"]);
}

/// What parameters lose is gathered in the gradient's place, and is 0 where a gradient overflowed.
void AdamwChunks::update_parameters(const at::Tensor& m, const at::Tensor& v) const {
  const OptimizerOptions& o = call_.options;
  at::Tensor lost = row(2), values = row(3), parameters = of_chunk(call_.parameters, 1);
  at::sqrt_out(lost, v);
  lost.div_(number(kRoot)).add_(o["eps"]);
  at::div_out(lost, m, lost);
  lost.mul_(number(kStepSize));
  values.copy_(parameters);
  lost.add_(values, o.learning_rate * o["weight-decay"]);
  if (call_.found_inf != nullptr) lost.mul_(number(kKeep));
  values.sub_(lost);
  for (const RandomStretch& stretch : call_.stretches) round_randomly(stretch);
  parameters.copy_(values);
}

/// As much of the stretch as is in the chunk, whose values then are numbers of bf16.
void AdamwChunks::round_randomly(const RandomStretch& stretch) const {
  const std::int64_t begin = std::max(stretch.offset, chunk_.first);
  const std::int64_t count = std::min(stretch.offset + stretch.elements, chunk_.first + chunk_.count) - begin;
  if (count <= 0) return;
  at::Tensor words = wide_row(4).narrow(0, 0, count), bits = wide_row(6).narrow(0, 0, count);
  draw_words(words, bits, stretch.key, stretch.first + begin - stretch.offset);
  constexpr int kUnused = 48;
  constexpr std::int64_t kUpperHalf = -0x10000;
  shift_right(words, bits, kUnused);
  at::Tensor values = row(3).narrow(0, begin - chunk_.first, count), rounded = row(2).narrow(0, 0, count);
  rounded.copy_(values);
  rounded.view(at::kInt).add_(bits).bitwise_and_(kUpperHalf);
  values.add_(rounded.sub_(values));  // what isn't a number stays so
}

void AdamwChunks::keep(at::Tensor state, const at::Tensor& values) const {
  if (call_.found_inf == nullptr) {
    state.copy_(values);
    return;
  }
  at::Tensor rounded = row(2).view(state.scalar_type()).narrow(0, 0, values.numel());
  rounded.copy_(values);
  at::where_out(state, skipped(), state, rounded);
}

}  // namespace vramfit
