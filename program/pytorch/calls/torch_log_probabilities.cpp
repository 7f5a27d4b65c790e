// What TRL (1.16) computes a loss with instead of logits: log-probabilities of the labels, tile by tile
// (trl/trainer/utils.py: add_fused_lm_head, trl/kernels/chunked_logprob.py), and the calls around it.
#include <algorithm>
#include <array>
#include <utility>

#include "job/cluster/reduce_scratch.h"
#include "program/pytorch/calls/kernels.h"
#include "program/pytorch/calls/torch.h"

namespace vramfit::eager {

namespace {

constexpr std::int64_t kTokensOfTile = 4096, kColumnsOfTile = 32768;

/// Walks over the tiles of [rows, outputs], those of the same tokens after each other.
template <typename OfTokens, typename OfTile>
void walk_tiles(std::int64_t rows, std::int64_t outputs, const OfTokens& begin_tokens, const OfTile& compute) {
  for (std::int64_t row = 0; row < rows; row += kTokensOfTile) {
    const std::int64_t tokens = std::min(rows - row, kTokensOfTile);
    begin_tokens(tokens);
    for (std::int64_t column = 0; column < outputs; column += kColumnsOfTile) {
      compute(tokens, std::min(outputs - column, kColumnsOfTile));
    }
  }
}

}  // namespace

Tensor Torch::sum(const Tensor& x) { return summed(x, 1, "sum"); }

Tensor Torch::summed(const Tensor& x, std::int64_t rows, std::string_view what) {
  Tensor total = value(rows, x.dtype, what);
  const ReduceScratch scratch = sum_of_each_row(rows, x.elements / rows, device_);  // of numbers of 4 bytes
  const std::int64_t width = x.dtype == Dtype::i64 ? 2 : 1;
  const Tensor partials = temporary(width * scratch.partials.n, Dtype::u8, "partial sums");
  const Tensor counters = temporary(scratch.counters.n, Dtype::u8, "reduction counters");
  return record(computed("aten::sum", {reads(x)}, std::move(total)), {edge_to(x)}, {},
                [n = x.elements](Tensor& g, const std::vector<Tensor>&) {
                  Tensor seen = g;
                  seen.elements = n;
                  seen.is_view = true;
                  return std::vector<Tensor>{std::move(seen)};
                });
}

Tensor Torch::vector_norm(const Tensor& x) {
  Tensor norm = temporary(1, Dtype::f32, "norm");
  const ReduceScratch scratch = sum_over_all(x.elements, device_);
  const Tensor partials = temporary(scratch.partials.n, Dtype::u8, "partial norms");
  const Tensor counters = temporary(scratch.counters.n, Dtype::u8, "reduction counters");
  return computed("aten::linalg_vector_norm", {reads(x)}, std::move(norm));
}

Tensor Torch::clone_keeping(const Tensor& x, const Tensor& kept) {
  std::vector<Saved> saved{save(kept)};
  return record(computed("aten::clone", {reads(x)}, make_like(x, "clone")), {edge_to(x)}, std::move(saved),
                [](Tensor& g, const std::vector<Tensor>&) { return std::vector<Tensor>{g}; });
}

Tensor Torch::negative(const Tensor& x) { return by_number(x, "neg"); }

/// nonzero: `dims` numbers for each of the `count` flags that are set.
Tensor Torch::positions_of(const Tensor& mask, std::int64_t count, std::int64_t dims) {
  const Tensor number = temporary(1, Dtype::i32, "number of flags");
  { const Tensor scratch = temporary(count_scratch(mask.elements, device_).n, Dtype::u8, "cub scratch"); }
  Tensor positions = temporary(dims * count, Dtype::i64, "positions of flags");
  const Tensor scratch = temporary(select_scratch(mask.elements, device_).n, Dtype::u8, "cub scratch");
  return computed("aten::nonzero", {reads(mask)}, std::move(positions));
}

Tensor Torch::indexed(const Tensor& x, const Tensor& mask, std::int64_t count, std::string_view what,
                      std::int64_t dims) {
  const Tensor positions = positions_of(mask, count, dims);
  return computed("aten::index", {reads(x), reads(positions)},
                  value(x.elements / mask.elements * count, x.dtype, what));
}

/// index_put into zeros, which adds up what several rows have for one (ATen/native/cuda/Indexing.cu).
Tensor Torch::put_rows(const Tensor& gradient, const Tensor& mask, std::int64_t count) {
  Tensor result = value(gradient.elements / count * mask.elements, gradient.dtype, "index gradient");
  Tensor places;
  {
    const Tensor positions = positions_of(mask, count, 2);
    places = places_of(count);
  }
  put_sorted(gradient, count, result);
  return result;
}

/// Of indices in two dimensions, one number for each pair of them.
Tensor Torch::places_of(std::int64_t rows) {
  const auto numbers = [&](const char* what) { return temporary(rows, Dtype::i64, what); };
  Tensor places;
  {
    const Tensor within = numbers("positions within a dimension");
    places = numbers("places of rows");
  }
  const Tensor within = numbers("positions within a dimension");
  const Tensor others = numbers("places of the other dimension");
  return places;
}

void Torch::put_sorted(const Tensor& gradient, std::int64_t rows, const Tensor& result) {
  const auto numbers = [&](const char* what) { return temporary(rows, Dtype::i64, what); };
  const Tensor sorted = numbers("sorted places"), order = numbers("order of places"), range = numbers("range");
  const Tensor scratch = temporary(index_sort_scratch(rows, device_).n, Dtype::u8, "cub scratch");
  heap_.run("aten::_index_put_impl_", {reads(gradient), writes(result)},
            {.launches = 12, .bytes = heap_.bytes_of({reads(gradient), writes(result)})});
}

Tensor Torch::chosen_rows(const Tensor& x, const Tensor& mask, std::int64_t count) {
  std::vector<Saved> saved{save(mask, x.wants_gradient)};
  return record(indexed(x, mask, count, "chosen rows"), {edge_to(x)}, std::move(saved),
                [this, count](Tensor& g, const std::vector<Tensor>& kept) {
                  return std::vector<Tensor>{put_rows(g, kept[0], count)};
                });
}

Tensor Torch::scattered(const Tensor& x, const Tensor& mask) {
  Tensor result;
  {
    const Tensor zeros = temporary(mask.elements, x.dtype, "zeros");
    result = value(mask.elements, x.dtype, "masked_scatter");
    const Tensor sums = temporary(mask.elements, Dtype::i64, "running sum of flags");
    const Tensor scratch = temporary(scan_scratch(mask.elements).n, Dtype::u8, "cub scratch");
    heap_.run("aten::masked_scatter", {reads(x), reads(mask), writes(result)});
  }
  std::vector<Saved> saved{save(mask, x.wants_gradient)};
  return record(std::move(result), {edge_to(x)}, std::move(saved),
                [this, count = x.elements](Tensor& g, const std::vector<Tensor>& kept) {
                  return std::vector<Tensor>{indexed(g, kept[0], count, "chosen gradient")};
                });
}

/// Part of a tensor in `dtype`: itself, if it has that already.
Tensor Torch::part_in(const Tensor& x, std::int64_t elements, Dtype dtype) {
  if (x.dtype == dtype) return detached(x);
  return computed("aten::_to_copy", {reads(x)}, temporary(elements, dtype, "tokens of a tile, cast"));
}

/// Of the output layer's weights; nothing where they have that type.
Tensor Torch::weights_in(const OutputWeights& by, std::int64_t columns, Dtype dtype, program::Access weights) {
  if (parameters_.at(static_cast<std::size_t>(by.parameter)).dtype == dtype) return {};
  return computed("aten::_to_copy", {weights}, temporary(columns * by.width, dtype, "weights of a tile, cast"));
}

/// A product of `dtype` within tensors that are larger than its factors.
void Torch::multiply_tile(Accesses accesses, const WorkShape& shape, Dtype dtype) {
  ensure_workspace();
  const double rows = static_cast<double>(shape.rows), columns = static_cast<double>(shape.columns),
               inner = static_cast<double>(shape.inner);
  heap_.run("aten::mm", accesses,
            {.unit = Work::Unit::product,
             .dtype = dtype,
             .flops = 2 * rows * columns * inner,
             .bytes = static_cast<double>(dtype_bytes(dtype).n) * (rows * inner + inner * columns + rows * columns),
             .shape = shape});
}

void Torch::fold_tile(const char* name, const Tensor& tile, std::int64_t elements, Accesses into) {
  into.push_back(changes(tile));
  heap_.run(name, into, {.bytes = static_cast<double>((elements * dtype_bytes(tile.dtype)).n)});
}

Tensor Torch::tile_of_logits(std::int64_t rows, Dtype dtype) {
  return temporary(checked_mul(std::min(rows, kTokensOfTile), kColumnsOfTile), dtype, "tile of logits");
}

/// ChunkedLogProbFunction.forward, of h in `dtype`.
Torch::Scores Torch::folded_scores(const Tensor& h, const OutputWeights& by, Dtype dtype, ScoresWanted wanted,
                                   Tensor& log_sum) {
  const std::int64_t rows = h.elements / by.width;
  const auto numbers = [&](const char* what) { return value(rows, Dtype::f32, what); };
  const auto flags = [&](const char* what) { return value(rows, Dtype::u8, what); };
  std::array<Tensor, 7> statistics;
  Accesses folded;
  for (Tensor& one : statistics) {
    one = computed("aten::full", {}, numbers("statistics of the logits"));
    folded.push_back(changes(one));
  }
  const auto& [most, sum, weighted_sum, squares, total, most_before, of_label] = statistics;
  const Tensor tile = tile_of_logits(rows, dtype);
  Tensor part;
  walk_tiles(
      rows, by.outputs, [&](std::int64_t tokens) { part = part_in(h, tokens * by.width, dtype); },
      [&](std::int64_t tokens, std::int64_t columns) {
        {
          const program::Access whole = reads_parameter(by.parameter);
          const Tensor weights = weights_in(by, columns, dtype, whole);
          const program::Access factor = weights.storage ? reads(weights) : whole;
          multiply_tile({reads(part), factor, writes(tile)}, {tokens, columns, by.width}, dtype);
        }
        fold_tile("trl::forward_kernel", tile, tokens * columns, folded);
      });
  Scores scores;
  {
    const Tensor log = computed("aten::log", {reads(sum)}, numbers("log of the sum"));
    log_sum = computed("aten::add", {reads(most), reads(log)}, numbers("log-sum"));
  }
  scores.log_probabilities = computed("aten::sub", {reads(of_label), reads(log_sum)}, numbers("log-probabilities"));
  if (wanted.entropy) {
    const Tensor mean = computed("aten::div", {reads(weighted_sum), reads(sum)}, numbers("weighted mean logit"));
    scores.entropy = computed("aten::sub", {reads(log_sum), reads(mean)}, numbers("entropy"));
  }
  if (wanted.mean_logits) scores.mean_logits = computed("aten::div", {reads(total)}, numbers("mean logit"));
  if (!wanted.is_top) return scores;
  const Tensor at_top = computed("aten::ge", {reads(of_label), reads(most)}, flags("at the maximum"));
  const Tensor is_first = computed("aten::gt", {reads(of_label), reads(most_before)}, flags("is the first"));
  scores.is_top = computed("aten::bitwise_and", {reads(at_top), reads(is_first)}, flags("is the likeliest"));
  return scores;
}

/// ChunkedLogProbFunction.backward: gradients of the weights and of h, which are summed in fp32.
std::vector<Tensor> Torch::score_gradients(const Tensor& h, const OutputWeights& by, Dtype dtype, const Tensor& held) {
  // What was gathered alone may have been gathered again since, for another forward.
  const program::Access whole = held.storage ? reads(held) : reads_parameter(by.parameter);
  const std::int64_t rows = h.elements / by.width;
  const bool weights_want = is_trained(by.parameter);
  const Dtype weights_dtype = parameters_.at(static_cast<std::size_t>(by.parameter)).dtype;
  const auto of_dtype = [&](Dtype of, const char* what) {
    const Category category = of == weights_dtype ? Category::gradients : Category::temporaries;
    return heap_.make(checked_mul(by.width, by.outputs), of, category, what);
  };
  const Tensor of_h = computed("aten::zeros", {}, value(h.elements, Dtype::f32, "input gradient in fp32"));
  Tensor of_weights;
  if (weights_want) of_weights = computed("aten::zeros", {}, of_dtype(Dtype::f32, "weight gradient in fp32"));
  const Tensor tile = tile_of_logits(rows, dtype);
  Tensor part, weights;
  walk_tiles(
      rows, by.outputs, [&](std::int64_t tokens) { part = part_in(h, tokens * by.width, dtype); },
      [&](std::int64_t tokens, std::int64_t columns) {
        weights = weights_in(by, columns, dtype, whole);
        const program::Access factor = weights.storage ? reads(weights) : whole;
        multiply_tile({reads(part), factor, writes(tile)}, {tokens, columns, by.width}, dtype);
        fold_tile("trl::backward_kernel", tile, 2 * tokens * columns);
        multiply_tile({reads(tile), factor, changes(of_h)}, {tokens, by.width, columns}, dtype);
        if (!weights_want) return;
        multiply_tile({reads(tile), reads(part), changes(of_weights)}, {columns, by.width, tokens}, dtype);
      });
  std::vector<Tensor> gradients(2);
  gradients[1] = gradient_as(of_h, h.dtype);
  gradients[0] = of_weights;
  if (weights_want && weights_dtype != Dtype::f32) {
    gradients[0] = computed("aten::_to_copy", {reads(of_weights)}, of_dtype(weights_dtype, "weight gradient"));
  }
  return gradients;
}

Torch::Scores Torch::label_scores(const Tensor& h, const Tensor& labels, const OutputWeights& by, const Tensor& held,
                                  ScoresWanted wanted) {
  const Dtype dtype = autocast_.value_or(h.dtype);
  Tensor log_sum;
  Scores scores = folded_scores(h, by, dtype, wanted, log_sum);
  std::vector<Saved> saved{save(h), save(labels), save(log_sum), save(wanted.entropy ? scores.entropy : log_sum),
                           save(held)};
  Tensor& first = scores.log_probabilities;
  first = record(std::move(first), {edge_to(by.parameter, checked_mul(by.width, by.outputs)), edge_to(h)},
                 std::move(saved), [this, by, dtype](Tensor&, const std::vector<Tensor>& kept) {
                   return score_gradients(kept[0], by, dtype, kept[4]);
                 });
  if (first.made_by != nullptr) first.made_by->parameters_first = true;
  return scores;
}

}  // namespace vramfit::eager
