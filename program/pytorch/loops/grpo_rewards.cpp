#include "program/pytorch/loops/grpo_rewards.h"

namespace vramfit::eager {

Tensor GrpoRewards::numbers(const char* call, const Accesses& inputs, std::int64_t count, Dtype dtype,
                            const char* what) const {
  return torch_.computed(call, inputs, torch_.heap().make(count, dtype, Category::logits_and_loss, what));
}

/// Each row's rewards are looked at for one that no function gave, here and for all ranks.
Tensor GrpoRewards::of_functions() const {
  Tensor rewards = numbers("aten::zeros", {}, rows_.own, Dtype::f32, "rewards by function");
  { const Tensor given = numbers("aten::_to_copy", {}, rows_.own, Dtype::f32, "rewards"); }
  Tensor all;
  {
    const Tensor missing = flags("aten::isnan", rewards, rows_.own, "is missing");
    all = flags("aten::all", missing, rows_.own, "are all missing");
  }
  { const Tensor any = flags("aten::any", all, 1, "is any row without rewards"); }
  all = {};
  return gather_(std::move(rewards));
}

Tensor GrpoRewards::weighted(const Tensor& of_functions) const {
  Tensor scaled;
  {
    const Tensor weights = numbers("aten::_to_copy", {}, 1, Dtype::f32, "weights of functions");
    scaled = numbers("aten::mul", {reads(of_functions), reads(weights)}, rows_.all, Dtype::f32, "weighted rewards");
  }
  return numbers("aten::nansum", {reads(scaled)}, rows_.all, Dtype::f32, "rewards");
}

/// Flags are summed as numbers of 64 bits, which takes a copy of them.
Tensor GrpoRewards::count_of(const Tensor& flags, std::int64_t groups) const {
  Heap& heap = torch_.heap();
  Tensor count = heap.make(groups, Dtype::i64, Category::logits_and_loss, "how many are there");
  const Tensor wide = heap.make(flags.elements, Dtype::i64, Category::temporaries, "flags as numbers");
  return torch_.computed("aten::sum", {reads(flags), writes(wide)}, std::move(count));
}

/// nanmean
Tensor GrpoRewards::mean(const Tensor& x, std::int64_t groups) const {
  const Tensor count = count_of(flags("aten::isnan", x, x.elements, "is missing"), groups);
  const Tensor sum = numbers("aten::nansum", {reads(x)}, groups, Dtype::f32, "sums of groups");
  return numbers("aten::div", {reads(sum), reads(count)}, groups, Dtype::f32, "means of groups");
}

/// trl/trainer/utils.py: nanstd
Tensor GrpoRewards::deviation(const Tensor& x, std::int64_t groups) const {
  const Tensor mean_of_groups = mean(x, groups);
  Tensor variance;
  {
    Tensor squares;
    {
      const Tensor apart = numbers("aten::sub", {reads(x)}, x.elements, Dtype::f32, "from the mean");
      squares = numbers("aten::pow", {reads(apart)}, x.elements, Dtype::f32, "squares");
    }
    variance = mean(squares, groups);
  }
  Tensor count, correction;
  {
    Tensor there;
    {
      const Tensor missing = flags("aten::isnan", x, x.elements, "is missing");
      there = flags("aten::bitwise_not", missing, x.elements, "is there");
    }
    count = count_of(there, groups);
  }
  {
    const Tensor less = numbers("aten::sub", {reads(count)}, groups, Dtype::i64, "one less");
    correction = numbers("aten::div", {reads(count), reads(less)}, groups, Dtype::f32, "correction");
  }
  {
    const Tensor are_several = flags("aten::gt", count, groups, "are there several");
    const Tensor none = numbers("aten::full_like", {}, groups, Dtype::f32, "no correction");
    correction = numbers("aten::where", {reads(are_several), reads(correction), reads(none)}, groups, Dtype::f32,
                         "correction where there are several");
  }
  torch_.heap().run("aten::mul_", {reads(correction), changes(variance)});
  return numbers("aten::sqrt", {reads(variance)}, groups, Dtype::f32, "deviations of groups");
}

/// repeat_interleave: a number of each group for each of its rows.
Tensor GrpoRewards::repeated(const Tensor& x) const {
  return numbers("aten::clone", {reads(x)}, rows_.all, Dtype::f32, "number of its group");
}

/// isclose(x, zeros_like(x))
Tensor GrpoRewards::is_zero(const Tensor& x) const {
  const std::int64_t count = x.elements;
  const auto of = [&](const char* call, const Tensor& from, const char* what) {
    return numbers(call, {reads(from)}, count, Dtype::f32, what);
  };
  const Tensor zeros = numbers("aten::zeros_like", {}, count, Dtype::f32, "zeros");
  Tensor is_close = flags("aten::eq", x, count, "is equal");
  Tensor allowed, error, is_finite;
  {
    const Tensor scaled = of("aten::mul", zeros, "tolerance");
    const Tensor magnitude = of("aten::abs", scaled, "tolerance's magnitude");
    allowed = of("aten::add", magnitude, "allowed error");
  }
  {
    const Tensor difference = of("aten::sub", x, "difference");
    error = of("aten::abs", difference, "error");
  }
  {
    const Tensor magnitude = of("aten::abs", error, "error's magnitude");
    const Tensor is_number = flags("aten::eq", error, count, "is a number");
    const Tensor is_bounded = flags("aten::ne", magnitude, count, "is bounded");
    is_finite = numbers("aten::mul", {reads(is_number), reads(is_bounded)}, count, Dtype::u8, "is finite");
  }
  const Tensor is_allowed = numbers("aten::le", {reads(error), reads(allowed)}, count, Dtype::u8, "is allowed");
  torch_.heap().run("aten::bitwise_or_", {reads(is_finite), reads(is_allowed), changes(is_close)});
  return is_close;
}

void GrpoRewards::log_statistics(const Tensor& x) const {
  { const Tensor logged = mean(x, 1); }
  { const Tensor logged = deviation(x, 1); }
}

Tensor GrpoRewards::advantages(const std::function<void()>& log) const {
  const std::int64_t groups = rows_.all / rows_.of_group;
  const auto missing = [&](const Tensor& x) {
    const Tensor by_function = flags("aten::isnan", x, rows_.all, "is missing");
    return flags("aten::all", by_function, rows_.all, "are all missing");
  };
  const Tensor by_function = of_functions();
  const Tensor has_none = missing(by_function);
  Tensor rewards = weighted(by_function);
  const Tensor means = repeated(mean(rewards, groups));
  const Tensor deviations = repeated(deviation(rewards, groups));
  Tensor advantages;
  {
    const Tensor apart = numbers("aten::sub", {reads(rewards), reads(means)}, rows_.all, Dtype::f32, "from the mean");
    const Tensor safe = numbers("aten::add", {reads(deviations)}, rows_.all, Dtype::f32, "deviations, not 0");
    advantages = numbers("aten::div", {reads(apart), reads(safe)}, rows_.all, Dtype::f32, "advantages");
  }
  const Tensor are_equal = is_zero(deviations);
  advantages = numbers("aten::nan_to_num", {reads(advantages)}, rows_.all, Dtype::f32, "advantages of all ranks");
  const Tensor kept = numbers("aten::clone", {reads(advantages)}, rows_.all, Dtype::f32, "advantages for the log");
  log_statistics(by_function);
  rewards = weighted(by_function);
  log_statistics(rewards);
  {
    const Tensor wide = numbers("aten::_to_copy", {reads(are_equal)}, rows_.all, Dtype::f32, "is the deviation 0");
    const Tensor share = numbers("aten::mean", {reads(wide)}, 1, Dtype::f32, "share of such");
  }
  log();
  return advantages;
}

}  // namespace vramfit::eager
