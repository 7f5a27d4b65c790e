// AdamW by LibTorch's calls: its numbers, and every tensor that the calls make.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "executor/optimizers/optimizers.h"
#include "job/optimizers/optimizers.h"
#include "program/optimizers/optimizers.h"
#include "tests/executor/ops/allocations_torch.h"
#include "tests/executor/ops/random_tensors_torch.h"
#include "tests/executor/ops/whole_unit.h"

namespace vramfit::testing {

namespace {

constexpr std::int64_t kRows = 12, kColumns = 40, kVector = 7, kBetween = 25;  // elements that nobody owns
constexpr std::int64_t kAll = kRows * kColumns + kBetween + kVector;

/// A matrix, and a vector that doesn't follow it at once.
Unit unit_of_two() { return whole_unit({{kRows, kColumns}, {kVector, 1}}, kBetween); }

struct Form {
  OptimizerImplementation form = OptimizerImplementation::foreach;
  DeviceKind device = DeviceKind::cpu;
  Dtype dtype = Dtype::f32;
  bool divides = false;
};

std::vector<Form> forms() {
  std::vector<Form> all;
  for (const auto form : {OptimizerImplementation::foreach, OptimizerImplementation::loop}) {
    for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda}) {
      for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
        for (const bool divides : {false, true}) all.push_back({form, device, dtype, divides});
      }
    }
  }
  return all;
}

UnitUpdate update_of(const Form& form) {
  return {.elements = kAll,
          .storage = form.dtype,
          .gradient = form.dtype,
          .state = form.dtype,
          .device = form.device,
          .parameters = 2,
          .longest_row = kColumns,
          .form = form.form,
          .divides = form.divides};
}

/// What of a flat tensor is a parameter's.
at::Tensor owned(const at::Tensor& flat) {
  std::vector<at::Tensor> parts;
  for (const ParameterRows& rows : rows_of(unit_of_two()))
    parts.push_back(flat.narrow(0, rows.offset, rows.rows * rows.columns));
  return at::cat(parts).to(at::kDouble);
}

const OptimizerOptions kOptions{.learning_rate = 0.05,
                                .values = {{"beta1", 0.7}, {"beta2", 0.9}, {"eps", 1e-6}, {"weight-decay", 0.3}}};

/// Parameters of a unit and what is kept for them.
class Updated {
 public:
  explicit Updated(const Form& form) : form_(form), type_(form.dtype == Dtype::bf16 ? at::kBFloat16 : at::kFloat) {
    parameters_ = random_tensor({kAll}, 1).to(type_);
    states_ = {at::zeros({kAll}, type_), at::zeros({kAll}, type_), at::zeros({1})};
    const std::int64_t numbers = optimizer_named("adamw").scratch(update_of(form));
    if (numbers > 0) scratch_ = at::full({numbers}, NAN);
  }

  at::Tensor gradients(std::uint64_t seed) const { return random_tensor({kAll}, seed).to(type_); }

  void step(at::Tensor gradients) {
    const OptimizerOptions options = complete_options(kOptions, "adamw");
    OptimizerCall call{.parameters = parameters_,
                       .gradients = gradients,
                       .states = states_,
                       .gradient_divisor = form_.divides ? &divisor_ : nullptr,
                       .found_inf = nullptr,
                       .options = options,
                       .scratch = scratch_.defined() ? &scratch_ : nullptr,
                       .rows = rows_};
    optimizer_step("adamw", form_.device, KernelSource::libtorch, form_.form)(call);
  }

  const at::Tensor& parameters() const { return parameters_; }
  const std::vector<at::Tensor>& states() const { return states_; }

 private:
  Form form_;
  at::ScalarType type_;
  at::Tensor parameters_, scratch_, divisor_ = at::full({1}, 2.5);
  std::vector<at::Tensor> states_;
  std::vector<ParameterRows> rows_ = rows_of(unit_of_two());
};

/// In double, as PyTorch's documentation writes it: parameters and both averages.
std::vector<at::Tensor> truth(const Form& form, std::uint64_t steps) {
  const at::ScalarType type = form.dtype == Dtype::bf16 ? at::kBFloat16 : at::kFloat;
  at::Tensor p = owned(random_tensor({kAll}, 1).to(type)), m = at::zeros_like(p), v = at::zeros_like(p);
  const auto at_step = [&](double beta, std::uint64_t step) { return 1 - std::pow(beta, static_cast<double>(step)); };
  for (std::uint64_t step = 1; step <= steps; ++step) {
    const at::Tensor g = owned(random_tensor({kAll}, step + 1).to(type)) / (form.divides ? 2.5 : 1);
    p.mul_(1 - 0.05 * 0.3);
    m.mul_(0.7).add_(g, 1 - 0.7);
    v.mul_(0.9).addcmul_(g, g, 1 - 0.9);
    p.addcdiv_(m / at_step(0.7, step), (v / at_step(0.9, step)).sqrt() + 1e-6, -0.05);
  }
  return {p, m, v};
}

}  // namespace

TEST_CASE("AdamW by LibTorch's calls does what its algorithm says and leaves alone what no parameter has") {
  for (const Form& form : forms()) {
    CAPTURE(static_cast<int>(form.form));
    CAPTURE(static_cast<int>(form.device));
    CAPTURE(static_cast<int>(form.dtype));
    CAPTURE(form.divides);
    Updated own(form);
    const at::Tensor before = own.parameters().clone();
    for (std::uint64_t step = 1; step <= 3; ++step) own.step(own.gradients(step + 1));
    const std::vector<at::Tensor> true_values = truth(form, 3);
    const double limit = form.dtype == Dtype::f32 ? 1e-6 : 2e-2;
    const std::vector<at::Tensor> values{own.parameters(), own.states()[0], own.states()[1]};
    for (std::size_t i = 0; i < values.size(); ++i) {
      CHECK((owned(values[i]) - true_values[i]).norm().item<double>() <= limit * true_values[i].norm().item<double>());
    }
    CHECK(own.states()[2].item<double>() == 3);
    const auto between = [](const at::Tensor& flat) { return flat.narrow(0, kRows * kColumns, kBetween); };
    CHECK(at::equal(between(own.parameters()), between(before)));
  }
}

TEST_CASE("on CPU the calls make the tensors that the row lists, in its order") {
  for (const Form& form : forms()) {
    if (form.device != DeviceKind::cpu) continue;
    CAPTURE(static_cast<int>(form.form));
    CAPTURE(static_cast<int>(form.dtype));
    CAPTURE(form.divides);
    Updated own(form);
    std::vector<std::int64_t> listed;
    for (const UpdateTemporary& made : optimizer_named("adamw").temporaries(unit_of_two(), update_of(form))) {
      if (made.bytes.n > 0) listed.push_back(made.bytes.n);
    }
    const at::Tensor gradients = own.gradients(5);
    CHECK(allocations_of([&] { own.step(gradients); }) == listed);
  }
}

TEST_CASE("a GPU's update by calls makes as much as the largest list or as three parameters") {
  const Form lists{.device = DeviceKind::cuda}, each{OptimizerImplementation::loop, DeviceKind::cuda};
  const auto made = [](const Form& form) {
    std::vector<std::int64_t> bytes;
    for (const UpdateTemporary& t : optimizer_named("adamw").temporaries(unit_of_two(), update_of(form))) {
      if (t.bytes.n > 0) bytes.push_back(t.bytes.n);
    }
    return bytes;
  };
  constexpr std::int64_t kMatrix = 4 * kRows * kColumns, kShort = 4 * kVector;
  CHECK(made(lists) == std::vector<std::int64_t>{kMatrix, kShort});
  CHECK(made(each) == std::vector<std::int64_t>{kMatrix, kMatrix, kShort, kShort});
}

}  // namespace vramfit::testing
