// DeepSpeedZeroOptimizer.step: whether a gradient overflowed, the norm, and the update, group by group.
#include <utility>

#include "program/pytorch/zero/zero.h"

namespace vramfit::eager {

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

/// get_grad_norm_direct: each piece is widened to fp64 for its norm. What pads a partition is left out.
Tensor Zero::norm_of(const Group& group) {
  Tensor total;
  std::vector<Tensor> norms;
  std::size_t parameters = 0;
  for (const std::size_t place : group.places) parameters += is_kept(places_[place]) ? 1 : 0;
  for (std::size_t i = 0; i < std::min(parameters, group.pieces.size()); ++i) {
    norms.push_back(norm_in_fp64(group.pieces[i]));
  }
  if (norms.empty()) {
    total = number("aten::_to_copy", {}, Dtype::f32, "norm of nothing");
  } else {
    const Tensor sum = sum_of_squares(norms);
    total = number("aten::_to_copy", {reads(sum)}, Dtype::f32, "sum of squares in fp32");
  }
  heap().wait(heap().start(program::Collective::all_reduce, program::Axis::shard, {changes(total)}, Stream::compute),
              Stream::compute);
  total = number("aten::pow", {reads(total)}, Dtype::f32, "norm of a group");
  mark_if_invalid(total);
  return total;
}

/// scaled_global_norm, combine_grad_norm_groups
Tensor Zero::norm_of_all() {
  std::vector<Tensor> norms;
  for (const Group& group : groups_) norms.push_back(norm_of(group));
  return combined(norms);
}

/// unscale_and_clip_grads
void Zero::clip(const Tensor& gradient, const Tensor& norm) {
  check_norm(norm);
  clip_to(gradient, norm);
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
