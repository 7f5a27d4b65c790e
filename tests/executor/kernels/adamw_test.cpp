// Updates by the kernels' own source, run on CPUs, beside the loops of CPU ranks: equal to the bit.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "executor/optimizers/optimizers.h"
#include "job/optimizers/optimizers.h"
#include "tests/executor/kernels/emulated_kernels.h"
#include "tests/executor/ops/random_tensors_torch.h"

namespace vramfit::testing {

namespace {

/// Of one optimizer.
struct Subject {
  std::string_view optimizer;
  at::ScalarType number, state;
  std::int64_t elements;
};

struct Tensors {
  at::Tensor parameters;
  std::vector<at::Tensor> states;

  bool equals(const Tensors& other) const {
    // Bytes: NaN equals NaN, but in fp16, where a GPU's has other bits than LibTorch's.
    const auto bytes = [](const at::Tensor& t) {
      return (t.scalar_type() == at::kHalf ? at::where(at::isnan(t), at::full({}, 1.5, at::kHalf), t) : t)
          .view(at::kByte);
    };
    const auto same = [&](const at::Tensor& a, const at::Tensor& b) {
      return (a.scalar_type() != at::kHalf || at::equal(at::isnan(a), at::isnan(b))) && at::equal(bytes(a), bytes(b));
    };
    bool equal = same(parameters, other.parameters);
    for (std::size_t i = 0; i < states.size(); ++i) equal = equal && same(states[i], other.states[i]);
    return equal;
  }
};

std::int64_t block_of(std::string_view optimizer) { return optimizer == "adamw-8bit" ? 256 : 128; }
bool has_codes(std::string_view optimizer) { return optimizer.ends_with("bit"); }
bool has_scales(std::string_view optimizer) { return optimizer == "adamw-fp8"; }

/// Zeros as states, as an update finds them first.
Tensors fresh(const Subject& subject) {
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
  return values.to(subject.number);
}

OptimizerOptions options_of(std::string_view optimizer) {
  return complete_options(
      {.learning_rate = 0.05, .values = {{"beta1", 0.7}, {"beta2", 0.9}, {"eps", 1e-6}, {"weight-decay", 0.3}}},
      optimizer);
}

struct Step {
  std::uint64_t seed;
  const at::Tensor *divisor, *found_inf;
};

void update(const Subject& subject, OptimizerStep function, Tensors& tensors, const Step& step) {
  const OptimizerOptions options = options_of(subject.optimizer);
  at::Tensor gradients = gradients_of(subject, step.seed);
  // Two parameters with a gap of zeros between them, as in a unit.
  const std::int64_t half = subject.elements / 2 / 256 * 256;
  const std::vector<ParameterRows> rows{
      {.offset = 0, .rows = half - 10, .held_rows = half - 10, .all_rows = half - 10},
      {.offset = half, .rows = 7, .columns = (subject.elements - half) / 7, .held_rows = 7, .all_rows = 7}};
  at::Tensor scratch = at::full({8}, NAN);
  const std::vector<RandomStretch> stretches{
      {.offset = 0, .elements = half - 10, .first = 1000, .key = 5},
      {.offset = half, .elements = subject.elements - half, .first = 0, .key = 9}};
  OptimizerCall call{.parameters = tensors.parameters,
                     .gradients = gradients,
                     .states = tensors.states,
                     .gradient_divisor = step.divisor,
                     .found_inf = step.found_inf,
                     .options = options,
                     .scratch = has_scales(subject.optimizer) ? &scratch : nullptr,
                     .stretches = stretches,
                     .rows = rows};
  function(call);
}

std::vector<Subject> subjects() {
  std::vector<Subject> all;
  for (const at::ScalarType number : {at::kFloat, at::kBFloat16}) {
    all.push_back({"adamw-8bit", number, at::kByte, 256 * 37});
    all.push_back({"adamw-4bit", number, at::kByte, 128 * 53});
    all.push_back({"adamw-fp8", number, at::kByte, 5003});
    for (const at::ScalarType state : {at::kFloat, at::kBFloat16}) {
      if (number != state) all.push_back({"adamw", number, state, 4099});
    }
  }
  for (const at::ScalarType state : {at::kFloat, at::kBFloat16}) {
    all.push_back({"adamw-stochastic", at::kBFloat16, state, 5003});
  }
  return all;
}

void check(const Subject& subject, const Step& like, const at::Tensor* found_inf_of_second) {
  CAPTURE(subject.optimizer);
  CAPTURE(static_cast<int>(subject.number));
  CAPTURE(static_cast<int>(subject.state));
  const OptimizerStep cpu = optimizer_step(subject.optimizer, DeviceKind::cpu);
  const OptimizerStep own = optimizer_step(subject.optimizer, DeviceKind::cuda, KernelSource::vramfit);
  REQUIRE((own != optimizer_step(subject.optimizer, DeviceKind::cuda)));
  Tensors expected = fresh(subject), forwards = fresh(subject), backwards = fresh(subject);
  for (std::uint64_t step = 0; step < 3; ++step) {
    const Step now{10 * (step + 1), like.divisor, step == 1 ? found_inf_of_second : like.found_inf};
    update(subject, cpu, expected, now);
    // Backwards first: what shared memory holds at first is from the step before, so that a thread notices what the
    // first one has not yet written.
    {
      const EmulatedKernels kernels(true);
      update(subject, own, backwards, now);
    }
    {
      const EmulatedKernels kernels;
      update(subject, own, forwards, now);
    }
    CHECK(forwards.equals(expected));
    CHECK(backwards.equals(expected));
  }
  CHECK(expected.states.back().item<float>() == (found_inf_of_second == nullptr ? 3 : 2));
}

}  // namespace

TEST_CASE("an update by a kernel changes parameters and states as CPU ranks do, to the bit") {
  const at::Tensor divisor = at::full({1}, 2.5F);
  for (const Subject& subject : subjects()) {
    check(subject, {.seed = 0, .divisor = nullptr, .found_inf = nullptr}, nullptr);
    check(subject, {.seed = 0, .divisor = &divisor, .found_inf = nullptr}, nullptr);
  }
}

TEST_CASE("a kernel changes and counts nothing in a step whose gradients overflowed") {
  const at::Tensor none = at::zeros({1}), overflow = at::ones({1});
  for (const Subject& subject : subjects())
    check(subject, {.seed = 0, .divisor = nullptr, .found_inf = &none}, &overflow);
}

TEST_CASE("elements between a unit's parameters stay as they are when parameters are rounded randomly") {
  const Subject subject{"adamw-stochastic", at::kBFloat16, at::kFloat, 5003};
  const std::int64_t gap = subject.elements / 2 / 256 * 256 - 10;
  Tensors tensors = fresh(subject);
  const at::Tensor before = tensors.parameters.clone();
  const EmulatedKernels kernels;
  update(subject, optimizer_step(subject.optimizer, DeviceKind::cuda, KernelSource::vramfit), tensors,
         {10, nullptr, nullptr});
  CHECK(at::equal(tensors.parameters.narrow(0, gap, 10), before.narrow(0, gap, 10)));
  CHECK_FALSE(at::equal(tensors.parameters.narrow(0, gap - 10, 10), before.narrow(0, gap - 10, 10)));
}

}  // namespace vramfit::testing
