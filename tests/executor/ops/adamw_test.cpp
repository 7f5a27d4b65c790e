#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>

#include "base/error.h"
#include "executor/optimizers/optimizers.h"
#include "tests/executor/ops/op_check_torch.h"

namespace vramfit::testing {

namespace {

constexpr std::int64_t kElements = 1000;

struct State {
  at::Tensor parameters, gradients, exp_avg = at::zeros({kElements}), exp_avg_sq = at::zeros({kElements});
  at::Tensor step = at::zeros({1});
};

State make_state(at::ScalarType type) {
  State s{.parameters = random_tensor({kElements}, 1).to(type), .gradients = random_tensor({kElements}, 2).to(type)};
  s.exp_avg = s.exp_avg.to(type);
  s.exp_avg_sq = s.exp_avg_sq.to(type);
  return s;
}

/// The algorithm of Loshchilov and Hutter as PyTorch's documentation writes it, in double.
struct Truth {
  at::Tensor parameters, exp_avg = at::zeros({kElements}, at::kDouble),
                         exp_avg_sq = at::zeros({kElements}, at::kDouble);
  double steps = 0;
  void step(const at::Tensor& gradient, const OptimizerOptions& o) {
    ++steps;
    parameters.mul_(1 - o.learning_rate * o.weight_decay);
    exp_avg.mul_(o.beta1).add_(gradient, 1 - o.beta1);
    exp_avg_sq.mul_(o.beta2).addcmul_(gradient, gradient, 1 - o.beta2);
    const at::Tensor denominator = (exp_avg_sq / (1 - std::pow(o.beta2, steps))).sqrt() + o.eps;
    parameters.addcdiv_(exp_avg / (1 - std::pow(o.beta1, steps)), denominator, -o.learning_rate);
  }
};

}  // namespace

TEST_CASE("fused AdamW decays, corrects its biases, counts its steps and divides gradients, without an allocation") {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    State s = make_state(type);
    Truth truth{.parameters = s.parameters.to(at::kDouble)};
    const at::Tensor divisor = at::full({1}, 2.5);
    const OptimizerOptions options{.learning_rate = 0.05, .beta1 = 0.7, .beta2 = 0.9, .eps = 1e-6, .weight_decay = 0.3};
    const OptimizerFunctions& adamw = optimizer_functions("adamw", DeviceKind::cpu);
    for (int step = 0; step < 3; ++step) {
      s.gradients.copy_(random_tensor({kElements}, static_cast<std::uint64_t>(step) + 10));
      truth.step(s.gradients.to(at::kDouble) / 2.5, options);
      OptimizerCall call{.parameters = s.parameters,
                         .gradients = s.gradients,
                         .exp_avg = s.exp_avg,
                         .exp_avg_sq = s.exp_avg_sq,
                         .step = s.step,
                         .gradient_divisor = &divisor,
                         .found_inf = nullptr,
                         .options = options};
      CHECK(allocations_of([&] { adamw.step(call); }).empty());
    }
    CHECK(s.step.item<float>() == 3);
    const auto error = (s.parameters.to(at::kDouble) - truth.parameters).norm().item<double>();
    CHECK(error <= (type == at::kFloat ? 1e-6 : 1e-2) * truth.parameters.norm().item<double>());
  }
}

TEST_CASE("a step with a gradient that overflowed changes nothing and isn't counted") {
  State s = make_state(at::kFloat);
  s.exp_avg.fill_(0.25);
  s.exp_avg_sq.fill_(0.5);
  s.step.fill_(3);
  s.gradients.data_ptr<float>()[7] = INFINITY;
  const State before{.parameters = s.parameters.clone(),
                     .gradients = {},
                     .exp_avg = s.exp_avg.clone(),
                     .exp_avg_sq = s.exp_avg_sq.clone(),
                     .step = s.step.clone()};
  const at::Tensor divisor = at::full({1}, 2.5);
  at::Tensor found_inf = at::ones({1});
  const OptimizerOptions options;
  const auto run = [&] {
    OptimizerCall call{.parameters = s.parameters,
                       .gradients = s.gradients,
                       .exp_avg = s.exp_avg,
                       .exp_avg_sq = s.exp_avg_sq,
                       .step = s.step,
                       .gradient_divisor = &divisor,
                       .found_inf = &found_inf,
                       .options = options};
    CHECK(allocations_of([&] { optimizer_functions("adamw", DeviceKind::cpu).step(call); }).empty());
  };
  run();
  CHECK(at::equal(s.parameters, before.parameters));
  CHECK(at::equal(s.exp_avg, before.exp_avg));
  CHECK(at::equal(s.exp_avg_sq, before.exp_avg_sq));
  CHECK(at::equal(s.step, before.step));
  found_inf.zero_();
  s.gradients.fill_(1);
  run();
  CHECK_FALSE(at::equal(s.parameters, before.parameters));
  CHECK(s.step.item<float>() == 4);
}

TEST_CASE("a misspelt optimizer is refused with a suggestion") {
  CHECK_THROWS_AS(optimizer_functions("adamv", DeviceKind::cpu), InputError);
  CHECK_THROWS_WITH(optimizer_functions("adamv", DeviceKind::cpu), doctest::Contains("did you mean \"adamw\""));
}

}  // namespace vramfit::testing
