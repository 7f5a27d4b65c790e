// scaled_dot_product_attention: which kernel PyTorch 2.11 picks, and what each allocates.
#include <utility>

#include "base/error.h"
#include "program/model_flops.h"
#include "program/pytorch/calls/kernels.h"
#include "program/pytorch/calls/torch.h"

namespace vramfit::eager {

namespace {

constexpr std::int64_t kOfCudnnEngine = 256;  // bytes, as cuDNN 9.19 asks for on an H200

Work::Unit unit_of(AttentionKernel kernel, bool is_backward) {
  if (kernel == AttentionKernel::cudnn) {
    return is_backward ? Work::Unit::cudnn_attention_backward : Work::Unit::cudnn_attention;
  }
  return is_backward ? Work::Unit::attention_backward : Work::Unit::attention;
}

}  // namespace

/// Two products in forward, Q K^T and P V; in backward Q K^T again, and one for each of the gradients of V, P, Q and K.
void Torch::run_attention(AttentionKernel kernel, const std::string& name, const AttentionShape& s, Dtype dtype,
                          const Accesses& accesses, bool is_backward) {
  const double products = is_backward ? 5 : 2;
  const auto sequence = static_cast<double>(s.sequence);
  const double scores =
      static_cast<double>(s.batch * s.heads) * sequence * attended_rows({.causal = s.causal}, sequence);
  heap_.run(name, accesses,
            {.unit = unit_of(kernel, is_backward),
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
  // Keys are not split where probabilities are dropped (flash_attn/flash_api.cpp: mha_fwd).
  const std::int64_t splits =
      s.drops ? 1 : flash_splits(checked_mul(s.batch, s.heads), s.sequence, s.head_dim, device_);
  if (splits > 1) {
    split_lse = temporary(checked_mul(splits, rows), Dtype::f32, "attention lse of parts");
    split_out =
        temporary(checked_mul(checked_mul(splits, rows), round_up(s.head_dim, 32)), Dtype::f32, "attention of parts");
  }
  outputs.push_back(value(2, Dtype::i64, "attention rng state"));
  outputs.push_back(value(1, Dtype::i64, "attention rng unused"));
  if (s.drops) outputs[2] = value(2, Dtype::i64, "attention rng state");  // made anew for the seed and its offset
  for (const Tensor& output : outputs) inputs.push_back(writes(output));
  run_attention(AttentionKernel::flash, "aten::_flash_attention_forward", s, dtype, inputs, false);
  return outputs;
}

std::vector<Tensor> Torch::flash_backward(const AttentionShape& s, Dtype dtype, Accesses inputs) {
  const std::int64_t heads = checked_mul(s.batch, s.heads);
  const std::int64_t n = checked_mul(checked_mul(heads, s.sequence), s.head_dim);
  const std::int64_t keys = s.shares_heads() ? n / s.heads * s.kv_heads : n;
  const bool has_other_layout = s.heads_first && s.heads > 1;
  const Tensor in_order = temporary(has_other_layout ? n : 0, dtype, "attention, tokens first");
  std::vector<Tensor> gradients;
  gradients.push_back(value(n, dtype, "dq"));
  for (const char* name : {"dk", "dv"}) gradients.push_back(value(keys, dtype, name));
  const std::int64_t padded = checked_mul(heads, round_up(s.sequence, 128));
  const Tensor row_sums = temporary(padded, Dtype::f32, "softmax_d");
  const Tensor sum = temporary(checked_mul(padded, round_up(s.head_dim, 32)), Dtype::f32, "dq_accum");
  const Tensor all_dk = temporary(s.shares_heads() ? n : 0, dtype, "dk of all heads");
  const Tensor all_dv = temporary(s.shares_heads() ? n : 0, dtype, "dv of all heads");
  for (const Tensor& gradient : gradients) inputs.push_back(writes(gradient));
  run_attention(AttentionKernel::flash, "aten::_flash_attention_backward", s, dtype, inputs, true);
  return gradients;
}

/// out and lse, padded to 32 queries; the states of random numbers are on the host without dropout. In
/// 16 bits, the kernels for wide heads add up in fp32 outside of their registers (mem_eff_attention/kernel_forward.h:
/// kNeedsOutputAccumulatorBuffer).
std::vector<Tensor> Torch::efficient_forward(const AttentionShape& s, Dtype dtype, Accesses inputs) {
  const std::int64_t heads = checked_mul(s.batch, s.heads);
  std::vector<Tensor> outputs;
  outputs.push_back(value(checked_mul(checked_mul(heads, s.sequence), s.head_dim), dtype, "attention"));
  const std::int64_t sums_of_rows = s.has_backward ? checked_mul(heads, round_up(s.sequence, 32)) : 0;
  outputs.push_back(value(sums_of_rows, Dtype::f32, "attention lse"));
  const bool is_wide = dtype != Dtype::f32 && s.head_dim > 128;
  const Tensor sums = temporary(is_wide ? outputs.front().elements : 0, Dtype::f32, "attention, added up");
  for (const Tensor& output : outputs) inputs.push_back(writes(output));
  run_attention(AttentionKernel::efficient, "aten::_efficient_attention_forward", s, dtype, inputs, false);
  return outputs;
}

/// In 16 bits the kernel itself multiplies out with its gradient.
std::vector<Tensor> Torch::efficient_backward(const AttentionShape& s, Dtype dtype, Accesses inputs) {
  const std::int64_t heads = checked_mul(s.batch, s.heads), rows = checked_mul(heads, s.sequence);
  const std::int64_t n = checked_mul(rows, s.head_dim);
  std::vector<Tensor> gradients;
  for (const char* name : {"dq", "dk", "dv"}) gradients.push_back(value(n, dtype, name));
  Tensor delta;
  {
    const std::int64_t products = dtype == Dtype::f32 ? n : 0;
    const Tensor product = temporary(products, Dtype::f32, "out times its gradient");
    const Tensor sums = temporary(products / s.head_dim, Dtype::f32, "delta sums");
    // With heads in front, which is where one alone is already.
    delta = dtype == Dtype::f32 && s.heads == 1 ? sums : temporary(rows, Dtype::f32, "delta");
  }
  const std::int64_t bytes = dtype == Dtype::f32
                                 ? efficient_dq_bytes(heads, s.sequence, s.head_dim, device_)
                                 : efficient_workspace_in_16_bits(heads, s.sequence, s.head_dim, device_).n;
  const Tensor sum = temporary(bytes, Dtype::u8, "dq_accum");
  for (const Tensor& gradient : gradients) inputs.push_back(writes(gradient));
  run_attention(AttentionKernel::efficient, "aten::_efficient_attention_backward", s, dtype, inputs, true);
  return gradients;
}

/// Random numbers' seed and offset, then out and lse.
std::vector<Tensor> Torch::cudnn_forward(const AttentionShape& s, Dtype dtype, Accesses inputs) {
  const std::int64_t rows = checked_mul(checked_mul(s.batch, s.heads), s.sequence);
  Tensor seed = value(1, Dtype::i64, "attention seed");
  Tensor offset = value(1, Dtype::i64, "attention offset");
  std::vector<Tensor> outputs;
  outputs.push_back(value(checked_mul(rows, s.head_dim), dtype, "attention"));
  outputs.push_back(value(s.has_backward ? rows : 0, Dtype::f32, "attention lse"));
  outputs.push_back(std::move(seed));
  outputs.push_back(std::move(offset));
  const Tensor workspace = temporary(kOfCudnnEngine, Dtype::u8, "cuDNN workspace");
  for (const Tensor& output : outputs) inputs.push_back(writes(output));
  run_attention(AttentionKernel::cudnn, "aten::_cudnn_attention_forward", s, dtype, inputs, false);
  return outputs;
}

/// cudnn-frontend's workspace holds dQ in fp32 and the sum of each row of dO times O, and cuDNN's engine keeps dK and
/// dV of all heads there before those that share keys and values are summed.
std::vector<Tensor> Torch::cudnn_backward(const AttentionShape& s, Dtype dtype, Accesses inputs) {
  const std::int64_t rows = checked_mul(checked_mul(s.batch, s.heads), s.sequence);
  const std::int64_t n = checked_mul(rows, s.head_dim);
  const std::int64_t keys = s.shares_heads() ? n / s.heads * s.kv_heads : n;
  std::vector<Tensor> gradients;
  gradients.push_back(value(n, dtype, "dq"));
  for (const char* name : {"dk", "dv"}) gradients.push_back(value(keys, dtype, name));
  const std::int64_t of_frontend = checked_mul(checked_add(n, rows), dtype_bytes(Dtype::f32).n);
  const std::int64_t of_heads = s.shares_heads() ? checked_mul(n, 2 * dtype_bytes(dtype).n) : 0;
  const Tensor workspace =
      temporary(checked_add(checked_add(of_frontend, of_heads), kOfCudnnEngine), Dtype::u8, "cuDNN workspace");
  for (const Tensor& gradient : gradients) inputs.push_back(writes(gradient));
  run_attention(AttentionKernel::cudnn, "aten::_cudnn_attention_backward", s, dtype, inputs, true);
  return gradients;
}

AttentionKernel Torch::attention_kernel(const AttentionShape& shape, Dtype dtype, bool has_mask) const {
  if (dtype == Dtype::f32) {
    if (has_mask && device_.compute_capability < 80) {
      throw NotModelled("attention in fp32 with a mask below compute capability 8.0 (--precision fp16-mixed is)");
    }
    if (shape.shares_heads()) return AttentionKernel::math;
    if (shape.head_dim % 4 != 0 || shape.sequence % 32 != 0) {
      throw NotModelled("attention in fp32 of that head_dim or sequence in PyTorch");
    }
    return AttentionKernel::efficient;
  }
  if (shape.head_dim % 8 != 0 || shape.head_dim > 256) throw NotModelled("attention of that head_dim in PyTorch");
  if (device_.compute_capability < 80) {  // sdp_utils.cpp: flash needs 8.0, and the other kernel shares no heads
    return shape.shares_heads() ? AttentionKernel::math : AttentionKernel::efficient;
  }
  const std::int64_t widest =
      shape.asks_for_cudnn ? widest_cudnn_attention_asked_for(device_) : widest_cudnn_attention(device_);
  const bool is_cudnn = shape.may_be_cudnn && shape.sequence > 1 && shape.head_dim <= widest;
  if (is_cudnn) return AttentionKernel::cudnn;
  if (has_mask) return AttentionKernel::efficient;
  // Flash attention has no backward there (sdp_utils.cpp: check_requires_grad_and_head_dim_gt192_...).
  if (shape.head_dim > 192 && (shape.head_dim <= 224 || shape.drops) && !has_large_blocks(device_)) {
    throw NotModelled("attention of that head_dim on this card in PyTorch (--attention math is)");
  }
  return AttentionKernel::flash;
}

std::vector<Tensor> Torch::attention_forward(AttentionKernel kernel, const AttentionShape& shape, Dtype dtype,
                                             Accesses inputs) {
  if (kernel == AttentionKernel::efficient) return efficient_forward(shape, dtype, std::move(inputs));
  if (kernel == AttentionKernel::cudnn) return cudnn_forward(shape, dtype, std::move(inputs));
  return flash_forward(shape, dtype, std::move(inputs));
}

std::vector<Tensor> Torch::attention_backward(AttentionKernel kernel, const AttentionShape& shape, Dtype dtype,
                                              Accesses inputs) {
  if (kernel == AttentionKernel::efficient) return efficient_backward(shape, dtype, std::move(inputs));
  if (kernel == AttentionKernel::cudnn) return cudnn_backward(shape, dtype, std::move(inputs));
  return flash_backward(shape, dtype, std::move(inputs));
}

/// convert_boolean_attn_mask, and for the memory-efficient kernel rows of a multiple of 8.
Tensor Torch::mask_as_numbers(const Tensor& mask, const AttentionShape& shape, Dtype dtype, AttentionKernel kernel) {
  if (!mask.storage) return {};
  Tensor numbers;
  {
    const Tensor lowest = temporary(1, dtype, "minus infinity"), zero = temporary(1, dtype, "zero");
    numbers = computed("aten::where", {reads(mask), reads(zero), reads(lowest)},
                       value(mask.elements, dtype, "mask of scores"));
  }
  const std::int64_t columns = round_up(shape.sequence, 8);
  if (kernel != AttentionKernel::efficient || columns == shape.sequence) return numbers;
  return computed("aten::constant_pad_nd", {reads(numbers)},
                  value(mask.elements / shape.sequence * columns, dtype, "mask of scores, padded"));
}

Tensor Torch::seen_as_heads(Tensor x) {
  Edge edge = edge_to(x);
  return record(std::move(x), {std::move(edge)}, {}, [](Tensor& g, const std::vector<Tensor>&) {
    g.is_view = true;
    return std::vector<Tensor>{g};
  });
}

Tensor Torch::attention(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionShape& shape,
                        const Tensor& mask) {
  const auto as_computed = [&](const Tensor& x) {
    const Tensor heads = seen_as_heads(x);
    return autocast_ ? cast(heads, *autocast_) : heads;
  };
  const Tensor v = as_computed(value), k = as_computed(key), q = as_computed(query);  // the last one first
  const AttentionKernel kernel = attention_kernel(shape, q.dtype, bool{mask.storage});
  if (kernel == AttentionKernel::math) return math_attention(q, k, v, shape);
  const Tensor numbers = mask_as_numbers(mask, shape, q.dtype, kernel);
  const bool wants = q.wants_gradient || k.wants_gradient || v.wants_gradient;
  std::vector<Saved> saved{save(q, wants), save(k, wants), save(v, wants)};
  if (mask.storage) saved.push_back(save(numbers, wants));
  SelectiveCache* const cache = checkpoints_.cache;
  std::vector<Tensor> outputs;
  if (cache != nullptr && cache->is_recomputing()) {
    outputs = cache->take(Kept::attention);
  } else {
    AttentionShape asked = shape;
    asked.has_backward = has_gradients_ && wants;
    outputs = attention_forward(kernel, asked, q.dtype, {reads(q), reads(k), reads(v), reads(numbers)});
    if (cache != nullptr) cache->put(Kept::attention, outputs);
  }
  for (const Tensor& output : outputs) saved.push_back(save(output, wants));
  Tensor out = outputs.front();
  return record(std::move(out), {edge_to(q), edge_to(k), edge_to(v)}, std::move(saved),
                [this, kernel, shape, dtype = q.dtype](Tensor& g, const std::vector<Tensor>& kept) {
                  Accesses inputs{reads(g)};
                  for (const Tensor& one : kept) inputs.push_back(reads(one));
                  return attention_backward(kernel, shape, dtype, std::move(inputs));
                });
}

}  // namespace vramfit::eager
