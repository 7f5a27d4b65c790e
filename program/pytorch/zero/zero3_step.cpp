// DeepSpeedZeroOptimizer_Stage3.step: the norm, and the update, group by group.
#include <utility>

#include "program/pytorch/zero/zero3.h"

namespace vramfit::eager {

/// has_overflow, where what is trained is fp16: all of the rank's gradients at once, on the stream that they were
/// reduced on.
void Zero3::check_overflow() {
  const std::int64_t n = gradients_.elements;
  stream_ = reducing_;
  Tensor infinite;
  {
    const Tensor magnitude = computed("aten::abs", {reads(gradients_)}, n, dtype_, "magnitude");
    infinite = computed("aten::eq", {reads(magnitude)}, n, Dtype::u8, "is it infinite");
  }
  note_any(std::move(infinite));
  note_any(computed("aten::ne", {reads(gradients_)}, n, Dtype::u8, "is it no number"));
  Tensor flag;
  {
    const Tensor copy = number("aten::clone", {reads(tracker_)}, Dtype::u8, "is there one");
    flag = number("aten::_to_copy", {reads(copy)}, Dtype::u8, "is there one, as a byte");
  }
  heap().run("aten::zero_", {writes(tracker_)}, stream_);
  stream_ = Stream::compute;
  wait_on(Stream::compute);
  heap().wait(heap().start(program::Collective::all_reduce, program::Axis::shard, {changes(flag)}, Stream::compute),
              Stream::compute);
}

/// inf_or_nan_tracker.logical_or_(flags.any())
void Zero3::note_any(Tensor flags) {
  const Tensor any = reduced("aten::any", flags);
  flags = {};
  heap().run("aten::logical_or_", {reads(any), changes(tracker_)}, stream_);
}

/// get_grad_norm_direct: each part is widened to fp64 for its norm.
Tensor Zero3::norm_of(const Group& group) {
  std::vector<Tensor> norms;
  for (const std::size_t place : group.parameters) norms.push_back(norm_in_fp64(gradient_parts_[place]));
  const Tensor total = sum_of_squares(norms);
  heap().wait(heap().start(program::Collective::all_reduce, program::Axis::shard, {changes(total)}, Stream::compute),
              Stream::compute);
  const Tensor norm = number("aten::pow", {reads(total)}, Dtype::i64, "norm of a group");
  Tensor infinite;
  {
    const Tensor magnitude = number("aten::abs", {reads(norm)}, Dtype::i64, "magnitude");
    infinite = number("aten::eq", {reads(magnitude)}, Dtype::u8, "is it infinite");
  }
  const Tensor unknown = number("aten::isnan", {reads(norm)}, Dtype::u8, "is it no number");
  const Tensor invalid = number("aten::logical_or", {reads(unknown), reads(infinite)}, Dtype::u8, "is it invalid");
  const Tensor mark = number("aten::_to_copy", {}, Dtype::f32, "mark of what is invalid");
  const Tensor wide = number("aten::_to_copy", {reads(mark)}, Dtype::i64, "mark in fp64");
  return number("aten::where", {reads(invalid), reads(wide), reads(norm)}, Dtype::i64, "norm, or the mark");
}

void Zero3::update(Group& group, bool clips, const Tensor& norm, const std::function<void()>& optimizer) {
  {
    Accesses accesses;
    for (const std::size_t place : group.parameters) accesses.push_back(reads(gradient_parts_[place]));
    const Tensor flat = group.parameters.size() == 1
                            ? gradient_parts_[group.parameters.front()]
                            : computed("aten::cat", accesses, group.elements, dtype_, "flat gradient");
    group.gradient = heap().make(group.elements, Dtype::f32, Category::gradients, "gradient of " + group.name);
    heap().run("aten::_to_copy", {reads(flat), writes(group.gradient)});
  }
  if (clips) {
    clip_to(group.gradient, norm);
  } else if (trained_dtype_ == Dtype::f16) {  // by the loss's scale alone, a number
    heap().run("aten::mul_", {changes(group.gradient)});
  }
  optimizer();
  heap().run("aten::copy_", {reads(group.master.value), writes(group.flat)});
  group.gradient = {};
}

void Zero3::step(bool clip, const std::function<void(Phase)>& enter, const std::function<void()>& optimizer) {
  const Scope scope(heap(), "zero step");
  accumulates_ = false;
  coordinator_.release_all();
  enter(Phase::clip);
  if (offload_.states) return step_on_host(enter, optimizer);
  if (trained_dtype_ == Dtype::f16) check_overflow();
  std::vector<Tensor> norms;
  for (const Group& group : groups_) norms.push_back(norm_of(group));
  const Tensor norm = combined(norms);
  check_norm(norm);
  // The norm of the step before is let go of later; it has the same size.
  const Tensor unscaled = number("aten::div", {reads(norm)}, norm.dtype, "norm without a scale");
  enter(Phase::optimizer);
  for (updated_ = 0; updated_ < groups_.size(); ++updated_) update(groups_[updated_], clip, norm, optimizer);
  updated_ = 0;
  coordinator_.gather_persistent();
  coordinator_.end_recording();
  if (!norm_.storage) norm_ = unscaled;
}

}  // namespace vramfit::eager
