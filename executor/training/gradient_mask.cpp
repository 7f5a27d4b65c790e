#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "executor/training/counter_random.h"
#include "executor/training/gradient_mask_torch.h"
#include "executor/training/tensor_torch.h"
#include "program/stages/gradient_mask.h"

namespace vramfit {

namespace {

constexpr std::int64_t kGrain = std::int64_t{1} << 16;

/// gradient *= mask, a byte an element, without the temporary that ATen's CPU kernels make of it.
void multiply_by_bytes(at::Tensor& gradient, const at::Tensor& mask) {
  if (gradient.is_cuda()) {
    gradient.mul_(mask);
    return;
  }
  const auto* bytes = mask.const_data_ptr<std::uint8_t>();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, gradient.scalar_type(), "multiply_by_bytes", [&] {
    auto* values = gradient.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, gradient.numel(), kGrain, [&](std::int64_t first, std::int64_t end) {
      for (std::int64_t i = first; i < end; ++i) values[i] = values[i] * static_cast<scalar_t>(bytes[i]);
    });
  });
}

}  // namespace

std::uint64_t mask_key(std::uint64_t seed, std::int64_t step, std::string_view parameter) {
  constexpr std::uint64_t kMaskStreams = 0x6D61736BU;  // "mask": not the stream of the parameter's first weights
  return random_word(stream_key(mix_bits(seed ^ kMaskStreams), parameter), static_cast<std::uint64_t>(step));
}

void GradientMasks::draw(double keep, std::int64_t step, const std::vector<at::Tensor>& gradients) const {
  at::Tensor words, bits;
  if (in_.place.is_cuda()) {
    const std::int64_t elements = mask_part(in_.layout);
    words = allocate_tensor({elements}, Dtype::i64, {in_.place, Category::temporaries, "mask: words"});
    bits = allocate_tensor({elements}, Dtype::i64, {in_.place, Category::temporaries, "mask: bits"});
  }
  for (std::size_t u = 0; u < gradients.size(); ++u) {
    if (!gradients[u].defined()) continue;
    for (const UnitParameter& p : in_.layout.units[u].parameters) {
      if (!p.trainable) continue;
      const std::string& name = in_.graph.parameters[static_cast<std::size_t>(p.parameter)].name;
      const at::Tensor slice = UnitState::slice(gradients[u], p);
      MaskDraw draw{.key = mask_key(in_.seed, step, name), .first = 0, .keep = keep};
      for (std::int64_t first = 0; first < p.shard_elements; first += kMaskPart) {
        at::Tensor part = slice.narrow(0, first, std::min(kMaskPart, p.shard_elements - first));
        draw.first = in_.shard_rank * p.shard_elements + first;
        in_.place.is_cuda() ? mask_by_calls(part, draw, words, bits) : mask_on_cpu(part, draw);
      }
    }
  }
}

void GradientMasks::apply(std::int64_t step, std::vector<at::Tensor>& gradients) const {
  if (const auto* random = std::get_if<RandomGradientMask>(&in_.job.gradient_mask)) {
    draw(random->keep, step, gradients);
  }
  for (std::size_t u = 0; u < masks_.size(); ++u) {
    if (gradients[u].defined()) multiply_by_bytes(gradients[u], masks_[u]);
  }
}

}  // namespace vramfit
