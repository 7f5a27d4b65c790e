// adamw-fp8: a scale for each tensor, as its largest average says. How near averages are to their definition is
// compared in tests/oracle/block_states.py.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "executor/optimizers/optimizers.h"
#include "executor/optimizers/tensor_scales.h"
#include "job/optimizers/optimizers.h"
#include "program/optimizers/block_states.h"
#include "program/optimizers/optimizers.h"
#include "tests/executor/ops/op_check_torch.h"

namespace vramfit::testing {

namespace {

constexpr std::array kDevicesOfFp8{DeviceKind::cpu, DeviceKind::cuda};

/// Vectors of these lengths, each beginning at a multiple of the block, and what an update needs.
class ScaledVectors {
 public:
  explicit ScaledVectors(const std::vector<std::int64_t>& lengths) {
    std::int64_t offset = 0;
    for (const std::int64_t length : lengths) {
      rows_.push_back({.offset = offset, .rows = length, .columns = 1, .held_rows = length, .all_rows = length});
      offset += ceil_div(length, kMaximaOf) * kMaximaOf;
    }
    parameters = at::zeros({offset});
    for (std::size_t i = 0; i < lengths.size(); ++i) of(parameters, i).fill_(1);
    states = {at::zeros({offset}, at::kByte), at::zeros({offset}, at::kHalf), at::zeros({number()}),
              at::zeros({number()}), at::zeros({1})};
    scratch_ = at::full({BlockScratch{.elements = offset, .block = kMaximaOf}.size()}, NAN);
  }

  void update(DeviceKind device, at::Tensor gradients) {
    static const OptimizerOptions kOptions = complete_options({.learning_rate = 0.01, .values = {}}, "adamw-fp8");
    OptimizerCall call{.parameters = parameters,
                       .gradients = gradients,
                       .states = states,
                       .gradient_divisor = nullptr,
                       .found_inf = nullptr,
                       .options = kOptions,
                       .scratch = &scratch_,
                       .rows = rows_};
    optimizer_step("adamw-fp8", device)(call);
  }

  at::Tensor of(const at::Tensor& flat, std::size_t tensor) const {
    return flat.narrow(0, rows_[tensor].offset, rows_[tensor].rows);
  }
  at::Tensor first(std::size_t tensor) const { return of(states[0].view(at::kFloat8_e4m3fn), tensor).to(at::kFloat); }
  at::Tensor second(std::size_t tensor) const { return of(states[1], tensor).to(at::kFloat); }
  double scale(std::size_t moment, std::size_t tensor) const {
    return states[2 + moment][static_cast<std::int64_t>(tensor)].item<double>();
  }

  at::Tensor parameters;
  std::vector<at::Tensor> states;

 private:
  std::int64_t number() const { return static_cast<std::int64_t>(rows_.size()); }

  std::vector<ParameterRows> rows_;
  at::Tensor scratch_;
};

}  // namespace

TEST_CASE("a scale is the least power of two that brings the largest number into the format") {
  constexpr float kLeast = std::numeric_limits<float>::min(), kMost = std::numeric_limits<float>::max();
  for (const auto& [format, largest] : {std::pair(kE4m3Format, 448.0F), std::pair(kF16Format, 65504.0F)}) {
    CAPTURE(largest);
    CHECK(scale_of(largest, format) == 1);
    CHECK(scale_of(std::nextafter(largest, kMost), format) == 2);
    CHECK(scale_of(std::nextafter(largest / 2, 0.0F), format) == 0.5F);
    for (const float small : {0.0F, 1e-45F, kLeast * largest}) CHECK(scale_of(small, format) == kLeast);
    CHECK(scale_of(std::nextafter(kLeast * largest, 1.0F), format) == 2 * kLeast);
    CHECK(kMost / scale_of(kMost, format) <= largest);
    // What isn't a number, whatever its bits, is no reason for a scale that isn't one.
    for (const std::int32_t bits : {0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF}) {
      const float scale = scale_of(std::bit_cast<float>(bits), format);
      CHECK(std::isfinite(scale));
    }
  }
}

TEST_CASE("each tensor has scales of its own, and its averages are stored divided by them") {
  for (const DeviceKind device : kDevicesOfFp8) {
    CAPTURE(static_cast<int>(device));
    ScaledVectors own({300, 5, 1});
    at::Tensor gradients = at::zeros_like(own.parameters);
    // First averages are a tenth of these, second ones a thousandth of their squares: 1e7 and 1e-6 of the other's.
    own.of(gradients, 0).fill_(1e7);
    own.of(gradients, 0)[7] = -1.0;
    own.of(gradients, 1).fill_(1e-6);
    own.update(device, gradients);
    for (const std::size_t tensor : {0, 1}) {
      CAPTURE(tensor);
      const double g = tensor == 0 ? 1e7 : 1e-6;
      const double scales[] = {std::exp2(std::ceil(std::log2(0.1 * g / 448))),
                               std::exp2(std::ceil(std::log2(0.001 * g * g / 65504)))};
      CHECK(own.scale(0, tensor) == scales[0]);
      CHECK(own.scale(1, tensor) == scales[1]);
      CHECK(own.first(tensor)[0].item<double>() == doctest::Approx(0.1 * g / scales[0]).epsilon(1.0 / 16));
      CHECK(own.second(tensor)[0].item<double>() == doctest::Approx(0.001 * g * g / scales[1]).epsilon(1.0 / 2048));
    }
    // Small beside its tensor's largest: the first average is lost, the second, which divides, isn't.
    CHECK(own.first(0)[7].item<double>() == 0);
    CHECK(own.second(0)[7].item<float>() == kLeastF16);
    // Without gradients there is nothing.
    CHECK(own.scale(0, 2) == std::numeric_limits<float>::min());
    CHECK(own.first(2).count_nonzero().item<std::int64_t>() == 0);
    CHECK(own.second(2).count_nonzero().item<std::int64_t>() == 0);
    CHECK((own.of(own.parameters, 2) == at::full({1}, 1 - 0.01F * 0.01F)).all().item<bool>());
  }
}

TEST_CASE("what isn't a number stays in its element and its tensor") {
  for (const DeviceKind device : kDevicesOfFp8) {
    CAPTURE(static_cast<int>(device));
    for (const float bad : {INFINITY, NAN, std::bit_cast<float>(0x7FFFFFFF)}) {
      ScaledVectors own({300, 40}), clean({300, 40});
      at::Tensor gradients = random_tensor({own.parameters.numel()}, 3);
      clean.update(device, gradients.clone());
      own.of(gradients, 0)[11] = bad;
      own.update(device, gradients);
      at::Tensor wrong = own.of(own.parameters, 0).isfinite().logical_not();
      CHECK(wrong[11].item<bool>());
      CHECK(wrong.count_nonzero().item<std::int64_t>() == 1);
      CHECK(std::isfinite(own.scale(0, 0)));
      CHECK(at::equal(own.of(own.parameters, 1), clean.of(clean.parameters, 1)));
      CHECK(at::equal(own.first(1), clean.first(1)));
      CHECK(own.scale(1, 1) == clean.scale(1, 1));
    }
  }
}

TEST_CASE("chunks of a long tensor share its scales") {
  const std::int64_t many = kBlockStatesChunk + 5000;
  ScaledVectors loops({700, many, 300}), calls({700, many, 300});
  for (std::uint64_t step = 0; step < 3; ++step) {
    at::Tensor gradients = at::zeros_like(loops.parameters);
    for (const std::size_t tensor : {0, 1, 2}) {
      at::Tensor own = loops.of(gradients, tensor);
      own.copy_(random_tensor({own.numel()}, 10 * step + tensor));
    }
    loops.of(gradients, 1)[step == 0 ? 3 : many - 1] = 1000 * static_cast<double>(step + 1);  // its largest
    loops.update(DeviceKind::cpu, gradients.clone());
    calls.update(DeviceKind::cuda, gradients);
    CHECK(at::equal(loops.states[2], calls.states[2]));
    CHECK(at::equal(loops.states[3], calls.states[3]));
    CHECK((loops.parameters - calls.parameters).abs().max().item<double>() < 1e-4);
    // The calls round elsewhere, so that a number between two codes may become the other one.
    const auto differ = [&](std::size_t state) {
      return (loops.states[state] != calls.states[state]).count_nonzero().item<std::int64_t>();
    };
    CHECK(differ(0) < many / 1000);
    CHECK(differ(1) < many / 100);
  }
}

}  // namespace vramfit::testing
