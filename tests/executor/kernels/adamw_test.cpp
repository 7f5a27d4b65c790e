// Updates by own kernels beside the loops of CPU ranks, to which they are equal to the bit, and LibTorch's functions.
#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "executor/optimizers/optimizers.h"
#include "job/optimizers/optimizers.h"
#include "program/optimizers/block_states.h"
#include "program/optimizers/optimizers.h"
#include "tests/executor/kernels/kernel_place_torch.h"
#include "tests/executor/ops/random_tensors_torch.h"

namespace vramfit::testing {

namespace {

/// Of one optimizer.
struct Subject {
  std::string_view optimizer;
  at::ScalarType number, state, gradient;
  std::int64_t elements;
};

/// By whom it is updated.
struct Update {
  DeviceKind functions;
  KernelSource kernels;
};
constexpr Update kHost{DeviceKind::cpu, KernelSource::libtorch}, kOwn{DeviceKind::cuda, KernelSource::vramfit},
    kFallback{DeviceKind::cuda, KernelSource::libtorch};

struct Tensors {
  at::Tensor parameters;
  std::vector<at::Tensor> states;
};

/// By their bytes, but that a NaN equals one of other bits, as a GPU's.
bool are_equal(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_floating_point()) return at::equal(a, b);
  const auto bytes = [](const at::Tensor& t) {
    return at::where(at::isnan(t), at::full({}, 1.5, t.scalar_type()), t).view(at::kByte);
  };
  return at::equal(at::isnan(a), at::isnan(b)) && at::equal(bytes(a), bytes(b));
}

std::int64_t block_of(std::string_view optimizer) { return optimizer == "adamw-4bit" ? 128 : 256; }
bool has_codes(std::string_view optimizer) { return optimizer.ends_with("bit") || optimizer.ends_with("blocks"); }
bool has_scales(std::string_view optimizer) { return optimizer == "adamw-fp8"; }

/// Those of codes without sign: of averages in FP8 a NaN is one, whatever its sign.
at::Tensor comparable(const Subject& subject, const Tensors& tensors, std::size_t state) {
  const at::Tensor values = tensors.states[state].cpu();
  return has_scales(subject.optimizer) && state == 0 ? values.view(at::kFloat8_e4m3fn).to(at::kFloat) : values;
}

/// What the first of them has that the second has not; empty if they are equal.
std::string difference(const Subject& subject, const Tensors& got, const Tensors& expected) {
  if (!are_equal(got.parameters.cpu(), expected.parameters)) return "parameters";
  for (std::size_t i = 0; i < expected.states.size(); ++i) {
    if (!are_equal(comparable(subject, got, i), comparable(subject, expected, i))) return fmt::format("state {}", i);
  }
  return "";
}

/// Zeros as states, as an update finds them first.
Tensors fresh(const Subject& subject, at::Device device) {
  const std::int64_t n = subject.elements;
  Tensors tensors{random_tensor({n}, 1).to(subject.number), {}};
  if (has_scales(subject.optimizer)) {
    tensors.states = {at::zeros({n}, at::kByte), at::zeros({n}, at::kHalf), at::zeros({2}), at::zeros({2})};
  } else if (has_codes(subject.optimizer)) {
    const std::int64_t block = block_of(subject.optimizer), codes = block == 256 ? n : n / 2;
    for (const std::int64_t bytes : {codes, codes}) tensors.states.push_back(at::zeros({bytes}, at::kByte));
    for (const std::int64_t scales : {n / block, n / block}) tensors.states.push_back(at::zeros({scales}));
  } else {
    for (int moment = 0; moment < 2; ++moment) tensors.states.push_back(at::zeros({n}, subject.state));
  }
  tensors.states.push_back(at::zeros({1}));
  tensors.parameters = on_device(tensors.parameters, device);
  for (at::Tensor& state : tensors.states) state = on_device(state, device);
  return tensors;
}

/// Of sizes over many orders of magnitude, with blocks of zeros, and with what isn't a number in some.
at::Tensor gradients_of(const Subject& subject, std::uint64_t seed) {
  const std::int64_t n = subject.elements;
  at::Tensor values = random_tensor({n}, seed) * at::exp(random_tensor({n}, seed + 1) * 4);
  values.narrow(0, 0, std::min<std::int64_t>(n, 512)).zero_();
  if (n > 4096) {
    values[3000] = INFINITY;
    values[3500] = NAN;
    values[3900] = std::numeric_limits<float>::denorm_min();
  }
  return values.to(subject.gradient);
}

OptimizerOptions options_of(std::string_view optimizer) {
  return complete_options(
      {.learning_rate = 0.05, .values = {{"beta1", 0.7}, {"beta2", 0.9}, {"eps", 1e-6}, {"weight-decay", 0.3}}},
      optimizer);
}

/// On the host; undefined: none.
struct Step {
  at::Tensor gradients = {}, divisor = {}, found_inf = {};
};

Dtype dtype_of(at::ScalarType type) {
  if (type == at::kHalf) return Dtype::f16;
  return type == at::kFloat ? Dtype::f32 : Dtype::bf16;
}

std::int64_t scratch_of(const Subject& subject, const Update& by) {
  const Optimizer& row = optimizer_named(subject.optimizer);
  return row.scratch == nullptr ? 0
                                : row.scratch({.elements = subject.elements,
                                               .storage = dtype_of(subject.number),
                                               .gradient = dtype_of(subject.gradient),
                                               .state = dtype_of(subject.state),
                                               .device = by.functions,
                                               .parameters = 2,
                                               .longest_row = subject.elements,
                                               .kernels = by.kernels});
}

void update(const Subject& subject, const Update& by, Tensors& tensors, const Step& step) {
  const OptimizerOptions options = options_of(subject.optimizer);
  const at::Device device = tensors.parameters.device();
  at::Tensor gradients = on_device(step.gradients.clone(), device);
  const at::Tensor divisor = on_device(step.divisor, device), found_inf = on_device(step.found_inf, device);
  // Two parameters with a gap of zeros between them, as in a unit.
  const std::int64_t half = subject.elements / 2 / 256 * 256;
  const std::vector<ParameterRows> rows{
      {.offset = 0, .rows = half - 10, .held_rows = half - 10, .all_rows = half - 10},
      {.offset = half, .rows = 7, .columns = (subject.elements - half) / 7, .held_rows = 7, .all_rows = 7}};
  const std::int64_t numbers = scratch_of(subject, by);
  at::Tensor scratch = on_device(at::full({numbers}, NAN), device);
  std::vector<RandomStretch> stretches;
  if (optimizer_named(subject.optimizer).rounds_randomly) {
    stretches = {{.offset = 0, .elements = half - 10, .first = 1000, .key = 5},
                 {.offset = half, .elements = subject.elements - half, .first = 0, .key = 9}};
  }
  OptimizerCall call{.parameters = tensors.parameters,
                     .gradients = gradients,
                     .states = tensors.states,
                     .gradient_divisor = divisor.defined() ? &divisor : nullptr,
                     .found_inf = found_inf.defined() ? &found_inf : nullptr,
                     .options = options,
                     .scratch = numbers > 0 ? &scratch : nullptr,
                     .stretches = stretches,
                     .rows = rows};
  optimizer_step(subject.optimizer, by.functions, by.kernels)(call);
}

/// With gradients of the dtype.
std::vector<Subject> subjects(at::ScalarType gradient) {
  std::vector<Subject> all;
  for (const at::ScalarType number : {at::kFloat, at::kBFloat16, at::kHalf}) {
    all.push_back({"adamw-8bit", number, at::kByte, gradient, 256 * 37});
    all.push_back({"adamw-4bit", number, at::kByte, gradient, 128 * 53});
    all.push_back({"adamw-fp8-blocks", number, at::kByte, gradient, 256 * 37});
    all.push_back({"adamw-fp8", number, at::kByte, gradient, 5003});
    for (const at::ScalarType state : {at::kFloat, at::kBFloat16}) {
      if (number != state || number != gradient) all.push_back({"adamw", number, state, gradient, 4099});
    }
  }
  for (const at::ScalarType state : {at::kFloat, at::kBFloat16}) {
    all.push_back({"adamw-stochastic", at::kBFloat16, state, gradient, 5003});
  }
  return all;
}

std::vector<Subject> subjects() {
  std::vector<Subject> all;
  for (const at::ScalarType gradient : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const Subject& subject : subjects(gradient)) all.push_back(subject);
  }
  return all;
}

/// Of so many elements, and then of more than threads begin with.
std::vector<Subject> all_subjects() {
  std::vector<Subject> large = subjects();
  for (Subject& subject : large) subject.elements = has_codes(subject.optimizer) ? 256 * 40'003 : 10'000'019;
  return cases_of_place(subjects(), large);
}

void check(const Subject& subject, const Step& like, const at::Tensor& found_inf_of_second) {
  CAPTURE(subject.optimizer);
  CAPTURE(static_cast<int>(subject.number));
  CAPTURE(static_cast<int>(subject.state));
  CAPTURE(static_cast<int>(subject.gradient));
  CAPTURE(subject.elements);
  REQUIRE((optimizer_step(subject.optimizer, kOwn.functions, kOwn.kernels) !=
           optimizer_step(subject.optimizer, kFallback.functions, kFallback.kernels)));
  Tensors expected = fresh(subject, at::kCPU), forwards = fresh(subject, kernel_device()),
          backwards = fresh(subject, kernel_device());
  for (std::uint64_t step = 0; step < 3; ++step) {
    const Step now{gradients_of(subject, 10 * (step + 1)), like.divisor,
                   step == 1 && found_inf_of_second.defined() ? found_inf_of_second : like.found_inf};
    update(subject, kHost, expected, now);
    // Backwards first: what shared memory holds at first is from the step before, so that a thread notices what the
    // first one has not yet written.
    {
      const PlacedKernels kernels(true);
      update(subject, kOwn, backwards, now);
    }
    {
      const PlacedKernels kernels;
      update(subject, kOwn, forwards, now);
    }
    CAPTURE(step);
    CHECK(difference(subject, forwards, expected) == "");
    CHECK(difference(subject, backwards, expected) == "");
  }
  CHECK(expected.states.back().item<float>() == (found_inf_of_second.defined() ? 2 : 3));
}

}  // namespace

TEST_CASE("an update by a kernel changes parameters and states as CPU ranks do, to the bit") {
  for (const Subject& subject : all_subjects()) {
    check(subject, {}, {});
    check(subject, {.divisor = at::full({1}, 2.5F)}, {});
  }
}

TEST_CASE("a kernel changes and counts nothing in a step whose gradients overflowed") {
  for (const Subject& subject : subjects()) check(subject, {.found_inf = at::zeros({1})}, at::ones({1}));
}

TEST_CASE("an update by a kernel and one by LibTorch's functions differ by rounding alone") {
  for (Subject subject : all_subjects()) {
    subject.elements = round_up(subject.elements, kMaximaOf);  // of which calls find the largest at once
    CAPTURE(subject.optimizer);
    CAPTURE(static_cast<int>(subject.number));
    CAPTURE(static_cast<int>(subject.state));
    CAPTURE(subject.elements);
    Tensors own = fresh(subject, kernel_device()), calls = fresh(subject, kernel_device());
    const at::Tensor start = own.parameters.to(at::kDouble, false, true);
    for (std::uint64_t step = 0; step < 3; ++step) {
      const at::Tensor gradients = random_tensor({subject.elements}, step + 10).to(subject.gradient);
      const Step now{.gradients = gradients, .divisor = at::full({1}, 2.5F)};
      const PlacedKernels kernels;
      update(subject, kOwn, own, now);
      update(subject, kFallback, calls, now);
    }
    const at::Tensor by_calls = calls.parameters.to(at::kDouble), moved = by_calls - start;
    const double apart = (own.parameters.to(at::kDouble) - by_calls).norm().item<double>();
    CHECK(moved.norm().item<double>() > 0.05 * start.norm().item<double>());
    CHECK(apart < 0.1 * moved.norm().item<double>());
  }
}

TEST_CASE("elements between a unit's parameters stay as they are when parameters are rounded randomly") {
  const Subject subject{"adamw-stochastic", at::kBFloat16, at::kFloat, at::kBFloat16, 5003};
  const std::int64_t gap = subject.elements / 2 / 256 * 256 - 10;
  Tensors tensors = fresh(subject, kernel_device());
  const at::Tensor before = tensors.parameters.clone();
  const PlacedKernels kernels;
  update(subject, kOwn, tensors, {.gradients = gradients_of(subject, 10)});
  CHECK(at::equal(tensors.parameters.narrow(0, gap, 10), before.narrow(0, gap, 10)));
  CHECK_FALSE(at::equal(tensors.parameters.narrow(0, gap - 10, 10), before.narrow(0, gap - 10, 10)));
}

}  // namespace vramfit::testing
