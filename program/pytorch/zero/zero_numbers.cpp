#include "program/pytorch/zero/zero_numbers.h"

#include <utility>

#include "job/cluster/reduce_scratch.h"

namespace vramfit::eager {

Tensor ZeroNumbers::computed(const char* call, const Accesses& inputs, std::int64_t elements, Dtype dtype,
                             const char* what) {
  Tensor made = library_.heap().make(elements, dtype, Category::temporaries, what, stream_);
  Accesses accesses = inputs;
  accesses.push_back(writes(made));
  library_.heap().run(call, accesses, stream_);
  return made;
}

Tensor ZeroNumbers::is_finite(const Tensor& x) {
  const std::int64_t n = x.elements;
  const Tensor magnitude = computed("aten::abs", {reads(x)}, n, x.dtype, "magnitude");
  const Tensor is_number = computed("aten::eq", {reads(x)}, n, Dtype::u8, "is it a number");
  const Tensor is_within = computed("aten::ne", {reads(magnitude)}, n, Dtype::u8, "is it not infinite");
  return computed("aten::mul", {reads(is_number), reads(is_within)}, n, Dtype::u8, "is it finite");
}

Tensor ZeroNumbers::reduced(const char* call, const Tensor& x) {
  const Bytes element = dtype_bytes(x.dtype);
  const auto temporary = [&](std::int64_t elements, Dtype dtype, const char* what) {
    return library_.heap().make(elements, dtype, Category::temporaries, what, stream_);
  };
  Tensor result = temporary(1, x.dtype, "reduced");
  std::int64_t begin = 0;
  for (const std::int64_t part : indexed_parts(x.elements, element.n)) {
    const ReduceScratch scratch = sum_over_all(part, library_.device());  // of numbers of 4 bytes
    const Tensor partials = temporary(scratch.partials.n / 4, x.dtype, "partial results");
    const Tensor counters = temporary(scratch.counters.n, Dtype::u8, "reduction counters");
    const Tensor read = part == x.elements ? x : library_.heap().narrow(x, begin, part);
    library_.heap().run(call, {reads(read), begin == 0 ? writes(result) : changes(result)}, stream_);
    begin += part;
  }
  return result;
}

/// fp64 has no name here; its numbers have as many bytes as those of int64.
Tensor ZeroNumbers::norm_in_fp64(const Tensor& gradient) {
  const Tensor wide = computed("aten::_to_copy", {reads(gradient)}, gradient.elements, Dtype::i64, "gradient in fp64");
  return reduced("aten::linalg_vector_norm", wide);
}

Tensor ZeroNumbers::sum_of_squares(const std::vector<Tensor>& norms) {
  Accesses accesses;
  for (const Tensor& norm : norms) accesses.push_back(reads(norm));
  const auto count = static_cast<std::int64_t>(norms.size());
  Tensor squares;
  {
    const Tensor stacked = computed("aten::stack", accesses, count, Dtype::i64, "norms");
    squares = computed("aten::pow", {reads(stacked)}, count, Dtype::i64, "squares");
  }
  return number("aten::sum", {reads(squares)}, Dtype::i64, "sum of squares");
}

Tensor ZeroNumbers::is_any_invalid(const Tensor& norms) {
  const std::int64_t count = norms.elements;
  Tensor either;
  {
    Tensor infinite;
    {
      const Tensor finite = is_finite(norms);
      infinite = computed("aten::bitwise_not", {reads(finite)}, count, Dtype::u8, "are they not finite");
    }
    const Tensor negative = computed("aten::lt", {reads(norms)}, count, Dtype::u8, "are they negative");
    either = computed("aten::bitwise_or", {reads(infinite), reads(negative)}, count, Dtype::u8, "either");
  }
  return number("aten::any", {reads(either)}, Dtype::u8, "is any invalid");
}

void ZeroNumbers::mark_if_invalid(const Tensor& norm) {
  Tensor infinite;
  {
    const Tensor magnitude = number("aten::abs", {reads(norm)}, Dtype::f32, "magnitude");
    infinite = number("aten::eq", {reads(magnitude)}, Dtype::u8, "is it infinite");
  }
  const Tensor unknown = number("aten::isnan", {reads(norm)}, Dtype::u8, "is it no number");
  const Tensor invalid = number("aten::logical_or", {reads(unknown), reads(infinite)}, Dtype::u8, "is it invalid");
  const Tensor mark = number("aten::_to_copy", {}, Dtype::f32, "mark of what is invalid");
  library_.heap().run("aten::masked_fill_", {reads(invalid), reads(mark), changes(norm)});
}

Tensor ZeroNumbers::combined(const std::vector<Tensor>& norms) {
  Accesses accesses;
  for (const Tensor& norm : norms) accesses.push_back(reads(norm));
  const auto count = static_cast<std::int64_t>(norms.size());
  const Tensor stacked = computed("aten::stack", accesses, count, norms.front().dtype, "norms of groups");
  const Tensor invalid = is_any_invalid(stacked);
  const Tensor norm = number("aten::linalg_vector_norm", {reads(stacked)}, stacked.dtype, "norm");
  const Tensor infinity = number("aten::full_like", {}, stacked.dtype, "infinity");
  return number("aten::where", {reads(invalid), reads(norm), reads(infinity)}, stacked.dtype, "norm, or infinity");
}

void ZeroNumbers::clip_to(const Tensor& gradient, const Tensor& norm) {
  Tensor scale = norm;
  for (const char* call : {"aten::div", "aten::add", "aten::div", "aten::clamp"}) {
    scale = number(call, {reads(scale)}, norm.dtype, call);
  }
  const Tensor combined = number("aten::mul", {reads(scale)}, norm.dtype, "combined scale");
  Tensor factor;
  {
    const Tensor reciprocal = number("aten::reciprocal", {reads(combined)}, norm.dtype, "reciprocal");
    factor = number("aten::mul", {reads(reciprocal)}, norm.dtype, "factor");
  }
  library_.heap().run("aten::mul_", {reads(factor), changes(gradient)});
}

}  // namespace vramfit::eager
