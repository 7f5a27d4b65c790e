// scaled_dot_product_attention: which kernel PyTorch 2.11 picks, and what each allocates.
#include <utility>

#include "base/error.h"
#include "program/model_flops.h"
#include "program/pytorch/kernels.h"
#include "program/pytorch/torch.h"

namespace vramfit::eager {

namespace {

constexpr double kForwardProducts = 2, kBackwardProducts = 5;  // of attention

}  // namespace

/// Two products in forward, Q K^T and P V; in backward Q K^T again, and one for each of the gradients of V, P, Q and K.
void Torch::run_attention(const std::string& name, const AttentionShape& s, Dtype dtype, const Accesses& accesses,
                          double products) {
  const bool is_backward = products == kBackwardProducts;
  const auto sequence = static_cast<double>(s.sequence);
  const double scores = static_cast<double>(s.batch * s.heads) * sequence * attended_rows({.causal = true}, sequence);
  heap_.run(name, accesses,
            {.unit = is_backward ? Work::Unit::attention_backward : Work::Unit::attention,
             .dtype = dtype,
             .launches = is_backward ? 2 : 1,
             .flops = 2 * products * scores * static_cast<double>(s.head_dim),
             .bytes = heap_.bytes_of(accesses),
             .shape = {.rows = s.sequence, .columns = s.head_dim}});
}

/// out, lse, [split-keys scratch], rng state, an unused 8 bytes; all but the scratch are saved.
std::vector<Tensor> Torch::flash_forward(const AttentionShape& s, Dtype dtype, Accesses inputs) {
  const std::int64_t rows = checked_mul(checked_mul(s.batch, s.heads), s.sequence);
  std::vector<Tensor> outputs;
  outputs.push_back(value(checked_mul(rows, s.head_dim), dtype, "attention"));
  outputs.push_back(value(rows, Dtype::f32, "attention lse"));
  Tensor split_lse;
  Tensor split_out;
  if (const std::int64_t splits = flash_splits(checked_mul(s.batch, s.heads), s.sequence, s.head_dim, device_);
      splits > 1) {
    split_lse = temporary(checked_mul(splits, rows), Dtype::f32, "attention lse of parts");
    split_out =
        temporary(checked_mul(checked_mul(splits, rows), round_up(s.head_dim, 32)), Dtype::f32, "attention of parts");
  }
  outputs.push_back(value(2, Dtype::i64, "attention rng state"));
  outputs.push_back(value(1, Dtype::i64, "attention rng unused"));
  for (const Tensor& output : outputs) inputs.push_back(writes(output));
  run_attention("aten::_flash_attention_forward", s, dtype, inputs, kForwardProducts);
  return outputs;
}

std::vector<Tensor> Torch::flash_backward(const AttentionShape& s, Dtype dtype, Accesses inputs) {
  const std::int64_t heads = checked_mul(s.batch, s.heads);
  const std::int64_t n = checked_mul(checked_mul(heads, s.sequence), s.head_dim);
  const bool is_shared = s.kv_heads != 0 && s.kv_heads != s.heads;
  const std::int64_t keys = is_shared ? n / s.heads * s.kv_heads : n;
  std::vector<Tensor> gradients;
  gradients.push_back(value(n, dtype, "dq"));
  for (const char* name : {"dk", "dv"}) gradients.push_back(value(keys, dtype, name));
  const std::int64_t padded = checked_mul(heads, round_up(s.sequence, 128));
  const Tensor row_sums = temporary(padded, Dtype::f32, "softmax_d");
  const Tensor sum = temporary(checked_mul(padded, round_up(s.head_dim, 32)), Dtype::f32, "dq_accum");
  const Tensor all_dk = temporary(is_shared ? n : 0, dtype, "dk of all heads");
  const Tensor all_dv = temporary(is_shared ? n : 0, dtype, "dv of all heads");
  for (const Tensor& gradient : gradients) inputs.push_back(writes(gradient));
  run_attention("aten::_flash_attention_backward", s, dtype, inputs, kBackwardProducts);
  return gradients;
}

/// out and lse, padded to 32 queries; the states of random numbers are on the host without dropout.
std::vector<Tensor> Torch::efficient_forward(const AttentionShape& s, Accesses inputs) {
  const std::int64_t heads = checked_mul(s.batch, s.heads);
  std::vector<Tensor> outputs;
  outputs.push_back(value(checked_mul(checked_mul(heads, s.sequence), s.head_dim), Dtype::f32, "attention"));
  outputs.push_back(value(checked_mul(heads, round_up(s.sequence, 32)), Dtype::f32, "attention lse"));
  for (const Tensor& output : outputs) inputs.push_back(writes(output));
  run_attention("aten::_efficient_attention_forward", s, Dtype::f32, inputs, kForwardProducts);
  return outputs;
}

std::vector<Tensor> Torch::efficient_backward(const AttentionShape& s, Accesses inputs) {
  const std::int64_t heads = checked_mul(s.batch, s.heads), rows = checked_mul(heads, s.sequence);
  const std::int64_t n = checked_mul(rows, s.head_dim);
  std::vector<Tensor> gradients;
  for (const char* name : {"dq", "dk", "dv"}) gradients.push_back(value(n, Dtype::f32, name));
  Tensor delta;
  {
    const Tensor product = temporary(n, Dtype::f32, "out times its gradient");
    const Tensor sums = temporary(rows, Dtype::f32, "delta sums");
    delta = temporary(rows, Dtype::f32, "delta");
  }
  const Tensor sum = temporary(efficient_dq_bytes(heads, s.sequence, s.head_dim, device_), Dtype::u8, "dq_accum");
  for (const Tensor& gradient : gradients) inputs.push_back(writes(gradient));
  run_attention("aten::_efficient_attention_backward", s, Dtype::f32, inputs, kBackwardProducts);
  return gradients;
}

/// Random numbers' seed and offset, then out and lse.
std::vector<Tensor> Torch::cudnn_forward(const AttentionShape& s, Dtype dtype, Accesses inputs) {
  const std::int64_t rows = checked_mul(checked_mul(s.batch, s.heads), s.sequence);
  Tensor seed = value(1, Dtype::i64, "attention seed");
  Tensor offset = value(1, Dtype::i64, "attention offset");
  std::vector<Tensor> outputs;
  outputs.push_back(value(checked_mul(rows, s.head_dim), dtype, "attention"));
  outputs.push_back(value(rows, Dtype::f32, "attention lse"));
  outputs.push_back(std::move(seed));
  outputs.push_back(std::move(offset));
  for (const Tensor& output : outputs) inputs.push_back(writes(output));
  run_attention("aten::_cudnn_attention_forward", s, dtype, inputs, kForwardProducts);
  return outputs;
}

/// cudnn-frontend's workspace holds dQ in fp32 and the sum of each row of dO times O.
std::vector<Tensor> Torch::cudnn_backward(const AttentionShape& s, Dtype dtype, Accesses inputs) {
  const std::int64_t rows = checked_mul(checked_mul(s.batch, s.heads), s.sequence);
  const std::int64_t n = checked_mul(rows, s.head_dim);
  const std::int64_t keys = s.kv_heads == 0 ? n : n / s.heads * s.kv_heads;
  std::vector<Tensor> gradients;
  gradients.push_back(value(n, dtype, "dq"));
  for (const char* name : {"dk", "dv"}) gradients.push_back(value(keys, dtype, name));
  const Tensor workspace = temporary(checked_add(n, rows), Dtype::f32, "cuDNN workspace");
  for (const Tensor& gradient : gradients) inputs.push_back(writes(gradient));
  run_attention("aten::_cudnn_attention_backward", s, dtype, inputs, kBackwardProducts);
  return gradients;
}

namespace {

enum class Kernel { flash, efficient, cudnn };

/// Which of PyTorch's kernels computes it. Throws NotModelled where it is its plain one, or would leave `shape` as it
/// is.
Kernel kernel_for(const AttentionShape& shape, Dtype dtype, const Device& device) {
  if (dtype == Dtype::f32) {
    if (shape.kv_heads != 0 && shape.kv_heads != shape.heads) {
      throw NotModelled("attention in fp32 with shared keys and values in PyTorch");
    }
    if (shape.head_dim % 4 != 0 || shape.sequence % 32 != 0) {
      throw NotModelled("attention in fp32 of that head_dim or sequence in PyTorch");
    }
    return Kernel::efficient;
  }
  if (shape.head_dim % 8 != 0 || shape.head_dim > 256) throw NotModelled("attention of that head_dim in PyTorch");
  const bool is_cudnn = shape.may_be_cudnn && shape.sequence > 1 && shape.head_dim <= widest_cudnn_attention(device);
  return is_cudnn ? Kernel::cudnn : Kernel::flash;
}

}  // namespace

std::vector<Tensor> Torch::attention_forward(const AttentionShape& shape, Dtype dtype, Accesses inputs) {
  switch (kernel_for(shape, dtype, device_)) {
    case Kernel::flash:
      break;
    case Kernel::efficient:
      return efficient_forward(shape, std::move(inputs));
    case Kernel::cudnn:
      return cudnn_forward(shape, dtype, std::move(inputs));
  }
  return flash_forward(shape, dtype, std::move(inputs));
}

std::vector<Tensor> Torch::attention_backward(const AttentionShape& shape, Dtype dtype, Accesses inputs) {
  switch (kernel_for(shape, dtype, device_)) {
    case Kernel::flash:
      break;
    case Kernel::efficient:
      return efficient_backward(shape, std::move(inputs));
    case Kernel::cudnn:
      return cudnn_backward(shape, dtype, std::move(inputs));
  }
  return flash_backward(shape, dtype, std::move(inputs));
}

Tensor Torch::attention(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionShape& shape) {
  const auto as_computed = [&](const Tensor& x) { return autocast_ ? cast(x, *autocast_) : x; };
  const Tensor v = as_computed(value), k = as_computed(key), q = as_computed(query);  // the last one first
  const bool wants = q.wants_gradient || k.wants_gradient || v.wants_gradient;
  std::vector<Saved> saved{save(q, wants), save(k, wants), save(v, wants)};
  SelectiveCache* const cache = checkpoints_.cache;
  std::vector<Tensor> outputs;
  if (cache != nullptr && cache->is_recomputing()) {
    outputs = cache->take(Kept::attention);
  } else {
    Accesses inputs{reads(q), reads(k), reads(v)};
    outputs = attention_forward(shape, q.dtype, std::move(inputs));
    if (cache != nullptr) cache->put(Kept::attention, outputs);
  }
  for (const Tensor& output : outputs) saved.push_back(save(output, wants));
  Tensor out = outputs.front();
  return record(std::move(out), {edge_to(q), edge_to(k), edge_to(v)}, std::move(saved),
                [this, shape, dtype = q.dtype](Tensor& g, const std::vector<Tensor>& kept) {
                  Accesses inputs{reads(g)};
                  for (const Tensor& one : kept) inputs.push_back(reads(one));
                  return attention_backward(shape, dtype, std::move(inputs));
                });
}

}  // namespace vramfit::eager
