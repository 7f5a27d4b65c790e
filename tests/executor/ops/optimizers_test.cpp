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
#include "job/optimizers/optimizers.h"
#include "program/optimizers/block_states.h"
#include "program/optimizers/optimizers.h"
#include "tests/executor/ops/allocations_torch.h"
#include "tests/executor/ops/random_tensors_torch.h"
#include "tests/executor/ops/whole_unit.h"

namespace vramfit::testing {

namespace {

constexpr std::int64_t kElements = 1024;  // whole blocks

/// A unit of a matrix and a vector that one rank has whole.
constexpr std::int64_t kRowsOfMatrix = 16, kColumns = 48, kVector = kElements - kRowsOfMatrix * kColumns;
Unit unit_of_two() { return whole_unit({{kRowsOfMatrix, kColumns}, {kVector, 1}}); }

/// Parameters and states of one unit, and what updates work in.
struct Tensors {
  at::Tensor parameters;
  std::vector<at::Tensor> states;
  at::Tensor scratch;
  std::vector<RandomStretch> stretches{};
  std::vector<ParameterRows> rows{};

  OptimizerCall call(at::Tensor& gradients, const at::Tensor* divisor, const at::Tensor* found_inf,
                     const OptimizerOptions& options) {
    return {.parameters = parameters,
            .gradients = gradients,
            .states = states,
            .gradient_divisor = divisor,
            .found_inf = found_inf,
            .options = options,
            .scratch = scratch.defined() ? &scratch : nullptr,
            .stretches = stretches,
            .rows = rows};
  }
};

/// Of parameters, states and gradients, and who updates them.
struct Form {
  Dtype storage = Dtype::f32, state = Dtype::f32, gradient = Dtype::f32;
  DeviceKind device = DeviceKind::cpu;
};

at::ScalarType type_of(Dtype dtype) {
  if (dtype == Dtype::u8) return at::kByte;
  if (dtype == Dtype::f16) return at::kHalf;
  return dtype == Dtype::bf16 ? at::kBFloat16 : at::kFloat;
}

Dtype dtype_of(const OptimizerState& state, const Form& form) {
  return state.holds == OptimizerState::Holds::updates ? Dtype::f32 : state.dtype.value_or(form.state);
}

Tensors fresh(std::string_view optimizer, const Form& form) {
  const Optimizer& row = optimizer_named(optimizer);
  Tensors tensors{.parameters = random_tensor({kElements}, 1).to(type_of(form.storage)), .states = {}, .scratch = {}};
  for (const OptimizerState& state : row.states) {
    tensors.states.push_back(at::zeros({elements_of(state, unit_of_two())}, type_of(dtype_of(state, form))));
  }
  const UnitUpdate update{.elements = kElements,
                          .storage = form.storage,
                          .gradient = form.gradient,
                          .state = form.state,
                          .device = form.device,
                          .parameters = 2,
                          .longest_row = kColumns};
  const std::int64_t scratch = row.scratch == nullptr ? 0 : row.scratch(update);
  if (scratch > 0) tensors.scratch = at::full({scratch}, NAN);
  tensors.rows = rows_of(unit_of_two());
  if (row.rounds_randomly) tensors.stretches = {{.offset = 0, .elements = kElements, .first = 0, .key = 7}};
  return tensors;
}

/// Whether --state-dtype says what some of its states are.
bool has_states_of_the_job(const Optimizer& row) {
  return std::ranges::any_of(row.states, [](const OptimizerState& state) {
    return state.holds != OptimizerState::Holds::updates && !state.dtype;
  });
}

/// Each optimizer's.
std::vector<Form> forms(std::string_view optimizer) {
  const Optimizer& row = optimizer_named(optimizer);
  std::vector<Form> all;
  for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda}) {
    for (const Dtype storage : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
      if (row.rounds_randomly && storage != Dtype::bf16) continue;
      for (const Dtype state : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
        if (state == Dtype::f16 && has_states_of_the_job(row)) continue;  // refused
        if (storage != state && !row.takes_other_states) continue;
        for (const Dtype gradient : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
          all.push_back({storage, state, gradient, device});
        }
      }
    }
  }
  return all;
}

Tensors copied(const Tensors& from, bool as_double) {
  const auto copy = [&](const at::Tensor& t) { return as_double ? t.to(at::kDouble) : t.clone(); };
  Tensors tensors{.parameters = copy(from.parameters), .states = {}, .scratch = {}};
  for (const at::Tensor& state : from.states) tensors.states.push_back(copy(state));
  return tensors;
}

/// Loshchilov and Hutter, as PyTorch's documentation writes it. States of other forms than two averages and a count are
/// replaced by these.
void adamw_truth(Tensors& t, const at::Tensor& g, const OptimizerOptions& o) {
  if (t.states.size() != 3) {
    t.states = {at::zeros_like(t.parameters), at::zeros_like(t.parameters), at::zeros({1}, at::kDouble)};
  }
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

/// torch.optim.Adafactor's documentation with its epsilon 1.
void adafactor_truth(Tensors& t, const at::Tensor& g, const OptimizerOptions& o) {
  t.states[3].add_(1);
  const auto steps = t.states[3].item<double>();
  const double share = std::pow(steps, -o["beta2-decay"]), rate = std::min(o.learning_rate, 1 / std::sqrt(steps));
  const auto rms = [](const at::Tensor& x) { return std::sqrt(x.square().mean().item<double>()); };
  for (const ParameterRows& place : rows_of(unit_of_two())) {
    const bool is_matrix = place.columns > 1;
    const auto own = [&](const at::Tensor& flat) {
      return flat.narrow(0, place.offset, place.rows * place.columns).view({place.rows, place.columns});
    };
    at::Tensor p = own(t.parameters);
    const at::Tensor squares = own(g).square();
    const double size = std::max(o["eps2"], rms(p));
    at::Tensor variance;
    if (is_matrix) {
      t.states[0].lerp_(squares.mean(1), share);
      t.states[1].lerp_(squares.mean(0), share);
      const at::Tensor mean = t.states[0].mean().clamp_min(o["eps1"]);
      variance = t.states[0].unsqueeze(1) * t.states[1].unsqueeze(0) / mean;
    } else {
      variance = t.states[2].lerp_(squares.view({-1}), share).view({-1, 1});
    }
    const at::Tensor update = own(g) / variance.clamp_min(o["eps1"] * o["eps1"]).sqrt();
    p.mul_(1 - o.learning_rate * o["weight-decay"]);
    p.sub_(size * rate / std::max(1.0, rms(update) / o["update-clip"]) * update);
  }
}

struct TruthRow {
  std::string_view name;
  void (*step)(Tensors&, const at::Tensor& gradient, const OptimizerOptions&);
  OptimizerOptions options;
  bool cuda_has_16_bits = true;  // whether its function for GPUs computes 16-bit tensors of CPU ranks rightly
  double limit = 1e-6;           // in fp32
  bool has_codes = false;        // instead of the truth's states; tests/oracle/block_states.py compares those
};

const std::vector<TruthRow>& truths() {
  static const OptimizerOptions kAdam{.learning_rate = 0.05,
                                      .values = {{"beta1", 0.7}, {"beta2", 0.9}, {"eps", 1e-6}, {"weight-decay", 0.3}}};
  static const std::vector<TruthRow> kRows{
      {"adamw", adamw_truth, kAdam},
      {"adamw-stochastic", adamw_truth, kAdam},
      {.name = "adamw-8bit", .step = adamw_truth, .options = kAdam, .limit = 1e-3, .has_codes = true},
      {.name = "adamw-4bit", .step = adamw_truth, .options = kAdam, .limit = 1.5e-2, .has_codes = true},
      {.name = "adamw-fp8", .step = adamw_truth, .options = kAdam, .limit = 5e-3, .has_codes = true},
      {.name = "adamw-fp8-blocks", .step = adamw_truth, .options = kAdam, .limit = 5e-3, .has_codes = true},
      // LibTorch 2.11's fused kernel on CPU: github.com/pytorch/pytorch/issues/191763
      {"sgd", sgd_truth, {.learning_rate = 0.1, .values = {{"momentum", 0.7}, {"weight-decay", 0.3}}}, false},
      {"adafactor",
       adafactor_truth,
       {.learning_rate = 0.1,
        .values =
            {{"beta2-decay", 0.7}, {"eps1", 1e-5}, {"eps2", 1e-2}, {"update-clip", 1.01}, {"weight-decay", 0.3}}}},
      {"lion", lion_truth, {.learning_rate = 0.05, .values = {{"beta1", 0.7}, {"beta2", 0.9}, {"weight-decay", 0.3}}}},
  };
  return kRows;
}

/// What it needs of whole parameters first, and the update.
void update(std::string_view optimizer, OptimizerStep step, OptimizerCall& call) {
  call.finds_sums = true;
  for (at::Tensor& sums : call.sums) sums.fill_(NAN);
  const std::vector<at::Tensor> all = std::exchange(call.sums, {});
  for (std::size_t i = 0; i < optimizer_named(optimizer).sums.size(); ++i) {
    call.sums.push_back(all[i]);
    step(call);
  }
  call.finds_sums = false;
  step(call);
}

/// The function for GPUs computes the same on CPU ranks' tensors, but may allocate there.
void run(const TruthRow& row, DeviceKind device, OptimizerCall& call) {
  for (const OptimizerSums& sums : optimizer_named(row.name).sums) {
    call.sums.push_back(at::empty({sums.numbers(unit_of_two())}));
  }
  const auto step = [&](OptimizerCall& with) { update(row.name, optimizer_step(row.name, device), with); };
  if (device == DeviceKind::cuda) return step(call);
  CHECK(allocations_of([&] { step(call); }).empty());
}

/// Of several dtypes, it computes chunks in fp32.
bool leaves_16_bits(const TruthRow& row, const Form& form) {
  const bool is_of_16_bits = form.storage != Dtype::f32 && form.gradient == form.storage;
  return form.device == DeviceKind::cuda && is_of_16_bits && !row.cuda_has_16_bits;
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
    for (const Form& form : forms(row.name)) {
      CAPTURE(row.name);
      CAPTURE(static_cast<int>(form.storage));
      CAPTURE(static_cast<int>(form.state));
      CAPTURE(static_cast<int>(form.gradient));
      CAPTURE(static_cast<int>(form.device));
      if (leaves_16_bits(row, form)) continue;
      Tensors own = fresh(row.name, form), truth = copied(own, true);
      const at::Tensor start = truth.parameters.clone();
      for (std::uint64_t step = 0; step < 3; ++step) {
        at::Tensor gradients = random_tensor({kElements}, step + 10).to(type_of(form.gradient));
        row.step(truth, gradients.to(at::kDouble) / 2.5, options);
        OptimizerCall call = own.call(gradients, &divisor, nullptr, options);
        run(row, form.device, call);
      }
      const bool is_exact = form.storage == Dtype::f32 && form.state == Dtype::f32;
      const double limit = is_exact ? row.limit : std::max(row.limit, 1e-2);
      const auto near = [&](const at::Tensor& a, const at::Tensor& b) {
        return (a.to(at::kDouble) - b).norm().item<double>() <= limit * b.norm().item<double>();
      };
      CHECK(near(own.parameters, truth.parameters));
      for (std::size_t i = 0; !row.has_codes && i < own.states.size(); ++i) {
        CHECK(near(own.states[i], truth.states[i]));
      }
      CHECK((truth.parameters - start).norm().item<double>() > 5 * limit * start.norm().item<double>());
    }
  }
}

TEST_CASE(
    "a step with a gradient that overflowed changes nothing and isn't "
    "counted") {
  const at::Tensor divisor = at::full({1}, 2.5);
  for (const TruthRow& row : truths()) {
    const OptimizerOptions options = complete_options(row.options, row.name);
    for (const Form& form : forms(row.name)) {
      CAPTURE(row.name);
      if (leaves_16_bits(row, form)) continue;
      Tensors own = fresh(row.name, form);
      for (at::Tensor& state : own.states) state.fill_(0.25);
      const Tensors before = copied(own, false);
      at::Tensor found_inf = at::ones({1});
      at::Tensor gradients = random_tensor({kElements}, 3).to(type_of(form.gradient));
      gradients[7].fill_(INFINITY);
      gradients[8].fill_(NAN);
      OptimizerCall call = own.call(gradients, &divisor, &found_inf, options);
      run(row, form.device, call);
      CHECK(at::equal(own.parameters, before.parameters));
      for (std::size_t i = 0; i < own.states.size(); ++i) CHECK(at::equal(own.states[i], before.states[i]));
      found_inf.zero_();
      gradients.fill_(1);
      OptimizerCall next = own.call(gradients, &divisor, &found_inf, options);
      run(row, form.device, next);
      CHECK_FALSE(at::equal(own.parameters, before.parameters));
      for (std::size_t i = 0; i < own.states.size(); ++i) CHECK_FALSE(at::equal(own.states[i], before.states[i]));
    }
  }
}

TEST_CASE("gradients of 16 bits that are made fp32 chunk by chunk give GPUs what fp32 gradients give") {
  constexpr std::int64_t kChunk = 320;  // whole vectors of a CPU; the last is shorter
  const OptimizerOptions options = complete_options({.learning_rate = 0.05, .values = {}}, "adamw");
  const at::Tensor divisor = at::full({1}, 2.5);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    Tensors chunks = fresh("adamw", {.device = DeviceKind::cuda}), whole = copied(chunks, false);
    chunks.scratch = at::full({kChunk}, NAN);
    for (std::uint64_t step = 0; step < 3; ++step) {
      at::Tensor narrow = random_tensor({kElements}, step + 10).to(type), wide = narrow.to(at::kFloat);
      OptimizerCall in_chunks = chunks.call(narrow, &divisor, nullptr, options),
                    at_once = whole.call(wide, &divisor, nullptr, options);
      optimizer_step("adamw", DeviceKind::cuda)(in_chunks);
      optimizer_step("adamw", DeviceKind::cuda)(at_once);
      CHECK(at::equal(chunks.parameters, whole.parameters));
      for (std::size_t i = 0; i < 3; ++i) CHECK(at::equal(chunks.states[i], whole.states[i]));
    }
  }
}

/// One update of `elements` ones in bf16 by gradients of ones, in stretches that begin at `starts` of one parameter.
at::Tensor rounded_randomly(std::int64_t elements, const std::vector<std::int64_t>& starts, DeviceKind device) {
  const OptimizerOptions options =
      complete_options({.learning_rate = 1e-4, .values = {{"weight-decay", 0}}}, "adamw-stochastic");
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const std::int64_t count = (i + 1 < starts.size() ? starts[i + 1] : elements) - starts[i];
    const std::int64_t scratch = BlockScratch{.elements = count, .block = count, .rows = kRowsWithWords}.size();
    Tensors own{.parameters = at::ones({count}, at::kBFloat16),
                .states = {at::zeros({count}), at::zeros({count}), at::zeros({1})},
                .scratch = at::full({scratch}, NAN),
                .stretches = {{.offset = 0, .elements = count, .first = starts[i], .key = 42}}};
    at::Tensor gradients = at::ones({count}, at::kBFloat16);
    OptimizerCall call = own.call(gradients, nullptr, nullptr, options);
    optimizer_step("adamw-stochastic", device)(call);
    parts.push_back(own.parameters.to(at::kDouble));
  }
  return at::cat(parts);
}

TEST_CASE("updates that one rounding would lose are kept on average") {
  constexpr std::int64_t kMany = std::int64_t{1} << 20;
  const at::Tensor moved = rounded_randomly(kMany, {0}, DeviceKind::cpu);
  // Each number is 1 or the one below, 1/256 away; the mean moves by 1e-4, with a deviation of 6e-7.
  CHECK((1 - moved.mean().item<double>()) == doctest::Approx(1e-4).epsilon(0.03));
  CHECK(moved.ne(1).logical_and(moved.ne(1 - 1.0 / 256)).count_nonzero().item<std::int64_t>() == 0);
}

TEST_CASE("how an element is rounded doesn't depend on the rank that holds it or on the device") {
  constexpr std::int64_t kSome = 5000;
  const at::Tensor whole = rounded_randomly(kSome, {0}, DeviceKind::cpu);
  CHECK(at::equal(whole, rounded_randomly(kSome, {0, 1234, 3000}, DeviceKind::cpu)));
  CHECK(at::equal(whole, rounded_randomly(kSome, {0, 2500}, DeviceKind::cuda)));
  CHECK(whole.ne(1).count_nonzero().item<std::int64_t>() > 60);  // of 128
}

TEST_CASE("a misspelt optimizer is refused with a suggestion") {
  CHECK_THROWS_WITH_AS(optimizer_step("adamv", DeviceKind::cpu), doctest::Contains("did you mean \"adamw\""),
                       InputError);
}

}  // namespace vramfit::testing
