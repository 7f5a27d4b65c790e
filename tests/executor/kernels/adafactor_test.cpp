// Adafactor by own kernels beside the loops of CPU ranks: sums differ by the order in which they are added up alone.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "executor/optimizers/optimizers.h"
#include "job/optimizers/optimizers.h"
#include "program/optimizers/adafactor.h"
#include "program/optimizers/optimizers.h"
#include "tests/executor/kernels/kernel_place_torch.h"
#include "tests/executor/ops/random_tensors_torch.h"
#include "tests/executor/ops/whole_unit.h"

namespace vramfit::testing {

namespace {

/// A matrix in whole packs, one that isn't, a vector, and a matrix of which this rank has padding alone.
Unit unit_of_rank() {
  Unit unit = whole_unit({{70, 96}, {33, 45}, {77, 1}, {3, 8}}, 16);
  unit.parameters.back().rows = 0;
  return unit;
}
/// Whose thread blocks are as many as a unit of its size can have: its scratch is full.
Unit unit_of_rows() { return whole_unit({{96, 2}}); }
/// Of a model's layer, and with more rows than warps that are started.
Unit large_unit() { return whole_unit({{14336, 4096}, {100'003, 51}, {4096, 1}}); }

struct Subject {
  Unit unit;
  at::ScalarType number, gradient;
};

struct Tensors {
  at::Tensor parameters;
  std::vector<at::Tensor> states, sums;

  std::vector<at::Tensor> all() const {
    std::vector<at::Tensor> tensors{parameters};
    tensors.insert(tensors.end(), states.begin(), states.end());
    tensors.insert(tensors.end(), sums.begin(), sums.end());
    return tensors;
  }
};

std::vector<ParameterRows> parts_of(const Unit& unit) {
  std::vector<ParameterRows> rows = rows_of(unit);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].held_rows = unit.parameters[i].rows_per_rank;
    rows[i].all_rows = unit.parameters[i].rows_per_rank;
  }
  return rows;
}

Tensors fresh(const Subject& subject, at::Device device) {
  const Optimizer& row = optimizer_named("adafactor");
  const std::int64_t n = subject.unit.trainable_elements;
  Tensors tensors{on_device(random_tensor({n}, 1).to(subject.number), device), {}, {}};
  for (const OptimizerState& state : row.states) {
    tensors.states.push_back(on_device(at::zeros({elements_of(state, subject.unit)}), device));
  }
  for (const OptimizerSums& sums : row.sums) {
    tensors.sums.push_back(on_device(at::full({sums.numbers(subject.unit)}, NAN), device));
  }
  return tensors;
}

struct Step {
  at::Tensor gradients, divisor = {}, found_inf = {};
};

void update(const Subject& subject, DeviceKind functions, KernelSource kernels, Tensors& tensors, const Step& step) {
  const OptimizerOptions options = complete_options(
      {.learning_rate = 0.1,
       .values = {{"beta2-decay", 0.7}, {"eps1", 1e-5}, {"eps2", 1e-2}, {"update-clip", 1.01}, {"weight-decay", 0.3}}},
      "adafactor");
  const at::Device device = tensors.parameters.device();
  at::Tensor gradients = on_device(step.gradients.clone(), device);
  const at::Tensor divisor = on_device(step.divisor, device), found_inf = on_device(step.found_inf, device);
  const std::vector<ParameterRows> rows = parts_of(subject.unit);
  const UnitUpdate work{.elements = subject.unit.trainable_elements,
                        .storage = Dtype::f32,
                        .gradient = Dtype::f32,
                        .device = functions,
                        .parameters = static_cast<std::int64_t>(rows.size()),
                        .longest_row = 4096,
                        .kernels = kernels};
  // Nothing is written behind the scratch.
  constexpr std::int64_t kBehind = 64;
  const std::int64_t numbers = optimizer_named("adafactor").scratch(work);
  at::Tensor memory = on_device(at::full({numbers + kBehind}, 7.0F), device);
  at::Tensor scratch = memory.narrow(0, 0, numbers).fill_(NAN);
  OptimizerCall call{.parameters = tensors.parameters,
                     .gradients = gradients,
                     .states = tensors.states,
                     .gradient_divisor = divisor.defined() ? &divisor : nullptr,
                     .found_inf = found_inf.defined() ? &found_inf : nullptr,
                     .options = options,
                     .scratch = numbers > 0 ? &scratch : nullptr,
                     .rows = rows,
                     .finds_sums = true};
  const OptimizerStep run = optimizer_step("adafactor", functions, kernels);
  for (const at::Tensor& sums : tensors.sums) {
    call.sums.push_back(sums);
    run(call);
  }
  call.finds_sums = false;
  run(call);
  CHECK((memory.narrow(0, numbers, kBehind) == 7.0F).all().item<bool>());
}

bool are_near(const at::Tensor& got, const at::Tensor& expected, double limit) {
  const at::Tensor a = got.cpu().to(at::kDouble), b = expected.to(at::kDouble);
  return (a - b).norm().item<double>() <= limit * b.norm().item<double>();
}

void check(const Subject& subject, const at::Tensor& divisor) {
  CAPTURE(static_cast<int>(subject.number));
  CAPTURE(static_cast<int>(subject.gradient));
  Tensors expected = fresh(subject, at::kCPU), forwards = fresh(subject, kernel_device()),
          backwards = fresh(subject, kernel_device());
  const at::Tensor start = expected.parameters.clone();
  for (std::uint64_t step = 0; step < 3; ++step) {
    const at::Tensor gradients =
        (random_tensor({subject.unit.trainable_elements}, step + 10) * std::pow(10.0, step)).to(subject.gradient);
    const Step now{.gradients = gradients, .divisor = divisor};
    update(subject, DeviceKind::cpu, KernelSource::libtorch, expected, now);
    {
      const PlacedKernels kernels(true);
      update(subject, DeviceKind::cuda, KernelSource::vramfit, backwards, now);
    }
    {
      const PlacedKernels kernels;
      update(subject, DeviceKind::cuda, KernelSource::vramfit, forwards, now);
    }
    CAPTURE(step);
    // A number of 16 bits that lies between two may be rounded the other way.
    const double limit = subject.number == at::kFloat ? 1e-6 : 1e-4;
    const std::vector<at::Tensor> own = forwards.all(), again = backwards.all(), truth = expected.all();
    for (std::size_t i = 0; i < truth.size(); ++i) {
      CAPTURE(i);
      CHECK(at::equal(own[i], again[i]));
      CHECK(are_near(own[i], truth[i], limit));
    }
  }
  CHECK_FALSE(are_near(expected.parameters, start, 1e-2));
}

}  // namespace

TEST_CASE("Adafactor by kernels is that of CPU ranks, and the same whatever the order of threads") {
  std::vector<Subject> few, many;
  for (const at::ScalarType number : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const at::ScalarType gradient : {at::kFloat, at::kBFloat16, at::kHalf}) {
      few.push_back({unit_of_rank(), number, gradient});
      many.push_back({large_unit(), number, gradient});
    }
    few.push_back({unit_of_rows(), number, number});
  }
  for (const Subject& subject : cases_of_place(few, many)) {
    check(subject, {});
    check(subject, at::full({1}, 2.5F));
  }
}

TEST_CASE("Adafactor's kernels change and count nothing in a step whose gradients overflowed, and its sums are 0") {
  const Subject subject{unit_of_rank(), at::kFloat, at::kFloat};
  Tensors tensors = fresh(subject, kernel_device());
  const at::Tensor before = tensors.parameters.clone();
  at::Tensor gradients = random_tensor({subject.unit.trainable_elements}, 3);
  gradients[5] = INFINITY;
  const PlacedKernels kernels;
  update(subject, DeviceKind::cuda, KernelSource::vramfit, tensors,
         {.gradients = gradients, .found_inf = at::ones({1})});
  CHECK(at::equal(tensors.parameters, before));
  for (const at::Tensor& state : tensors.states) CHECK(state.count_nonzero().item<std::int64_t>() == 0);
  for (const at::Tensor& sums : tensors.sums) CHECK(sums.count_nonzero().item<std::int64_t>() == 0);
}

}  // namespace vramfit::testing
