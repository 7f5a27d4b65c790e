// Calls of mixtures of experts: which rows go to which experts, rows put in another order, and products of groups of
// rows with a matrix each.
#include <utility>

#include "base/error.h"
#include "program/pytorch/calls/kernels.h"
#include "program/pytorch/calls/torch.h"

namespace vramfit::eager {

Tensor Torch::seen_again(const Tensor& x) {
  Tensor seen = x;
  seen.is_view = true;
  return record(std::move(seen), {edge_to(x)}, {}, [](Tensor& g, const std::vector<Tensor>&) {
    Tensor gradient = g;
    gradient.is_view = true;
    return std::vector<Tensor>{std::move(gradient)};
  });
}

Torch::Largest Torch::topk(const Tensor& x, std::int64_t width, std::int64_t count) {
  const std::int64_t elements = checked_mul(x.elements / width, count);
  Tensor values = value(elements, x.dtype, "topk");
  Tensor places = value(elements, Dtype::i64, "topk indices");
  heap_.run("aten::topk", {reads(x), writes(values), writes(places)});
  std::vector<Saved> saved{save(places, x.wants_gradient)};
  values = record(std::move(values), {edge_to(x)}, std::move(saved),
                  [this, n = x.elements](Tensor& g, const std::vector<Tensor>& kept) {
                    Tensor whole = value(n, g.dtype, "topk gradient");
                    heap_.run("aten::zeros", {writes(whole)});
                    heap_.run("aten::scatter_", {reads(g), reads(kept[0]), changes(whole)},
                              {.bytes = 3 * heap_.bytes_of({reads(g)})});
                    return std::vector<Tensor>{std::move(whole)};
                  });
  return {std::move(values), std::move(places)};
}

/// Backward of the quotient reads the numbers that were there before, which are copied for it.
Tensor Torch::normalize_rows(const Tensor& x, std::int64_t width) {
  const std::int64_t n = x.elements;
  const Tensor sum = record(computed("aten::sum", {reads(x)}, value(n / width, x.dtype, "sum of a row")), {edge_to(x)},
                            {}, [n](Tensor& g, const std::vector<Tensor>&) {
                              Tensor seen = g;
                              seen.elements = n;
                              seen.is_view = true;
                              return std::vector<Tensor>{std::move(seen)};
                            });
  std::vector<Saved> saved;
  if (x.wants_gradient) {
    const Tensor before = computed("aten::clone", {reads(x)}, make_like(x, "rows before"));
    saved = {save(before), save(sum)};
  }
  heap_.run("aten::div_", {reads(sum), changes(x)});
  Edge divisor = edge_to(sum);
  divisor.sum = Edge::Sum::over_columns;
  return record(
      x, {std::move(divisor), edge_to(x)}, std::move(saved), [this](Tensor& g, const std::vector<Tensor>& kept) {
        Tensor of_sum;
        {
          const Tensor quotient = computed("aten::div", {reads(kept[0]), reads(kept[1])}, make_like(g, "quotient"));
          const Tensor again = computed("aten::div", {reads(quotient), reads(kept[1])}, make_like(g, "again"));
          const Tensor negative = computed("aten::neg", {reads(g)}, make_like(g, "negative gradient"));
          of_sum = computed("aten::mul", {reads(negative), reads(again)}, make_like(g, "gradient of the sum"));
        }
        Tensor of_rows = computed("aten::div", {reads(g), reads(kept[1])}, make_like(g, "div gradient"));
        return std::vector<Tensor>{std::move(of_sum), std::move(of_rows)};
      });
}

Torch::Sorted Torch::sorted(const Tensor& numbers) {
  const std::int64_t n = numbers.elements;
  Tensor values = value(n, numbers.dtype, "sorted"), order = value(n, Dtype::i64, "order");
  const Tensor indices = temporary(n, Dtype::i64, "indices");
  const std::int64_t bytes = n > kSmallSort ? radix_sort_scratch(n, 64, device_).n : 0;
  const Tensor scratch = temporary(bytes, Dtype::u8, "cub scratch");
  heap_.run("aten::sort", {reads(numbers), writes(values), writes(order)});
  return {std::move(values), std::move(order)};
}

Tensor Torch::histogram(const Tensor& numbers, std::int64_t bins) {
  return computed("aten::histc", {reads(numbers)}, value(bins, numbers.dtype, "histogram"));
}

Tensor Torch::running_sum(const Tensor& numbers) {
  Tensor sums = make_like(numbers, "running sums");
  const Tensor scratch = temporary(kRunningSumScratch, Dtype::u8, "cub scratch");
  return computed("aten::cumsum", {reads(numbers)}, std::move(sums));
}

/// Backward adds rows up where they came from (ATen/native/cuda/Indexing.cu: index_put_with_sort_kernel).
Tensor Torch::rows_at(const Tensor& x, const Tensor& places, std::int64_t width) {
  std::vector<Saved> saved{save(places, x.wants_gradient)};
  Tensor rows = value(checked_mul(places.elements, width), x.dtype, "rows");
  heap_.run("aten::index", {reads(x), reads(places), writes(rows)}, {.bytes = 2 * heap_.bytes_of({writes(rows)})});
  return record(std::move(rows), {edge_to(x)}, std::move(saved),
                [this, n = x.elements, width](Tensor& g, const std::vector<Tensor>& kept) {
                  Tensor whole = value(n, g.dtype, "gradient of all rows");
                  put_back(g, kept[0], width, whole);
                  return std::vector<Tensor>{std::move(whole)};
                });
}

/// whole[places] += rows, of zeros.
void Torch::put_back(const Tensor& rows, const Tensor& places, std::int64_t width, const Tensor& whole) {
  const std::int64_t count = rows.elements / width;
  heap_.run("aten::zeros", {writes(whole)});
  const auto indices = [&](const char* what) { return temporary(count, Dtype::i64, what); };
  Tensor linear = indices("remainders");
  linear = indices("places");
  const Tensor sorted = indices("sorted places"), order = indices("order of places");
  const Tensor range = indices("range");
  const Bytes bytes = radix_sort_scratch(count, bits_of(whole.elements / width), device_);
  const Tensor scratch = temporary(bytes.n, Dtype::u8, "cub scratch");
  heap_.run("aten::index_put_", {reads(rows), reads(places), changes(whole)},
            {.launches = 6, .bytes = 3 * heap_.bytes_of({reads(rows)})});
}

Tensor Torch::parameter_rows_at(int parameter, const Tensor& places, std::int64_t rows, std::int64_t width) {
  std::vector<Saved> saved{save(places, is_trained(parameter))};
  const Dtype dtype = parameters_.at(static_cast<std::size_t>(parameter)).dtype;
  Tensor made = value(checked_mul(places.elements, width), dtype, "rows of a parameter");
  heap_.run("aten::index", {reads_parameter(parameter), reads(places), writes(made)},
            {.bytes = 2 * heap_.bytes_of({writes(made)})});
  const std::int64_t elements = checked_mul(rows, width);
  return record(std::move(made), {edge_to(parameter, elements)}, std::move(saved),
                [=, this](Tensor& g, const std::vector<Tensor>& kept) {
                  Tensor whole = heap_.make(elements, g.dtype, Category::gradients, "gradient of all rows");
                  put_back(g, kept[0], width, whole);
                  return std::vector<Tensor>{std::move(whole)};
                });
}

Tensor Torch::inverse_order(const Tensor& order) {
  Tensor inverse = value(order.elements, Dtype::i64, "inverse order");
  const Tensor range = value(order.elements, Dtype::i64, "range");
  return computed("aten::index_put_", {reads(order), reads(range)}, std::move(inverse));
}

Tensor Torch::weighted_rows(const Tensor& x, const Tensor& weights) {
  const bool x_wants = x.wants_gradient, weights_want = weights.wants_gradient;
  std::vector<Saved> saved{save(x, weights_want), save(weights, x_wants)};
  const Dtype dtype = x.dtype == Dtype::f32 ? x.dtype : weights.dtype;
  Edge of_x = edge_to(x), of_weights = edge_to(weights);
  of_x.dtype = x.dtype;
  of_weights.sum = Edge::Sum::over_columns;
  of_weights.dtype = weights.dtype;
  return record(
      computed("aten::mul", {reads(x), reads(weights)}, value(x.elements, dtype, "mul")),
      {std::move(of_x), std::move(of_weights)}, std::move(saved),
      [=, this](Tensor& g, const std::vector<Tensor>& kept) {
        std::vector<Tensor> gradients(2);
        if (weights_want) {
          gradients[1] = computed("aten::mul", {reads(g), reads(kept[0])}, make_like(g, "mul gradient of other"));
        }
        if (x_wants) {
          gradients[0] = computed("aten::mul", {reads(g), reads(kept[1])}, make_like(g, "mul gradient"));
        }
        return gradients;
      });
}

/// Autocast sums in fp32. The gradient of the sum is seen as that of each row, and copied, in x's type, where that is
/// seen as a matrix again.
Tensor Torch::sum_of_neighbours(const Tensor& x, std::int64_t count) {
  const Dtype dtype = autocast_ ? Dtype::f32 : x.dtype;
  return record(computed("aten::sum", {reads(x)}, value(x.elements / count, dtype, "sum")), {edge_to(x)}, {},
                [this, n = x.elements, dtype = x.dtype](Tensor& g, const std::vector<Tensor>&) {
                  return std::vector<Tensor>{computed("aten::clone", {reads(g)}, value(n, dtype, "gradient of rows"))};
                });
}

/// With the kernel for groups, which only bf16 has and only on compute capability 9.0; elsewhere a product for each
/// group, into parts of the result.
Tensor Torch::multiplied_groups(Accesses inputs, const GroupedShape& shape, Tensor output) {
  inputs.push_back(writes(output));
  const bool is_fused = output.dtype == Dtype::bf16 && device_.compute_capability == 90;
  if (!is_fused) ensure_workspace();
  const Tensor arguments =
      temporary(is_fused ? grouped_arguments(shape.groups).n : 0, Dtype::u8, "addresses and sizes of groups");
  const Tensor scratch = temporary(is_fused ? grouped_workspace(device_).n : 0, Dtype::u8, "cutlass workspace");
  const double products = 2 * static_cast<double>(shape.rows) * static_cast<double>(shape.columns);
  heap_.run("aten::_grouped_mm", inputs,
            {.unit = Work::Unit::product,
             .dtype = output.dtype,
             .launches = is_fused ? 2 : shape.groups,
             .flops = products * static_cast<double>(shape.inner),
             .bytes = heap_.bytes_of(inputs),
             .shape = {shape.rows, shape.columns, shape.inner}});
  return output;
}

Tensor Torch::grouped_product(const Tensor& x, int parameter, const GroupedShape& shape, const Tensor& ends) {
  const auto [groups, rows, columns, inner, by_inputs] = shape;
  const Tensor input = cast(x, parameters_.at(static_cast<std::size_t>(parameter)).dtype);
  const std::int64_t weight = checked_mul(groups, checked_mul(columns, inner));
  const bool x_wants = input.wants_gradient, weight_wants = is_trained(parameter);
  std::vector<Saved> saved{save(input, weight_wants), save(ends, x_wants || weight_wants)};
  Tensor y = multiplied_groups({reads(input), reads_parameter(parameter)}, shape,
                               value(checked_mul(rows, columns), input.dtype, "grouped product"));
  return record(
      std::move(y), {edge_to(parameter, weight), edge_to(input)}, std::move(saved),
      [=, this](Tensor& g, const std::vector<Tensor>& kept) {
        std::vector<Tensor> gradients(2);
        if (weight_wants) {
          gradients[0] = heap_.make(weight, g.dtype, Category::gradients, "weight gradient");
          gradients[0] = by_inputs ? multiplied_groups({reads(kept[0]), reads(g)}, {groups, inner, columns, rows},
                                                       std::move(gradients[0]))
                                   : multiplied_groups({reads(g), reads(kept[0])}, {groups, columns, inner, rows},
                                                       std::move(gradients[0]));
          gradients[0].is_view = !by_inputs;  // transposed
        }
        if (x_wants) {
          gradients[1] = multiplied_groups({reads(g), reads_parameter(parameter)}, {groups, rows, inner, columns},
                                           value(checked_mul(rows, inner), g.dtype, "input gradient"));
        }
        return gradients;
      });
}

}  // namespace vramfit::eager
