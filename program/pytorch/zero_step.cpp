// DeepSpeedZeroOptimizer.step: whether a gradient overflowed, the norm, and the update, group by group.
#include <limits>
#include <utility>

#include "job/cluster/reduce_scratch.h"
#include "program/pytorch/zero.h"

namespace vramfit::eager {

Tensor Zero::computed(const char* call, const Accesses& inputs, std::int64_t elements, Dtype dtype, const char* what) {
  Tensor made = heap().make(elements, dtype, Category::temporaries, what, stream_);
  Accesses accesses = inputs;
  accesses.push_back(writes(made));
  heap().run(call, accesses, stream_);
  return made;
}

/// isfinite(x)
Tensor Zero::is_finite(const Tensor& x) {
  const std::int64_t n = x.elements;
  const Tensor magnitude = computed("aten::abs", {reads(x)}, n, x.dtype, "magnitude");
  const Tensor is_number = computed("aten::eq", {reads(x)}, n, Dtype::u8, "is it a number");
  const Tensor is_within = computed("aten::ne", {reads(magnitude)}, n, Dtype::u8, "is it not infinite");
  return computed("aten::mul", {reads(is_number), reads(is_within)}, n, Dtype::u8, "is it finite");
}

/// All of x into one number of its type; in parts that 32 bits can address.
Tensor Zero::reduced(const char* call, const Tensor& x) {
  const Bytes element = dtype_bytes(x.dtype);
  Tensor result = heap().make(1, x.dtype, Category::temporaries, "reduced", stream_);
  std::int64_t part = x.elements;
  while (part * element.n > std::numeric_limits<std::int32_t>::max()) part = ceil_div(part, std::int64_t{2});
  const ReduceScratch scratch = sum_over_all(part, torch().device());  // of numbers of 4 bytes
  const auto temporary = [&](std::int64_t elements, Dtype dtype, const char* what) {
    return heap().make(elements, dtype, Category::temporaries, what, stream_);
  };
  const Tensor partials = temporary(scratch.partials.n / 4, x.dtype, "partial results");
  const Tensor counters = temporary(scratch.counters.n, Dtype::u8, "reduction counters");
  heap().run(call, {reads(x), writes(result)}, stream_);
  return result;
}

/// runtime/utils.py: has_inf_or_nan
Tensor Zero::is_overflown(const Tensor& gradient) {
  const auto is_finite_at = [&](const char* end) { return is_finite(reduced(end, gradient)); };
  Tensor both;
  {
    const Tensor most = is_finite_at("aten::amax"), least = is_finite_at("aten::amin");
    both = number("aten::logical_and", {reads(most), reads(least)}, Dtype::u8, "are both");
  }
  return number("aten::logical_not", {reads(both)}, Dtype::u8, "is one not");
}

/// has_overflow
void Zero::check_overflow() {
  Tensor any;
  {
    const Tensor count = number("aten::zeros", {}, Dtype::f32, "gradients that overflowed");
    for (const Group& group : groups_) {
      for (const Tensor& piece : group.pieces) {
        const Tensor flag = is_overflown(piece);
        heap().run("aten::add_", {reads(flag), changes(count)});
      }
    }
    any = number("aten::_to_copy", {reads(count)}, Dtype::u8, "is there one");
  }
  const Tensor flag = number("aten::_to_copy", {reads(any)}, Dtype::u8, "is there one, as a byte");
  any = {};
  heap().wait(heap().start(program::Collective::all_reduce, program::Axis::shard, {changes(flag)}, Stream::compute),
              Stream::compute);
}

/// runtime/utils.py: is_invalid_grad_norm
Tensor Zero::is_any_invalid(const Tensor& norms) {
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

/// get_grad_norm_direct: each piece is widened to fp64 for its norm. What pads a partition is left out.
Tensor Zero::norm_of(const Group& group) {
  Tensor total;
  std::vector<Tensor> norms;
  std::size_t parameters = 0;
  for (const std::size_t place : group.places) parameters += is_kept(places_[place]) ? 1 : 0;
  for (std::size_t i = 0; i < std::min(parameters, group.pieces.size()); ++i) {
    const Tensor& piece = group.pieces[i];
    // fp64 has no name here; its numbers have as many bytes as those of int64.
    const Tensor wide = computed("aten::_to_copy", {reads(piece)}, piece.elements, Dtype::i64, "gradient in fp64");
    norms.push_back(reduced("aten::linalg_vector_norm", wide));
  }
  if (norms.empty()) {
    total = number("aten::_to_copy", {}, Dtype::f32, "norm of nothing");
  } else {
    Accesses accesses;
    for (const Tensor& norm : norms) accesses.push_back(reads(norm));
    const auto count = static_cast<std::int64_t>(norms.size());
    Tensor sum;
    {
      Tensor squares;
      {
        const Tensor stacked = computed("aten::stack", accesses, count, Dtype::i64, "norms");
        squares = computed("aten::pow", {reads(stacked)}, count, Dtype::i64, "squares");
      }
      sum = number("aten::sum", {reads(squares)}, Dtype::i64, "sum of squares");
    }
    total = number("aten::_to_copy", {reads(sum)}, Dtype::f32, "sum of squares in fp32");
  }
  heap().wait(heap().start(program::Collective::all_reduce, program::Axis::shard, {changes(total)}, Stream::compute),
              Stream::compute);
  total = number("aten::pow", {reads(total)}, Dtype::f32, "norm of a group");
  mark_if_invalid(total);
  return total;
}

/// runtime/utils.py: mask_nan_or_inf_with_val_inplace
void Zero::mark_if_invalid(const Tensor& norm) {
  Tensor infinite;
  {
    const Tensor magnitude = number("aten::abs", {reads(norm)}, Dtype::f32, "magnitude");
    infinite = number("aten::eq", {reads(magnitude)}, Dtype::u8, "is it infinite");
  }
  const Tensor unknown = number("aten::isnan", {reads(norm)}, Dtype::u8, "is it no number");
  const Tensor invalid = number("aten::logical_or", {reads(unknown), reads(infinite)}, Dtype::u8, "is it invalid");
  const Tensor mark = number("aten::_to_copy", {}, Dtype::f32, "mark of what is invalid");
  heap().run("aten::masked_fill_", {reads(invalid), reads(mark), changes(norm)});
}

/// scaled_global_norm, combine_grad_norm_groups
Tensor Zero::norm_of_all() {
  std::vector<Tensor> norms;
  Accesses accesses;
  for (const Group& group : groups_) {
    norms.push_back(norm_of(group));
    accesses.push_back(reads(norms.back()));
  }
  const auto count = static_cast<std::int64_t>(groups_.size());
  const Tensor stacked = computed("aten::stack", accesses, count, Dtype::f32, "norms of groups");
  const Tensor invalid = is_any_invalid(stacked);
  const Tensor norm = number("aten::linalg_vector_norm", {reads(stacked)}, Dtype::f32, "norm");
  const Tensor infinity = number("aten::full_like", {}, Dtype::f32, "infinity");
  return number("aten::where", {reads(invalid), reads(norm), reads(infinity)}, Dtype::f32, "norm, or infinity");
}

/// unscale_and_clip_grads
void Zero::clip(const Tensor& gradient, const Tensor& norm) {
  check_norm(norm);
  Tensor scale = norm;
  for (const char* call : {"aten::div", "aten::add", "aten::div", "aten::clamp"}) {
    scale = number(call, {reads(scale)}, Dtype::f32, call);
  }
  const Tensor combined = number("aten::mul", {reads(scale)}, Dtype::f32, "combined scale");
  Tensor factor;
  {
    const Tensor reciprocal = number("aten::reciprocal", {reads(combined)}, Dtype::f32, "reciprocal");
    factor = number("aten::mul", {reads(reciprocal)}, Dtype::f32, "factor");
  }
  heap().run("aten::mul_", {reads(factor), changes(gradient)});
}

void Zero::update(Group& group, bool clips, const Tensor& norm, const std::function<void()>& optimizer) {
  const Partition& part = group.partition;
  {
    Tensor flat = group.pieces.front();
    if (group.pieces.size() > 1) {
      Accesses accesses;
      for (const Tensor& piece : group.pieces) accesses.push_back(reads(piece));
      flat = computed("aten::cat", accesses, part.elements, dtype_, "flat gradient");
    }
    group.gradient = heap().make(part.elements, Dtype::f32, Category::gradients, "gradient of " + group.name);
    heap().run("aten::_to_copy", {reads(flat), writes(group.gradient)});
  }
  group.pieces.clear();
  if (clips) {
    clip(group.gradient, norm);
  } else if (dtype_ == Dtype::f16) {  // by the loss's scale alone, a number
    heap().run("aten::mul_", {changes(group.gradient)});
  }
  optimizer();
  group.gradient = {};
  heap().run("aten::copy_", {reads(group.master.value), writes(heap().narrow(group.flat, part.begin, part.elements))});
}

/// all_gather_dp_groups, each partition in its place
void Zero::gather_updated() {
  if (ranks_ == 1) return;
  for (const Group& group : groups_) {
    const Partition& part = group.partition;
    heap().wait(heap().start(program::Collective::all_gather, program::Axis::shard, {writes(group.flat)},
                             Stream::compute, part.elements * dtype_bytes(dtype_)),
                Stream::compute);
  }
}

void Zero::step(bool clip, const std::function<void(Phase)>& enter, const std::function<void()>& optimizer) {
  const Scope scope(heap(), "zero step");
  if (offloads_) return step_on_host(enter, optimizer);
  enter(Phase::clip);
  check_overflow();
  const Tensor norm = norm_of_all();
  check_norm(norm);
  // The norm of the step before is let go of later; it has the same size.
  const Tensor unscaled = number("aten::div", {reads(norm)}, Dtype::f32, "norm without a scale");
  enter(Phase::optimizer);
  for (updated_ = 0; updated_ < groups_.size(); ++updated_) update(groups_[updated_], clip, norm, optimizer);
  updated_ = 0;
  gather_updated();
  if (!norm_.storage) norm_ = unscaled;
}

}  // namespace vramfit::eager
