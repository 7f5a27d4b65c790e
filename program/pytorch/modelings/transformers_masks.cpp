// Masks of attention as transformers makes them (masking_utils.py), for rows that are full.
#include "program/pytorch/modelings/transformers_masks.h"

#include <algorithm>

#include "program/pytorch/calls/kernels.h"
#include "program/pytorch/modelings/transformers.h"

namespace vramfit::eager {

Tensor Masks::constant(const char* call, const Accesses& inputs, std::int64_t elements, Dtype dtype, const char* what) {
  return torch_.computed(call, inputs, torch_.heap().make(elements, dtype, Category::activations, what));
}

/// Whether all of it is 1 (fast_all), so that attention needs none.
void Masks::look_at_flags(const Tensor& flags) {
  const Tensor sum = torch_.count_true(flags);
  const Tensor answer = constant("aten::eq", {reads(sum)}, 1, Dtype::u8, "all");
}

/// _ignore_bidirectional_mask_sdpa: padding_mask.all()
void Masks::look_for_padding(const Tensor& given) {
  const Scope scope(torch_.heap(), "mask");
  const Tensor flags = constant("aten::_to_copy", {reads(given)}, given.elements, Dtype::u8, "flags");
  const Tensor answer = torch_.all_true(flags);
}

/// and_masks: each part makes its tensor when its turn comes, and is joined to those before it, of `elements`.
Tensor Masks::all_of(const std::vector<MaskPart>& parts) {
  Tensor result = constant("aten::new_ones", {}, 1, Dtype::u8, "true");
  for (const auto& [make, elements] : parts) {
    const Tensor flags = make();
    result = constant("aten::bitwise_and", {reads(result), reads(flags)}, elements, Dtype::u8, "allowed");
  }
  return result;
}

/// Indices of sdpa_mask.
Masks::Places Masks::places() {
  const auto range = [&](std::int64_t count) { return constant("aten::arange", {}, count, Dtype::i64, "range"); };
  const auto positions = [&] {
    const Tensor from_zero = range(for_.sequence);
    return constant("aten::add", {reads(from_zero)}, for_.sequence, Dtype::i64, "positions");
  };
  Places places{.batches = range(for_.batch), .heads = range(1), .queries = {}, .keys = {}};
  places.queries = positions();
  places.keys = positions();
  return places;
}

Tensor Masks::keys_before(const Tensor& queries, const Tensor& keys, std::int64_t window) {
  const std::int64_t scores = checked_mul(for_.sequence, for_.sequence);
  const auto causal = [&] { return constant("aten::le", {reads(keys), reads(queries)}, scores, Dtype::u8, "causal"); };
  const auto within_window = [&] {
    const Tensor first = constant("aten::sub", {reads(queries)}, for_.sequence, Dtype::i64, "first keys");
    return constant("aten::gt", {reads(keys), reads(first)}, scores, Dtype::u8, "within the window");
  };
  return window == 0 ? causal() : all_of({{within_window, scores}, {causal, scores}});
}

/// sdpa_mask: which keys each query may see, for each row of the batch.
Tensor Masks::allowed_keys(const Tensor& padding, std::int64_t window) {
  const std::int64_t scores = checked_mul(for_.sequence, for_.sequence);
  const Places at = places();
  const auto seen = [&] { return keys_before(at.queries, at.keys, window); };
  const auto whole = [&] {
    // Indices are copied where they are expanded to the shape of both (at::index).
    const Tensor rows = constant("aten::clone", {reads(at.batches)}, padding.elements, Dtype::i64, "rows of the batch");
    Tensor columns;
    if (for_.batch > 1) {
      columns = constant("aten::clone", {reads(at.keys)}, padding.elements, Dtype::i64, "keys of each row");
    }
    return constant("aten::index", {reads(padding), reads(at.batches), reads(at.keys)}, padding.elements, Dtype::u8,
                    "not padding");
  };
  return all_of({{seen, scores}, {whole, checked_mul(for_.batch, scores)}});
}

/// find_packed_sequence_indices: a document begins where positions don't go on.
Tensor Masks::documents_of(const Tensor& positions) {
  const std::int64_t tokens = for_.sequence;
  const Tensor before = constant("aten::sub", {reads(positions)}, 1, Dtype::i64, "position before the first");
  Tensor steps;
  {
    const Tensor all = constant("aten::cat", {reads(before), reads(positions)}, checked_add(tokens, 1), Dtype::i64,
                                "positions, and one before");
    steps = constant("aten::sub", {reads(all)}, tokens, Dtype::i64, "steps of positions");
  }
  Tensor documents;
  {
    const Tensor begins = constant("aten::ne", {reads(steps)}, tokens, Dtype::u8, "where documents begin");
    documents = torch_.heap().make(tokens, Dtype::i64, Category::activations, "documents");
    const Tensor numbers = torch_.heap().make(tokens, Dtype::i64, Category::temporaries, "beginnings as numbers");
    const Tensor scratch = torch_.heap().make(scan_scratch(tokens).n, Dtype::u8, Category::temporaries, "cub scratch");
    torch_.heap().run("aten::cumsum", {reads(begins), writes(numbers), writes(documents)});
  }
  const Tensor is_first = constant("aten::eq", {reads(documents)}, 1, Dtype::u8, "is it the first document");
  const Tensor answer = torch_.all_true(is_first);
  return documents;
}

/// packed_sequence_compatibility_function
Tensor Masks::keys_of_documents(const Tensor& positions, const Tensor& documents, std::int64_t window) {
  const std::int64_t tokens = for_.sequence, scores = checked_mul(tokens, tokens);
  const Places at = places();
  const auto of_each = [&](const Tensor& numbers, const Tensor& places_of_these, const char* what) {
    const Tensor rows = constant("aten::clone", {reads(at.batches)}, tokens, Dtype::i64, "rows of the batch");
    return constant("aten::index", {reads(numbers), reads(rows), reads(places_of_these)}, tokens, Dtype::i64, what);
  };
  const auto of_one = [&] {
    const Tensor of_queries = of_each(documents, at.queries, "documents of queries");
    const Tensor of_keys = of_each(documents, at.keys, "documents of keys");
    return constant("aten::eq", {reads(of_queries), reads(of_keys)}, scores, Dtype::u8, "of one document");
  };
  const auto seen = [&] {
    const Tensor queries = of_each(positions, at.queries, "positions of queries");
    const Tensor keys = of_each(positions, at.keys, "positions of keys");
    return keys_before(queries, keys, window);
  };
  return all_of({{of_one, scores}, {seen, scores}});
}

Tensor Masks::of_documents(const Tensor& positions, std::int64_t window) {
  const Scope scope(torch_.heap(), "mask");
  const Tensor documents = documents_of(positions);
  const Tensor allowed = keys_of_documents(positions, documents, window);
  return for_.is_eager ? as_numbers(allowed) : allowed;
}

/// flash_attention_mask: none, where no token is padding. Documents are looked for, and found again by the kernels.
void Masks::look_for_flash_attn(const Tensor& given, bool packs_documents) {
  if (!packs_documents) return look_for_padding(given);
  const Scope scope(torch_.heap(), "mask");
  const Tensor documents = documents_of(given);
}

Tensor Masks::as_numbers(const Tensor& allowed) {
  const Tensor zero = constant("aten::zeros", {}, 1, for_.dtype, "zero");
  const Tensor least = constant("aten::scalar_tensor", {}, 1, for_.dtype, "least number");
  return constant("aten::where", {reads(allowed), reads(zero), reads(least)}, allowed.elements, for_.dtype,
                  "mask of scores");
}

/// None where PyTorch's kernels are causal by themselves. Eager attention adds it, and so needs numbers.
Tensor Masks::of_scores(const Tensor& given, std::int64_t window) {
  const Scope scope(torch_.heap(), "mask");
  const Tensor flags = constant("aten::_to_copy", {reads(given)}, given.elements, Dtype::u8, "flags");
  if (!for_.is_eager && !hides_keys(window, for_.sequence)) {
    look_at_flags(flags);
    return {};
  }
  const Tensor allowed = allowed_keys(flags, window);
  return for_.is_eager ? as_numbers(allowed) : allowed;
}

/// Mistral, Phi-3 and models with experts make the mask that their layers have; the others the one without a window in
/// any case, and Gemma 2, Gemma 3 and gpt-oss both.
void Transformers::make_masks(const Tensor& given) {
  const auto has_window = [](const LlamaBlock& l) { return l.window > 0; };
  const auto windowed = std::ranges::find_if(llama_.blocks, has_window);
  const LlamaBlock& first = llama_.blocks.front();
  const bool has_code_for_one = llama_.style.has_experts || (first.q_norm < 0 && first.q.bias < 0);
  const bool is_of_one_kind = !llama_.style.has_sinks && std::ranges::all_of(llama_.blocks, has_window) &&
                              !llama_.style.has_post_norms && has_code_for_one;
  Masks masks(
      torch_,
      {.batch = llama_.sizes.batch, .sequence = llama_.sizes.sequence, .dtype = hidden_dtype_, .is_eager = is_eager_});
  const auto mask_of = [&](std::int64_t window) -> Tensor {
    if (is_flash_attn_) {
      masks.look_for_flash_attn(given, packs_documents_);
      return {};
    }
    return packs_documents_ ? masks.of_documents(given, window) : masks.of_scores(given, window);
  };
  if (!is_of_one_kind) mask_ = mask_of(0);
  if (windowed != llama_.blocks.end()) window_mask_ = mask_of(windowed->window);
}

}  // namespace vramfit::eager
