// What TRL's GRPOTrainer (1.16) computes of rewards (trl/trainer/grpo_trainer.py: _calculate_rewards and what
// _generate_and_score_completions makes of them): a number or two for each completion.
#pragma once

#include <cstdint>
#include <functional>

#include "program/pytorch/calls/torch.h"

namespace vramfit::eager {

class GrpoRewards {
 public:
  /// `own`: completions of this rank; `all`: of all ranks, in groups of `of_group` for a prompt each. `gather` is
  /// accelerate's.
  struct Rows {
    std::int64_t own = 0, all = 0, of_group = 0;
  };
  GrpoRewards(Torch& torch, Rows rows, std::function<Tensor(Tensor)> gather)
      : torch_(torch), rows_(rows), gather_(std::move(gather)) {}

  /// Of one reward function, and of all ranks. `log` is called where texts are logged.
  Tensor advantages(const std::function<void()>& log) const;

 private:
  Tensor numbers(const char* call, const Accesses& inputs, std::int64_t count, Dtype dtype, const char* what) const;
  Tensor flags(const char* call, const Tensor& x, std::int64_t count, const char* what) const {
    return numbers(call, {reads(x)}, count, Dtype::u8, what);
  }
  Tensor of_functions() const;
  Tensor weighted(const Tensor& of_functions) const;
  Tensor count_of(const Tensor& flags, std::int64_t groups) const;
  Tensor mean(const Tensor& x, std::int64_t groups) const;
  Tensor deviation(const Tensor& x, std::int64_t groups) const;
  Tensor repeated(const Tensor& x) const;
  Tensor is_zero(const Tensor& x) const;
  void log_statistics(const Tensor& x) const;

  Torch& torch_;
  Rows rows_;
  std::function<Tensor(Tensor)> gather_;
};

}  // namespace vramfit::eager
