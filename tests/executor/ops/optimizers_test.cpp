// Every optimizer of the list against its algorithm written out in double.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "executor/optimizers/optimizers.h"
#include "job/optimizers.h"
#include "program/optimizers/optimizers.h"
#include "tests/executor/ops/op_check_torch.h"

namespace vramfit::testing {

namespace {

constexpr std::int64_t kElements = 1000;

/// Parameters and states of one unit.
struct Tensors {
  at::Tensor parameters;
  std::vector<at::Tensor> states;
};

at::ScalarType type_of(const OptimizerState& state, at::ScalarType type) {
  return state.holds == OptimizerState::Holds::updates ? at::kFloat : type;
}

Tensors fresh(std::string_view optimizer, at::ScalarType type) {
  Tensors tensors{.parameters = random_tensor({kElements}, 1).to(type), .states = {}};
  for (const OptimizerState& state : optimizer_named(optimizer).states) {
    const std::int64_t elements = state.holds == OptimizerState::Holds::updates ? 1 : kElements;
    tensors.states.push_back(at::zeros({elements}, type_of(state, type)));
  }
  return tensors;
}

Tensors copied(const Tensors& from, bool as_double) {
  const auto copy = [&](const at::Tensor& t) { return as_double ? t.to(at::kDouble) : t.clone(); };
  Tensors tensors{.parameters = copy(from.parameters), .states = {}};
  for (const at::Tensor& state : from.states) tensors.states.push_back(copy(state));
  return tensors;
}

/// Loshchilov and Hutter, as PyTorch's documentation writes it.
void adamw_truth(Tensors& t, const at::Tensor& g, const OptimizerOptions& o) {
  t.states[2].add_(1);
  const auto steps = t.states[2].item<double>();
  t.parameters.mul_(1 - o.learning_rate * o["weight-decay"]);
  t.states[0].mul_(o["beta1"]).add_(g, 1 - o["beta1"]);
  t.states[1].mul_(o["beta2"]).addcmul_(g, g, 1 - o["beta2"]);
  const at::Tensor denominator = (t.states[1] / (1 - std::pow(o["beta2"], steps))).sqrt() + o["eps"];
  t.parameters.addcdiv_(t.states[0] / (1 - std::pow(o["beta1"], steps)), denominator, -o.learning_rate);
}

/// torch.optim.SGD's documentation with dampening 0, its rule for the first step included.
void sgd_truth(Tensors& t, const at::Tensor& g, const OptimizerOptions& o) {
  const at::Tensor decayed = g + o["weight-decay"] * t.parameters;
  const bool is_first = t.states[0].count_nonzero().item<std::int64_t>() == 0;
  t.states[0].copy_(is_first ? decayed : o["momentum"] * t.states[0] + decayed);
  t.parameters.sub_(o.learning_rate * t.states[0]);
}

/// Chen et al., arXiv:2302.06675, algorithm 2.
void lion_truth(Tensors& t, const at::Tensor& g, const OptimizerOptions& o) {
  const at::Tensor direction = at::sign(o["beta1"] * t.states[0] + (1 - o["beta1"]) * g);
  t.parameters.sub_(o.learning_rate * (direction + o["weight-decay"] * t.parameters));
  t.states[0].copy_(o["beta2"] * t.states[0] + (1 - o["beta2"]) * g);
}

struct TruthRow {
  std::string_view name;
  void (*step)(Tensors&, const at::Tensor& gradient, const OptimizerOptions&);
  OptimizerOptions options;
  bool cuda_has_16_bits = true;  // whether its function for GPUs computes 16-bit tensors of CPU ranks rightly
};

const std::vector<TruthRow>& truths() {
  static const std::vector<TruthRow> kRows{
      {"adamw",
       adamw_truth,
       {.learning_rate = 0.05, .values = {{"beta1", 0.7}, {"beta2", 0.9}, {"eps", 1e-6}, {"weight-decay", 0.3}}}},
      // LibTorch 2.11's fused kernel on CPU: github.com/pytorch/pytorch/issues/191763
      {"sgd", sgd_truth, {.learning_rate = 0.1, .values = {{"momentum", 0.7}, {"weight-decay", 0.3}}}, false},
      {"lion", lion_truth, {.learning_rate = 0.05, .values = {{"beta1", 0.7}, {"beta2", 0.9}, {"weight-decay", 0.3}}}},
  };
  return kRows;
}

/// The function for GPUs computes the same on CPU ranks' tensors, but may allocate there.
void run(const TruthRow& row, DeviceKind device, OptimizerCall& call) {
  const OptimizerStep step = optimizer_step(row.name, device);
  if (device == DeviceKind::cuda) return step(call);
  CHECK(allocations_of([&] { step(call); }).empty());
}

}  // namespace

TEST_CASE("every optimizer of the list has a truth here") {
  for (const OptimizerName& name : optimizer_names()) {
    CAPTURE(name.name);
    CHECK(std::ranges::count(truths(), name.name, &TruthRow::name) == 1);
  }
}

TEST_CASE(
    "every optimizer does what its algorithm says with gradients that "
    "are divided first, without an allocation") {
  const at::Tensor divisor = at::full({1}, 2.5);
  for (const TruthRow& row : truths()) {
    const OptimizerOptions options = complete_options(row.options, row.name);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda}) {
        CAPTURE(row.name);
        CAPTURE(type);
        CAPTURE(static_cast<int>(device));
        if (device == DeviceKind::cuda && type != at::kFloat && !row.cuda_has_16_bits) continue;
        Tensors own = fresh(row.name, type), truth = copied(own, true);
        const at::Tensor start = truth.parameters.clone();
        for (std::uint64_t step = 0; step < 3; ++step) {
          at::Tensor gradients = random_tensor({kElements}, step + 10).to(type);
          row.step(truth, gradients.to(at::kDouble) / 2.5, options);
          OptimizerCall call{.parameters = own.parameters,
                             .gradients = gradients,
                             .states = own.states,
                             .gradient_divisor = &divisor,
                             .found_inf = nullptr,
                             .options = options};
          run(row, device, call);
        }
        const double limit = type == at::kFloat ? 1e-6 : 1e-2;
        const auto near = [&](const at::Tensor& a, const at::Tensor& b) {
          return (a.to(at::kDouble) - b).norm().item<double>() <= limit * b.norm().item<double>();
        };
        CHECK(near(own.parameters, truth.parameters));
        for (std::size_t i = 0; i < own.states.size(); ++i) CHECK(near(own.states[i], truth.states[i]));
        CHECK((truth.parameters - start).norm().item<double>() > 5 * limit * start.norm().item<double>());
      }
    }
  }
}

TEST_CASE(
    "a step with a gradient that overflowed changes nothing and isn't "
    "counted") {
  const at::Tensor divisor = at::full({1}, 2.5);
  for (const TruthRow& row : truths()) {
    const OptimizerOptions options = complete_options(row.options, row.name);
    for (const auto& [device, type] :
         {std::pair{DeviceKind::cpu, at::kFloat}, std::pair{DeviceKind::cuda, at::kFloat},
          std::pair{DeviceKind::cpu, at::kBFloat16}, std::pair{DeviceKind::cuda, at::kBFloat16}}) {
      CAPTURE(row.name);
      if (device == DeviceKind::cuda && type != at::kFloat && !row.cuda_has_16_bits) continue;
      Tensors own = fresh(row.name, type);
      for (at::Tensor& state : own.states) state.fill_(0.25);
      const Tensors before = copied(own, false);
      at::Tensor found_inf = at::ones({1}), gradients = random_tensor({kElements}, 3).to(type);
      gradients[7].fill_(INFINITY);
      gradients[8].fill_(NAN);
      OptimizerCall call{.parameters = own.parameters,
                         .gradients = gradients,
                         .states = own.states,
                         .gradient_divisor = &divisor,
                         .found_inf = &found_inf,
                         .options = options};
      run(row, device, call);
      CHECK(at::equal(own.parameters, before.parameters));
      for (std::size_t i = 0; i < own.states.size(); ++i) CHECK(at::equal(own.states[i], before.states[i]));
      found_inf.zero_();
      gradients.fill_(1);
      run(row, device, call);
      CHECK_FALSE(at::equal(own.parameters, before.parameters));
      for (std::size_t i = 0; i < own.states.size(); ++i) CHECK_FALSE(at::equal(own.states[i], before.states[i]));
    }
  }
}

TEST_CASE("a misspelt optimizer is refused with a suggestion") {
  CHECK_THROWS_WITH_AS(optimizer_step("adamv", DeviceKind::cpu), doctest::Contains("did you mean \"adamw\""),
                       InputError);
}

}  // namespace vramfit::testing
