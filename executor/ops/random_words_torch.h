// The words of executor/training/counter_random.h by LibTorch's elementwise calls, in tensors of int64: products and
// sums wrap around as unsigned ones do.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_right_shift.h>

#include <cstdint>

namespace vramfit {

inline std::int64_t as_signed(std::uint64_t word) { return static_cast<std::int64_t>(word); }

/// bits = words >> shift, with zeros shifted in.
inline void shift_right(const at::Tensor& words, at::Tensor& bits, int shift) {
  at::bitwise_right_shift_out(bits, words, shift);
  bits.bitwise_and_(as_signed(~std::uint64_t{0} >> static_cast<unsigned>(shift)));
}

/// words[i] = random_word(key, first + i): the state of SplitMix64 after first + i + 1 steps, mixed. `bits` is as long,
/// and is written over.
inline void draw_words(at::Tensor& words, at::Tensor& bits, std::uint64_t key, std::int64_t first) {
  at::arange_out(words, first + 1, first + 1 + words.numel(), 1);
  words.mul_(as_signed(0x9E3779B97F4A7C15U)).add_(as_signed(key));
  shift_right(words, bits, 30);
  words.bitwise_xor_(bits).mul_(as_signed(0xBF58476D1CE4E5B9U));
  shift_right(words, bits, 27);
  words.bitwise_xor_(bits).mul_(as_signed(0x94D049BB133111EBU));
  shift_right(words, bits, 31);
  words.bitwise_xor_(bits);
}

}  // namespace vramfit
