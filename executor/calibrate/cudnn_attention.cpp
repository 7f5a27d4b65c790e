#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>

#include <tuple>

#include "executor/calibrate/cudnn_attention_torch.h"
#include "executor/training/tensor_torch.h"

namespace vramfit {

CudnnAttention::CudnnAttention(const Sizes& sizes, Dtype dtype, at::Device place) : sequence_(sizes.sequence) {
  // Positions first in memory, as products leave them; random, as numbers that are alike take less power.
  const auto made = [&] {
    const at::Tensor numbers = allocate_tensor({1, sizes.sequence, sizes.heads, sizes.head_dim}, dtype,
                                               {place, Category::temporaries, "calibration"});
    return at::Tensor(numbers).uniform_(-1, 1).transpose(1, 2);
  };
  query_ = made();
  key_ = made();
  value_ = made();
  gradient_ = made();
  forward();
}

void CudnnAttention::forward() {
  const auto made = at::_scaled_dot_product_cudnn_attention(query_, key_, value_, {}, /*compute_log_sumexp=*/true,
                                                            /*dropout_p=*/0.0, /*is_causal=*/true);
  out_ = std::get<0>(made);
  lse_ = std::get<1>(made);
  query_starts_ = std::get<2>(made);
  key_starts_ = std::get<3>(made);
  seed_ = std::get<6>(made);
  offset_ = std::get<7>(made);
}

void CudnnAttention::backward() {
  (void)at::_scaled_dot_product_cudnn_attention_backward(gradient_, query_, key_, value_, out_, lse_, seed_, offset_,
                                                         /*attn_bias=*/{}, query_starts_, key_starts_, sequence_,
                                                         sequence_, /*dropout_p=*/0.0, /*is_causal=*/true);
}

}  // namespace vramfit
