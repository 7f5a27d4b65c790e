#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/bitwise_right_shift.h>

#include "executor/kernels/own_kernels_torch.h"
#include "executor/ops/random_mask_torch.h"
#include "executor/ops/random_words_torch.h"
#include "executor/training/counter_random.h"

namespace vramfit {

namespace {

constexpr std::int64_t kGrain = std::int64_t{1} << 16;
}  // namespace

std::uint64_t dropout_key(std::uint64_t seed, std::int64_t step, std::string_view name) {
  constexpr std::uint64_t kDropoutStreams = 0x64726F70U;  // "drop": not the stream of the parameter's first weights
  return random_word(stream_key(mix_bits(seed ^ kDropoutStreams), name), static_cast<std::uint64_t>(step));
}

void mask_on_cpu(at::Tensor& values, const MaskDraw& draw) {
  const std::uint64_t threshold = threshold_of(draw.keep);
  const auto scale = static_cast<float>(1 / draw.keep);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, values.scalar_type(), "mask_on_cpu", [&] {
    auto* elements = values.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, values.numel(), kGrain, [&](std::int64_t first, std::int64_t end) {
      for (std::int64_t i = first; i < end; ++i) {
        const std::uint64_t word = random_word(draw.key, static_cast<std::uint64_t>(draw.first + i));
        const float factor = is_kept(word, threshold) ? scale : 0.0F;
        elements[i] = static_cast<scalar_t>(static_cast<float>(elements[i]) * factor);  // not finite stays so
      }
    });
  });
}

void mask_by_kernel(const at::Tensor& from, at::Tensor& to, const MaskDraw& draw) {
  check_launch(require_own_kernels().drop({.from = from.const_data_ptr(),
                                           .to = to.mutable_data_ptr(),
                                           .number = number_of(to.scalar_type()),
                                           .elements = to.numel(),
                                           .key = draw.key,
                                           .first = draw.first,
                                           .threshold = threshold_of(draw.keep),
                                           .scale = static_cast<float>(1 / draw.keep)},
                                          stream_of(to)));
}

void mask_by_calls(at::Tensor& values, const MaskDraw& draw, const at::Tensor& words, const at::Tensor& bits) {
  at::Tensor w = words.narrow(0, 0, values.numel()), b = bits.narrow(0, 0, values.numel());
  draw_words(w, b, draw.key, draw.first);
  shift_right(w, b, 64 - kProbabilityBits);
  b.sub_(as_signed(threshold_of(draw.keep)));
  at::bitwise_right_shift_out(b, b, 63);  // of a difference: -1 where it is negative, the value kept; else 0
  values.mul_(b).mul_(-1 / draw.keep);
}

}  // namespace vramfit
