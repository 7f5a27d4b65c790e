// Losses over whole logits and in chunks, with PyTorch's cross entropy as their truth.
#pragma once

#include "tests/executor/ops/op_check_torch.h"

namespace vramfit::testing {

struct LossTerms {
  double smoothing = 0, z = 0, cap = 0;
};

/// Of `rows` tokens; with more than 20, some have no label.
at::Tensor labels_of(std::int64_t rows, std::int64_t vocabulary);

/// Summed over labelled rows, [1].
at::Tensor loss_of(at::Tensor logits, const at::Tensor& labels, const LossTerms& terms);

OpCase whole_loss(std::int64_t rows, std::int64_t vocabulary, const LossTerms& terms, double scale);
/// Of 29 tokens, 24 columns and 150 words.
OpCase chunked_loss(std::int64_t chunks, const LossTerms& terms, double scale);

}  // namespace vramfit::testing
