// flash_attn/flash_attn_interface.py saves what backward needs, and csrc/flash_attn/flash_api.cpp makes the tensors.
// PyTorch has a copy of the kernels with code of its own around them (torch_attention.cpp).
#include "program/pytorch/calls/flash_attn.h"

#include <utility>

#include "base/error.h"
#include "job/cluster/reduce_scratch.h"
#include "program/pytorch/calls/kernels.h"

namespace vramfit::eager {

namespace {

/// Rows of `dims` as the kernels add them up.
std::int64_t rounded_head_dim(std::int64_t dims) { return round_up(dims, dims <= 128 ? 32 : 64); }

/// As the kernels compute them: each document is a row of its own.
AttentionShape by_document(AttentionShape shape, std::int64_t documents) {
  if (documents == 0) return shape;
  shape.sequence = round_up(checked_mul(shape.batch, shape.sequence), documents) / documents;
  shape.batch = documents;
  return shape;
}

}  // namespace

Tensor FlashAttn::constant(const char* call, const Accesses& inputs, std::int64_t elements, Dtype dtype,
                           const char* what) {
  return torch_.computed(call, inputs, torch_.value(elements, dtype, what));
}

/// aten::NAME of all of x, of integers: its sum, least or largest.
Tensor FlashAttn::reduced(const char* name, const Tensor& x) {
  Tensor result = torch_.value(1, x.dtype, name);
  const ReduceScratch scratch = sum_over_all(x.elements, torch_.device());  // of numbers of 4 bytes
  const std::int64_t bytes = scratch.partials.n / 4 * dtype_bytes(x.dtype).n;
  const Tensor partials = torch_.temporary(bytes, Dtype::u8, "partial results");
  const Tensor counters = torch_.temporary(scratch.counters.n, Dtype::u8, "reduction counters");
  return torch_.computed(name, {reads(x)}, std::move(result));
}

/// _is_packed_sequence: whether positions are one range.
void FlashAttn::look_for_documents(const Tensor& positions) {
  const std::int64_t tokens = positions.elements;
  Tensor range;
  {
    const Tensor from_zero = constant("aten::arange", {}, tokens, Dtype::i64, "range");
    const Tensor first = reduced("aten::min", positions);
    range = constant("aten::add", {reads(from_zero), reads(first)}, tokens, Dtype::i64, "one range");
  }
  Tensor sum;
  {
    Tensor distances;
    {
      const Tensor differences =
          constant("aten::sub", {reads(range), reads(positions)}, tokens, Dtype::i64, "differences");
      distances = constant("aten::abs", {reads(differences)}, tokens, Dtype::i64, "distances");
    }
    sum = reduced("aten::sum", distances);
  }
  const Tensor answer = constant("aten::_to_copy", {reads(sum)}, 1, Dtype::u8, "are there several");
}

/// prepare_fa_kwargs_from_position_ids: each begins where positions are the least.
FlashAttn::Found FlashAttn::found_documents(const Tensor& positions, std::int64_t count) {
  Tensor begins;
  {
    Tensor flags;
    {
      const Tensor first = reduced("aten::min", positions);
      flags = constant("aten::eq", {reads(positions), reads(first)}, positions.elements, Dtype::u8, "documents begin");
    }
    begins = torch_.positions_of(flags, count, 1);
  }
  Tensor ends;
  {
    const Tensor narrow = constant("aten::_to_copy", {reads(begins)}, count, Dtype::i32, "where documents begin");
    const Tensor end = constant("aten::_to_copy", {}, 1, Dtype::i32, "end of the row");
    ends = constant("aten::cat", {reads(narrow), reads(end)}, count + 1, Dtype::i32, "ends of documents");
  }
  const Tensor lengths = constant("aten::sub", {reads(ends)}, count, Dtype::i32, "lengths of documents");
  return {.documents = {.count = count, .ends_of_queries = ends, .ends_of_keys = ends},
          .longest = reduced("aten::max", lengths)};
}

/// mha_fwd: out, lse, scratch where keys are split, and the state of random numbers. mha_varlen_fwd splits none.
std::vector<Tensor> FlashAttn::forward(const AttentionShape& s, std::int64_t documents, Dtype dtype, Accesses inputs) {
  const std::int64_t heads = checked_mul(s.batch, s.heads), rows = checked_mul(heads, s.sequence);
  std::vector<Tensor> outputs;
  outputs.push_back(torch_.value(checked_mul(rows, s.head_dim), dtype, "attention"));
  outputs.push_back(torch_.value(rows, Dtype::f32, "attention lse"));
  const std::int64_t splits = documents > 0 ? 1 : flash_splits(heads, s.sequence, s.head_dim, torch_.device());
  const std::int64_t of_parts = splits > 1 ? checked_mul(splits, rows) : 0;
  const Tensor split_lse = torch_.temporary(of_parts, Dtype::f32, "attention lse of parts");
  const Tensor split_out =
      torch_.temporary(checked_mul(of_parts, rounded_head_dim(s.head_dim)), Dtype::f32, "attention of parts");
  outputs.push_back(torch_.value(2, Dtype::i64, "attention rng state"));
  for (const Tensor& output : outputs) inputs.push_back(writes(output));
  torch_.run_attention(AttentionKernel::flash, "flash_attn::_flash_attn_forward", by_document(s, documents), dtype,
                       inputs, false);
  return outputs;
}

/// mha_bwd and mha_varlen_bwd, in which each document has up to 128 rows more.
std::vector<Tensor> FlashAttn::backward(const AttentionShape& s, std::int64_t documents, Dtype dtype, Accesses inputs) {
  const std::int64_t rows = checked_mul(s.batch, s.sequence), n = checked_mul(checked_mul(rows, s.heads), s.head_dim);
  const std::int64_t keys = s.shares_heads() ? n / s.heads * s.kv_heads : n;
  std::vector<Tensor> gradients;
  gradients.push_back(torch_.value(n, dtype, "dq"));
  for (const char* name : {"dk", "dv"}) gradients.push_back(torch_.value(keys, dtype, name));
  const std::int64_t padded =
      documents > 0 ? checked_add(rows, checked_mul(128, documents)) : checked_mul(s.batch, round_up(s.sequence, 128));
  const std::int64_t padded_rows = checked_mul(padded, s.heads);
  const Tensor row_sums = torch_.temporary(padded_rows, Dtype::f32, "softmax_d");
  const Tensor sum = torch_.temporary(checked_mul(padded_rows, rounded_head_dim(s.head_dim)), Dtype::f32, "dq_accum");
  const Tensor all_dk = torch_.temporary(s.shares_heads() ? n : 0, dtype, "dk of all heads");
  const Tensor all_dv = torch_.temporary(s.shares_heads() ? n : 0, dtype, "dv of all heads");
  for (const Tensor& gradient : gradients) inputs.push_back(writes(gradient));
  torch_.run_attention(AttentionKernel::flash, "flash_attn::_flash_attn_backward", by_document(s, documents), dtype,
                       inputs, true);
  return gradients;
}

Tensor FlashAttn::computed(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionShape& shape,
                           const Found& found) {
  const PackedDocuments& documents = found.documents;
  const bool wants = q.wants_gradient || k.wants_gradient || v.wants_gradient;
  std::vector<Tensor> outputs =
      forward(shape, documents.count, q.dtype, {reads(q), reads(k), reads(v), reads(documents.ends_of_queries)});
  std::vector<Saved> saved;
  for (const Tensor& input : {q, k, v}) saved.push_back(torch_.save(input, wants));
  for (const Tensor& output : outputs) saved.push_back(torch_.save(output, wants));
  for (const Tensor& ends : {documents.ends_of_queries, documents.ends_of_keys}) {
    if (ends.storage) saved.push_back(torch_.save(ends, wants));
  }
  Tensor out = outputs.front();
  Torch& torch = torch_;
  return torch_.record(std::move(out), {Torch::edge_to(q), Torch::edge_to(k), Torch::edge_to(v)}, std::move(saved),
                       [&torch, shape, count = documents.count, longest = found.longest, dtype = q.dtype](
                           Tensor& g, const std::vector<Tensor>& kept) {
                         if (longest.storage) torch.keep_with_loss(longest);  // an attribute of the node
                         Accesses inputs{reads(g)};
                         for (const Tensor& one : kept) inputs.push_back(reads(one));
                         return FlashAttn(torch).backward(shape, count, dtype, std::move(inputs));
                       });
}

/// _flash_attention_forward, and where nobody told it the documents _prepare_from_posids, which puts tokens first.
Tensor FlashAttn::attention(const Inputs& inputs, const AttentionShape& shape, const Tensor& positions,
                            const PackedDocuments& documents) {
  if (shape.head_dim % 8 != 0 || shape.head_dim > 256) {
    throw NotModelled("--attention flash-attn of heads that aren't a multiple of 8 dims up to 256");
  }
  const auto autocast = inputs.q.dtype == Dtype::f32 ? torch_.autocast() : std::nullopt;
  const auto taken = [&](const Tensor& x) {
    const Tensor heads = torch_.seen_as_heads(x);
    return autocast ? torch_.cast(heads, *autocast) : heads;
  };
  const Tensor q = taken(inputs.q), k = taken(inputs.k), v = taken(inputs.v);
  if (q.dtype != k.dtype || q.dtype != v.dtype) throw NotModelled("--attention flash-attn of several dtypes");
  const bool is_told = documents.ends_of_queries.storage || shape.batch > 1;
  if (!is_told) look_for_documents(positions);
  const bool is_copied = shape.heads_first && shape.heads > 1;
  if (is_told || documents.count == 0) {
    const Tensor out = computed(q, k, v, shape, {.documents = documents, .longest = {}});
    return is_copied ? torch_.clone(out) : out;
  }
  const Tensor queries = is_copied ? torch_.clone(q) : q;
  const Tensor keys = shape.heads_first && shape.kv_heads > 1 ? torch_.clone(k) : k;
  const Tensor values = inputs.values_lie_apart ? torch_.clone(v) : v;
  return computed(queries, keys, values, shape, found_documents(positions, documents.count));
}

}  // namespace vramfit::eager
