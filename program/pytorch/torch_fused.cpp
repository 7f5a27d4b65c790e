// Calls with several outputs or with scratch of their own: attention, embedding, cross entropy.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "job/cluster/reduce_scratch.h"
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

Tensor Torch::attention(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionShape& shape) {
  const auto as_computed = [&](const Tensor& x) { return autocast_ ? cast(x, *autocast_) : x; };
  const Tensor v = as_computed(value), k = as_computed(key), q = as_computed(query);  // the last one first
  const bool is_flash = q.dtype != Dtype::f32;
  if (is_flash && (shape.head_dim % 8 != 0 || shape.head_dim > 256)) {
    throw NotModelled("attention of that head_dim in PyTorch");
  }
  if (!is_flash && shape.kv_heads != 0 && shape.kv_heads != shape.heads) {
    throw NotModelled("attention in fp32 with shared keys and values in PyTorch");
  }
  if (!is_flash && (shape.head_dim % 4 != 0 || shape.sequence % 32 != 0)) {
    throw NotModelled("attention in fp32 of that head_dim or sequence in PyTorch");
  }
  const bool wants = q.wants_gradient || k.wants_gradient || v.wants_gradient;
  std::vector<Saved> saved{save(q, wants), save(k, wants), save(v, wants)};
  SelectiveCache* const cache = checkpoints_.cache;
  std::vector<Tensor> outputs;
  if (cache != nullptr && cache->is_recomputing()) {
    outputs = cache->take(Kept::attention);
  } else {
    Accesses inputs{reads(q), reads(k), reads(v)};
    outputs = is_flash ? flash_forward(shape, q.dtype, std::move(inputs)) : efficient_forward(shape, std::move(inputs));
    if (cache != nullptr) cache->put(Kept::attention, outputs);
  }
  for (const Tensor& output : outputs) saved.push_back(save(output, wants));
  Tensor out = outputs.front();
  return record(std::move(out), {edge_to(q), edge_to(k), edge_to(v)}, std::move(saved),
                [this, shape, is_flash, dtype = q.dtype](Tensor& g, const std::vector<Tensor>& kept) {
                  Accesses inputs{reads(g)};
                  for (const Tensor& one : kept) inputs.push_back(reads(one));
                  return is_flash ? flash_backward(shape, dtype, std::move(inputs))
                                  : efficient_backward(shape, std::move(inputs));
                });
}

Tensor Torch::embedding(const Tensor& ids, int parameter, std::int64_t rows, std::int64_t width, Dtype dtype) {
  const std::int64_t table = checked_mul(rows, width);
  Tensor out = value(checked_mul(ids.elements, width), dtype, "embedding");
  heap_.run("aten::embedding", {reads(ids), reads_parameter(parameter), writes(out)},
            {.bytes = 2 * heap_.bytes_of({writes(out)})});  // rows of the table are read, not all of it
  return record(std::move(out), {edge_to(parameter, table)}, {save(ids, is_trained(parameter))},
                [this, rows, width](Tensor& g, const std::vector<Tensor>& kept) {
                  return std::vector<Tensor>{embedding_gradient(g, kept[0], rows, width)};
                });
}

/// embedding_dense_backward. Few ids: added by atomics. Many: sorted, cut into segments, summed in fp32.
Tensor Torch::embedding_gradient(const Tensor& gradient, const Tensor& read, std::int64_t rows, std::int64_t width) {
  const std::int64_t ids = gradient.elements / width;
  const auto table = [&] {
    return heap_.make(checked_mul(rows, width), gradient.dtype, Category::gradients, "weight gradient");
  };
  const auto summed = [&](Tensor result) {
    const Accesses accesses{reads(gradient), reads(read), writes(result)};
    // The table is filled with zeros. Sorting, cutting into segments and summing them are a dozen small kernels.
    heap_.run("aten::embedding_dense_backward", accesses,
              {.launches = ids <= kUnsortedEmbeddingRows ? 2 : 12, .bytes = heap_.bytes_of(accesses)});
    return result;
  };
  if (ids <= kUnsortedEmbeddingRows) return summed(table());
  // Below some number of rows the partial sums have a different layout: seen at 100, not at 2000.
  if (rows < 2000) throw NotModelled("the embedding's gradient of few rows over many tokens");
  const std::int64_t distinct = std::min(ids, rows);
  const auto indices = [&](const char* what) { return temporary(ids, Dtype::i64, what); };
  const auto scratch = [&](Bytes bytes) { const Tensor t = temporary(bytes.n, Dtype::u8, "cub scratch"); };
  const Tensor sorted = indices("sorted ids");
  const Tensor order = indices("order of ids");
  {
    const Tensor range = indices("range");
    scratch(embedding_sort_scratch(ids));
  }
  Tensor result = table();
  const Tensor offsets = indices("segment offsets");
  const Tensor count = temporary(1, Dtype::i64, "number of segments");
  {
    const Tensor ones = indices("ones");
    scratch(embedding_unique_scratch(ids));
  }
  const Tensor partials = temporary(distinct, Dtype::i64, "partials of segments");
  const Tensor partial_offsets = temporary(distinct, Dtype::i64, "offsets of partials");
  scratch(embedding_scan_scratch(distinct));
  const Tensor total = temporary(1, Dtype::i64, "number of partials");
  const std::int64_t sums = embedding_partials(ids, distinct);
  const Tensor starts = temporary(sums, Dtype::i64, "starts of partials");
  const Tensor partial_sums = temporary(checked_mul(sums, width), Dtype::f32, "partial sums");
  return summed(std::move(result));
}

Tensor Torch::cross_entropy(const Tensor& logits, const Tensor& labels) {
  Tensor log_probabilities = computed("aten::_log_softmax", {reads(logits)}, make_like(logits, "log_softmax"));
  std::vector<Saved> result{save(log_probabilities)};
  log_probabilities =
      record(std::move(log_probabilities), {edge_to(logits)}, std::move(result),
             [this](Tensor& g, const std::vector<Tensor>& kept) {
               return std::vector<Tensor>{computed("aten::_log_softmax_backward_data", {reads(g), reads(kept[0])},
                                                   make_like(g, "log_softmax gradient"))};
             });
  std::vector<Saved> saved{save(log_probabilities)};
  Tensor loss = value(1, Dtype::f32, "loss");
  const Tensor weight = value(1, Dtype::f32, "loss weight");
  heap_.run("aten::nll_loss_forward", {reads(log_probabilities), reads(labels), writes(loss), writes(weight)},
            {.bytes = 2 * heap_.bytes_of({reads(labels)})});  // one number of each row
  saved.push_back(save(weight));
  saved.push_back(save(labels));
  return record(
      std::move(loss), {edge_to(log_probabilities)}, std::move(saved),
      [this, n = logits.elements](Tensor& g, const std::vector<Tensor>& kept) {
        return std::vector<Tensor>{computed("aten::nll_loss_backward", {reads(g), reads(kept[2]), reads(kept[1])},
                                            value(n, Dtype::f32, "nll_loss gradient"))};
      });
}

Tensor Torch::count_true(const Tensor& flags) {
  Tensor count = value(1, Dtype::i64, "sum of flags");
  const Tensor wide = temporary(flags.elements, Dtype::i64, "flags as numbers");
  const ReduceScratch scratch = sum_over_all(flags.elements, device_);  // of numbers of half the size
  const Tensor partials = temporary(2 * scratch.partials.n, Dtype::u8, "partial sums");
  const Tensor counters = temporary(scratch.counters.n, Dtype::u8, "reduction counters");
  return computed("aten::sum", {reads(flags), writes(wide)}, std::move(count));
}

}  // namespace vramfit::eager
