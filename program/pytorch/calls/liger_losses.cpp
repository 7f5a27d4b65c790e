// Losses of Liger Kernel: of logits, and of hidden states with the output layer's product.
#include <algorithm>
#include <bit>
#include <utility>

#include "job/cluster/reduce_scratch.h"
#include "program/pytorch/calls/liger.h"

namespace vramfit::eager {

namespace {

constexpr int kAddsToWeights = 80;  // the compute capability from which on products of 16 bits do

/// Of each chunk but the last: so many that its logits are about as large as all hidden states
/// (fused_linear_cross_entropy.py: fused_linear_cross_entropy_forward).
std::int64_t tokens_of_chunk(std::int64_t tokens, const OutputWeights& by) {
  const std::int64_t chunks = ceil_div(by.outputs, by.width);
  const auto least = static_cast<std::uint64_t>(ceil_div(tokens, chunks));
  return std::min(tokens, static_cast<std::int64_t>(std::bit_ceil(least)));
}

program::Access reads_either(const Tensor& cast, const program::Access& original) {
  return cast.storage ? reads(cast) : original;
}

}  // namespace

/// torch.equal(gradient, torch.tensor(1.0)), and a kernel that multiplies each with the gradient.
void Liger::scale_kept(const Tensor& gradient, const std::vector<Tensor>& kept) const {
  {
    const Tensor one = torch_.computed("aten::_to_copy", {}, torch_.temporary(1, Dtype::f32, "one"));
    const Tensor is_one =
        torch_.computed("aten::eq", {reads(gradient), reads(one)}, torch_.temporary(1, Dtype::u8, "is it one"));
    const Tensor are_all = torch_.computed("aten::all", {reads(is_one)}, torch_.temporary(1, Dtype::u8, "are all"));
  }
  for (const Tensor& each : kept) {
    if (each.storage) torch_.heap_.run("liger::element_mul", {reads(gradient), changes(each)});
  }
}

/// Which labels count; how many do, the host reads.
Tensor Liger::flags_of_labels(const Tensor& labels, std::int64_t tokens) const {
  Tensor flags =
      torch_.computed("aten::ne", {reads(labels)}, torch_.temporary(tokens, Dtype::u8, "which labels count"));
  const Tensor count = torch_.count_true(flags);
  return flags;
}

void Liger::require_labels_in_range(const Tensor& labels, const Tensor& flags) const {
  const std::int64_t tokens = flags.elements;
  for (const char* const what : {"largest label", "smallest label"}) {
    Tensor counted = torch_.computed("aten::mul", {reads(labels), reads(flags)},
                                     torch_.temporary(tokens, Dtype::i64, "labels that count"));
    const Tensor label = torch_.value(1, Dtype::i64, what);
    const ReduceScratch scratch = sum_over_all(tokens, torch_.device_);  // of numbers of half the size
    {
      const Tensor partials = torch_.temporary(2 * scratch.partials.n, Dtype::u8, "partial results");
      const Tensor counters = torch_.temporary(scratch.counters.n, Dtype::u8, "reduction counters");
      torch_.heap_.run("aten::max", {reads(counted), writes(label)});
    }
    counted = {};
    const Tensor flag = torch_.computed("aten::lt", {reads(label)}, torch_.temporary(1, Dtype::u8, "is it in range"));
  }
}

/// The kernel reads each row twice, and writes its gradient over it.
void Liger::run_losses(const Tensor& logits, std::int64_t rows, std::int64_t columns, Accesses others) const {
  others.push_back(changes(logits));
  const double bytes = 3 * static_cast<double>((checked_mul(rows, columns) * dtype_bytes(logits.dtype)).n);
  torch_.heap_.run("liger::cross_entropy", others, {.bytes = bytes});
}

/// LigerCrossEntropyFunction, with reduction="sum".
Tensor Liger::cross_entropy(const Tensor& logits, const Tensor& labels, std::int64_t tokens) const {
  const Tensor losses = torch_.computed("aten::zeros", {}, torch_.value(tokens, logits.dtype, "losses of tokens"));
  const Tensor flags = flags_of_labels(labels, tokens);
  require_labels_in_range(labels, flags);
  run_losses(logits, tokens, logits.elements / tokens, {reads(labels), changes(losses)});
  Tensor loss = torch_.sum(losses);
  std::vector<Saved> saved{torch_.save(logits, logits.wants_gradient)};
  return torch_.record(std::move(loss), {torch_.edge_to(logits)}, std::move(saved),
                       [*this](Tensor& g, const std::vector<Tensor>& kept) {
                         scale_kept(g, kept);
                         return std::vector<Tensor>{kept[0]};
                       });
}

/// Empty where they have the type of products.
Tensor Liger::cast_part(const Chunk& c) const {
  if (c.h.dtype == c.dtype) return {};
  return torch_.computed("aten::_to_copy", {reads(c.h)},
                         torch_.temporary(c.rows * c.by.width, c.dtype, "tokens of a chunk, cast"));
}

Tensor Liger::cast_weights(const Chunk& c) const {
  if (torch_.parameters_.at(static_cast<std::size_t>(c.by.parameter)).dtype == c.dtype) return {};
  return torch_.computed("aten::_to_copy", {torch_.reads_parameter(c.by.parameter)},
                         torch_.temporary(c.by.width * c.by.outputs, c.dtype, "output weights, cast"));
}

/// The weights are seen transposed, which autocast converts each time.
Tensor Liger::logits_of(const Chunk& c, const Tensor& out) const {
  const Tensor weights = out.storage ? Tensor{} : cast_weights(c);
  const Tensor tokens = out.storage ? Tensor{} : cast_part(c);
  Tensor logits = out.storage ? out : torch_.temporary(checked_mul(c.rows, c.by.outputs), c.dtype, "logits of a chunk");
  const program::Access whole = torch_.reads_parameter(c.by.parameter);
  torch_.multiply_tile({reads_either(tokens, reads(c.h)), reads_either(weights, whole), writes(logits)},
                       {c.rows, c.by.outputs, c.by.width}, c.dtype);
  return logits;
}

/// Here they are seen as they are, so that autocast converts trained ones once.
void Liger::add_to_input(const Chunk& c, const Tensor& logits, const Tensor& gradient, bool is_direct) const {
  const program::Access whole = torch_.reads_parameter(c.by.parameter);
  const WorkShape shape{c.rows, c.by.width, c.by.outputs};
  if (is_direct) return torch_.multiply_tile({reads(logits), whole, changes(gradient)}, shape, c.dtype);
  const bool is_cast = torch_.parameters_.at(static_cast<std::size_t>(c.by.parameter)).dtype != c.dtype;
  const bool is_cached = is_cast && torch_.is_trained(c.by.parameter);
  const Tensor weights = is_cached ? torch_.cast_parameter(c.by.parameter, c.by.width * c.by.outputs) : cast_weights(c);
  const Tensor product = torch_.temporary(c.rows * c.by.width, c.dtype, "input gradient of a chunk");
  torch_.multiply_tile({reads(logits), reads_either(weights, whole), writes(product)}, shape, c.dtype);
  torch_.heap_.run("aten::copy_", {reads(product), changes(gradient)},
                   {.bytes = 2 * torch_.heap_.bytes_of({reads(product)})});
}

void Liger::add_to_weights(const Chunk& c, const Tensor& logits, const Tensor& gradient) const {
  const WorkShape shape{c.by.outputs, c.by.width, c.rows};
  Tensor tokens = cast_part(c);
  const program::Access factor = reads_either(tokens, reads(c.h));
  if (torch_.device_.compute_capability >= kAddsToWeights && c.dtype != Dtype::f32) {
    return torch_.multiply_tile({reads(logits), factor, changes(gradient)}, shape, c.dtype);
  }
  const auto added = [&](Dtype dtype, const char* what) {
    return torch_.temporary(c.by.width * c.by.outputs, dtype, what);
  };
  Tensor product = added(c.dtype, "what a chunk adds to the weight gradient");
  torch_.multiply_tile({reads(logits), factor, writes(product)}, shape, c.dtype);
  tokens = {};
  if (c.dtype != Dtype::f32) {
    product = torch_.computed("aten::_to_copy", {reads(product)},
                              added(Dtype::f32, "what a chunk adds to the weight gradient, in fp32"));
  }
  torch_.heap_.run("aten::add_", {reads(product), changes(gradient)});
}

/// LigerFusedLinearCrossEntropyFunction, with reduction="sum". Products write into memory that is there for all chunks,
/// unless autocast would have to convert a factor.
Tensor Liger::fused_loss(const Tensor& h, const Tensor& labels, const OutputWeights& by) const {
  const std::int64_t tokens = h.elements / by.width, weights = checked_mul(by.width, by.outputs);
  const Dtype weights_dtype = torch_.parameters_.at(static_cast<std::size_t>(by.parameter)).dtype;
  const Dtype dtype = torch_.autocast_.value_or(h.dtype);
  const bool is_direct = h.dtype == weights_dtype && dtype == h.dtype;
  const bool is_recorded = torch_.has_gradients_ && h.wants_gradient;
  Gradients gradients;
  gradients.of_h = torch_.computed("aten::zeros_like", {}, torch_.make_like(h, "input gradient, made in forward"));
  if (is_recorded && torch_.is_trained(by.parameter)) {
    gradients.of_weights = torch_.computed(
        "aten::zeros_like", {},
        torch_.heap_.make(weights, weights_dtype, Category::gradients, "weight gradient, made in forward"));
  }
  gradients.losses = torch_.computed("aten::zeros", {}, torch_.value(tokens, Dtype::f32, "losses of tokens"));
  const Tensor flags = flags_of_labels(labels, tokens);
  const std::int64_t most = tokens_of_chunk(tokens, by);
  {
    const Tensor out = torch_.temporary(is_direct ? checked_mul(most, by.outputs) : 0, dtype, "logits of a chunk");
    for (std::int64_t first = 0; first < tokens; first += most) {
      const Chunk chunk{by, h, std::min(most, tokens - first), dtype};
      const Tensor logits = logits_of(chunk, out);
      run_losses(logits, chunk.rows, by.outputs, {reads(labels), changes(gradients.losses)});
      if (is_recorded) add_to_input(chunk, logits, gradients.of_h, is_direct);
      if (gradients.of_weights.storage) add_to_weights(chunk, logits, gradients.of_weights);
    }
  }
  Tensor loss = torch_.sum(gradients.losses);
  std::vector<Saved> saved{torch_.save(gradients.of_h, is_recorded), torch_.save(gradients.of_weights, is_recorded)};
  return torch_.record(std::move(loss), {torch_.edge_to(h), torch_.edge_to(by.parameter, weights)}, std::move(saved),
                       [*this](Tensor& g, const std::vector<Tensor>& kept) {
                         scale_kept(g, kept);
                         std::vector<Tensor> made{kept[0], kept[1]};
                         made[0].is_view = true;  // in the shape of the hidden states
                         return made;
                       });
}

}  // namespace vramfit::eager
