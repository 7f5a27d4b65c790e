#include "executor/optimizers/adamw_forms.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>

#include <cmath>
#include <utility>
#include <vector>

#include "executor/optimizers/adamw_chunks_torch.h"
#include "executor/optimizers/elements_torch.h"

namespace vramfit {

namespace {

using Tensors = std::vector<at::Tensor>;

/// What an update needs of the count of updates, on GPUs the card's, which the host doesn't wait for, as with
/// PyTorch's capturable=True. Denominators are divided by `minus_step`, and the root by `root2` before.
class Numbers {
 public:
  explicit Numbers(OptimizerCall& call) : on_host_(call.scratch == nullptr) {
    const OptimizerOptions& o = call.options;
    at::Tensor& steps = call.states[2];
    if (on_host_) {
      const double count = *static_cast<float*>(steps.data_ptr()) += 1.0F;
      minus_step_ = -o.learning_rate / (1 - std::pow(o["beta1"], count));
      root2_ = std::sqrt(1 - std::pow(o["beta2"], count));
      return;
    }
    constexpr std::int64_t kDoubles = 4, kRoot = 8, kMinusStep = 9;  // places
    steps.add_(1);
    const at::Tensor corrections = call.scratch->narrow(0, 0, kDoubles).view(at::kDouble);
    root_ = call.scratch->select(0, kRoot);
    minus_step_size_ = call.scratch->select(0, kMinusStep);
    root_.copy_(bias_correction(corrections.narrow(0, 1, 1), steps, o["beta2"]).sqrt_().select(0, 0));
    minus_step_size_.copy_(bias_correction(corrections.narrow(0, 0, 1), steps, o["beta1"])
                               .reciprocal_()
                               .mul_(-o.learning_rate)
                               .select(0, 0));
  }

  bool are_on_host() const { return on_host_; }
  double root2() const { return root2_; }
  double minus_step() const { return minus_step_; }
  /// Without dimensions, so that they take the dtype of what they divide.
  const at::Tensor& root() const { return root_; }
  const at::Tensor& minus_step_size() const { return minus_step_size_; }

 private:
  bool on_host_;
  double root2_ = 1, minus_step_ = 1;
  at::Tensor root_, minus_step_size_;
};

at::Tensor part(const at::Tensor& flat, const ParameterRows& rows) {
  return flat.narrow(0, rows.offset, rows.held_rows * rows.columns);
}

Tensors parts(const OptimizerCall& call, const at::Tensor& flat) {
  Tensors list;
  list.reserve(call.rows.size());
  for (const ParameterRows& rows : call.rows) list.push_back(part(flat, rows));
  return list;
}

/// As Python hands it over. In C++ and in _foreach_mul_, CPU tensors of 16 bits are multiplied by a number that is
/// rounded to their dtype.
at::Tensor factor(double number) { return at::native::wrapped_scalar_tensor(number); }

double kept(const OptimizerOptions& o) { return 1 - o.learning_rate * o["weight-decay"]; }

}  // namespace

void adamw_by_lists(OptimizerCall& call) {
  const OptimizerOptions& o = call.options;
  const Numbers numbers(call);
  const bool on_host = numbers.are_on_host();
  const Tensors parameters = parts(call, call.parameters), gradients = parts(call, call.gradients);
  const Tensors firsts = parts(call, call.states[0]), seconds = parts(call, call.states[1]);
  if (call.gradient_divisor != nullptr) {
    on_host ? at::_foreach_div_(gradients, number(call.gradient_divisor, 1))
            : at::_foreach_div_(gradients, call.gradient_divisor->select(0, 0));
  }
  at::_foreach_mul_(parameters, kept(o));
  at::_foreach_lerp_(firsts, gradients, 1 - o["beta1"]);
  at::_foreach_mul_(seconds, o["beta2"]);
  at::_foreach_addcmul_(seconds, gradients, gradients, 1 - o["beta2"]);
  Tensors roots = at::_foreach_sqrt(seconds);
  on_host ? at::_foreach_div_(roots, numbers.root2()) : at::_foreach_div_(roots, numbers.root());
  at::_foreach_add_(roots, o["eps"]);
  if (!on_host) at::_foreach_div_(roots, numbers.minus_step_size());
  at::_foreach_addcdiv_(parameters, firsts, roots, on_host ? numbers.minus_step() : 1.0);
  for (at::Tensor& root : roots) root.reset();
}

void adamw_by_parameter(OptimizerCall& call) {
  const OptimizerOptions& o = call.options;
  const Numbers numbers(call);
  const bool on_host = numbers.are_on_host();
  at::Tensor denominator;
  for (const ParameterRows& rows : call.rows) {
    at::Tensor p = part(call.parameters, rows), g = part(call.gradients, rows);
    at::Tensor m = part(call.states[0], rows), v = part(call.states[1], rows);
    if (call.gradient_divisor != nullptr) {
      on_host ? g.div_(number(call.gradient_divisor, 1)) : g.div_(call.gradient_divisor->select(0, 0));
    }
    p.mul_(factor(kept(o)));
    m.lerp_(g, 1 - o["beta1"]);
    v.mul_(factor(o["beta2"])).addcmul_(g, g, 1 - o["beta2"]);
    at::Tensor root = v.sqrt();
    at::Tensor next = on_host ? root.div(numbers.root2()) : root.div(numbers.root());
    root.reset();
    next.add_(o["eps"]);
    if (!on_host) next.div_(numbers.minus_step_size());
    denominator = std::move(next);
    p.addcdiv_(m, denominator, on_host ? numbers.minus_step() : 1.0);
  }
}

}  // namespace vramfit
