// What each own CUDA kernel takes on a GPU at a size of Llama-3.1-8B, beside LibTorch's functions for the same: a line
// of JSON for each. `bytes` is what is read and written in principle, each number once.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>

#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/numbers/median.h"
#include "executor/calibrate/one_op_torch.h"
#include "executor/calibrate/stopwatch_torch.h"
#include "executor/kernels/own_kernels.h"
#include "executor/kernels/own_kernels_torch.h"
#include "executor/ops/quantized_torch.h"
#include "executor/ops/random_mask_torch.h"
#include "executor/ops/scaled_numbers_torch.h"
#include "executor/optimizers/optimizers.h"
#include "executor/training/scaled_masters_torch.h"
#include "job/optimizers/optimizers.h"
#include "program/optimizers/block_states.h"

namespace vramfit {
namespace {

constexpr std::int64_t kTokensOfBatch = 4096, kHidden = 4096, kInner = 14336, kWords = 128'256, kHeads = 32,
                       kHeadDim = 128, kElements = std::int64_t{1} << 26;
const at::Device kCard{at::kCUDA, 0};

at::TensorOptions on_card(at::ScalarType type) { return at::device(kCard).dtype(type); }

/// The median of several calls after some that don't count. What the card's cache holds is overwritten before each.
double seconds_of(const std::function<void()>& call) {
  static const at::Tensor kOtherwise = at::empty({std::int64_t{1} << 28}, on_card(at::kByte));
  constexpr int kWarmUps = 5, kCounted = 20;
  const Stopwatch watch(kCard);
  std::vector<double> seconds;
  for (int i = 0; i < kWarmUps + kCounted; ++i) {
    kOtherwise.zero_();
    const double once = watch.seconds_of_calls(call, 1);
    if (i >= kWarmUps) seconds.push_back(once);
  }
  return median(seconds);
}

struct Timing {
  std::string kernel, size;
  std::int64_t bytes;
};

void print(const Timing& of, double own, double libtorch) {
  constexpr double kGiga = 1e9;
  const auto rate = [&](double seconds) { return static_cast<double>(of.bytes) / seconds / kGiga; };
  fmt::print(
      "{{\"kernel\": \"{}\", \"size\": \"{}\", \"bytes\": {}, \"own_seconds\": {:.4g}, \"own_gb_per_second\": {:.4g}, "
      "\"libtorch_seconds\": {:.4g}, \"libtorch_gb_per_second\": {:.4g}}}\n",
      of.kernel, of.size, of.bytes, own, rate(own), libtorch, rate(libtorch));
  std::fflush(stdout);
}

void time(const Timing& of, const std::function<void()>& own, const std::function<void()>& libtorch) {
  const double mine = seconds_of(own);
  print(of, mine, seconds_of(libtorch));
}

Device device() {
  const auto* const properties = at::cuda::getDeviceProperties(kCard.index());
  return {.kind = DeviceKind::cuda,
          .name = properties->name,
          .compute_capability = 10 * properties->major + properties->minor,
          .sm_count = properties->multiProcessorCount};
}

/// `forward` and `backward`: how many times `pass` they read and write; 0: not timed.
struct TimedOp {
  std::string name, size;
  OpSizes sizes;
  std::int64_t pass;  // bytes
  int forward, backward;
};

void time_op(const TimedOp& op) {
  const Precision precision = precision_named("bf16-pure");
  std::vector<std::pair<double, double>> seconds;  // forward and backward, of both
  for (const KernelSource kernels : {KernelSource::vramfit, KernelSource::libtorch}) {
    OneOp one(op.sizes, precision, device(), kCard, kernels);
    const double forward = seconds_of([&] { one.forward(); });
    seconds.emplace_back(forward, seconds_of([&] { one.backward(); }));
  }
  print({op.name, op.size, op.forward * op.pass}, seconds[0].first, seconds[1].first);
  print({op.name + ", backward", op.size, op.backward * op.pass}, seconds[0].second, seconds[1].second);
}

void time_ops() {
  constexpr std::int64_t kNumber = 2;  // bytes
  const BatchShape shape{1, kTokensOfBatch};
  const Value rstd{.name = "rstd", .shape = {kTokens}, .type = ValueType::fp32};
  const Value lse{.name = "lse", .shape = {kTokens}, .type = ValueType::fp32};
  time_op({.name = "gated activation (SwiGLU)",
           .size = fmt::format("{} x {} bf16", kTokensOfBatch, kInner),
           .sizes = {.kind = OpKind::glu, .shape = shape, .inputs = {kInner, kInner}, .outputs = {kInner}},
           .pass = kTokensOfBatch * kInner * kNumber,
           .forward = 3,
           .backward = 5});
  Attributes of_heads;
  of_heads.heads = kHeads;
  of_heads.head_dim = kHeadDim;
  time_op({.name = "rotary embedding",
           .size = fmt::format("{} x {} x {} bf16", kTokensOfBatch, kHeads, kHeadDim),
           .sizes = {.kind = OpKind::rope,
                     .attributes = of_heads,
                     .shape = shape,
                     .inputs = {kHeads * kHeadDim},
                     .outputs = {kHeads * kHeadDim},
                     .angles = kHeadDim / 2},
           .pass = kTokensOfBatch * kHeads * kHeadDim * kNumber,
           .forward = 2,
           .backward = 2});
  time_op({.name = "RMS norm",
           .size = fmt::format("{} x {} bf16", kTokensOfBatch, kHidden),
           .sizes = {.kind = OpKind::rms_norm,
                     .attributes = {.eps = 1e-5},
                     .shape = shape,
                     .inputs = {kHidden},
                     .outputs = {kHidden},
                     .parameters = {{kHidden}},
                     .statistics = rstd},
           .pass = kTokensOfBatch * kHidden * kNumber,
           .forward = 2,
           .backward = 3});
  time_op(
      {.name = "cross entropy",
       .size = fmt::format("{} x {} bf16", kTokensOfBatch, kWords),
       .sizes = {.kind = OpKind::cross_entropy, .shape = shape, .inputs = {kWords}, .statistics = lse, .is_loss = true},
       .pass = kTokensOfBatch * kWords * kNumber,
       .forward = 1,
       .backward = 2});
}

void time_addition_and_norm() {
  const at::Tensor x = at::randn({kTokensOfBatch, kHidden}, on_card(at::kBFloat16)), residual = at::randn_like(x);
  const at::Tensor y = at::empty_like(x), weight = at::ones({kHidden}, on_card(at::kBFloat16));
  const at::Tensor rstd = at::empty({kTokensOfBatch}, on_card(at::kFloat));
  constexpr double kEps = 1e-5;
  const cuda::NormRows rows{.x = x.mutable_data_ptr(),
                            .weight = weight.const_data_ptr(),
                            .number = cuda::Number::bf16,
                            .rows = kTokensOfBatch,
                            .columns = kHidden,
                            .eps = static_cast<float>(kEps),
                            .plus = 0,
                            .rstd = rstd.mutable_data_ptr<float>()};
  time(
      {"residual addition and RMS norm", fmt::format("{} x {} bf16", kTokensOfBatch, kHidden),
       4 * static_cast<std::int64_t>(x.nbytes())},
      [&] {
        check_launch(
            require_own_kernels().rms_norm(rows, residual.const_data_ptr(), y.mutable_data_ptr(), stream_of(x)));
      },
      [&] {
        x.add_(residual);
        at::_fused_rms_norm(x, {kHidden}, weight, kEps);
      });
}

void time_dropout() {
  const at::Tensor x = at::randn({kTokensOfBatch * kHidden}, on_card(at::kBFloat16));
  at::Tensor to = at::empty_like(x);
  constexpr std::int64_t kPart = std::int64_t{1} << 22;
  const at::Tensor words = at::empty({kPart}, on_card(at::kLong)), bits = at::empty_like(words);
  time(
      {"dropout", fmt::format("{} x {} bf16", kTokensOfBatch, kHidden), 2 * static_cast<std::int64_t>(x.nbytes())},
      [&] { mask_by_kernel(x, to, {.key = 7, .first = 0, .keep = 0.9}); },
      [&] {
        to.copy_(x);
        for (std::int64_t first = 0; first < to.numel(); first += kPart) {
          at::Tensor part = to.narrow(0, first, kPart);
          mask_by_calls(part, {.key = 7, .first = first, .keep = 0.9}, words, bits);
        }
      });
}

void time_dequantization(const char* format) {
  const QuantizedRows matrix{
      .format = *quantization_named(format), .capacity = kHidden, .rows = kHidden, .row_elements = kInner};
  const QuantizedParts parts = matrix.parts();
  const std::int64_t bytes = quantized_bytes(matrix.format, kHidden, kInner).n;
  const at::Tensor stored = at::randint(0, 120, {bytes}, on_card(at::kByte));
  // Numbers of 32 bits come first: scales, or those of scales and what is added to them.
  const std::int64_t numbers = parts.scale_scales > 0 ? parts.offset_begin + 4 : parts.codes_begin / 4 * 4;
  stored.narrow(0, 0, numbers).view(at::kFloat).fill_(0.01);
  at::Tensor into = at::empty({matrix.elements()}, on_card(at::kBFloat16));
  const at::Tensor scratch = at::empty({DequantizeScratch(matrix.format, kHidden, kInner).end}, on_card(at::kFloat));
  time(
      {fmt::format("{} made whole", format), fmt::format("{} x {} into bf16", kHidden, kInner),
       bytes + static_cast<std::int64_t>(into.nbytes())},
      [&] { dequantize_by_kernel(matrix, stored, into); }, [&] { dequantize_by_calls(matrix, stored, into, scratch); });
}

/// What memory gives: both columns are LibTorch's.
void time_copy() {
  for (const std::int64_t elements : {kTokensOfBatch * kHidden, kTokensOfBatch * kInner * 4}) {
    const at::Tensor from = at::randn({elements}, on_card(at::kBFloat16));
    at::Tensor to = at::empty_like(from);
    const auto copy = [&] { to.copy_(from); };
    time({"copy", fmt::format("{} elements in bf16", elements), 2 * static_cast<std::int64_t>(from.nbytes())}, copy,
         copy);
  }
}

void time_scaled_numbers() {
  const at::Tensor numbers = at::randn({kElements}, on_card(at::kFloat)), scale = at::ones({1}, on_card(at::kFloat));
  const at::Tensor halves = at::empty({kElements}, on_card(at::kHalf)),
                   into = at::empty({kElements}, on_card(at::kBFloat16)),
                   codes = at::randint(0, 120, {kElements}, on_card(at::kByte));
  const at::Tensor scratch = at::empty({ScaledScratch{.elements = kElements}.size()}, on_card(at::kFloat));
  const std::string size = fmt::format("{} elements", kElements);
  time(
      {"fp16 numbers with a scale rounded (fp32 read twice)", size, 10 * kElements},
      [&] { round_scaled_by_kernel(numbers, halves, scale); },
      [&] {
        round_scaled_by_calls(numbers, {halves, scale}, scratch);
      });
  time(
      {"fp16 numbers with a scale read into bf16", size, 4 * kElements},
      [&] { scaled_numbers_by_kernel(halves, scale, into); },
      [&] {
        scaled_numbers({halves, scale}, into);
      });
  time(
      {"e4m3 numbers with a scale read into bf16", size, 3 * kElements},
      [&] { scaled_numbers_by_kernel(codes, scale, into); },
      [&] {
        scaled_numbers({codes.view(at::kFloat8_e4m3fn), scale}, into);
      });
}

class Updated {
 public:
  Updated(std::string_view optimizer, at::ScalarType state)
      : optimizer_(optimizer),
        parameters_(at::randn({kElements}, on_card(at::kBFloat16))),
        gradients_(at::randn({kElements}, on_card(at::kBFloat16))),
        options_(complete_options({}, optimizer)) {
    const Optimizer& row = optimizer_named(optimizer);
    for (const OptimizerState& one : row.states) {
      const bool is_count = one.holds == OptimizerState::Holds::updates;
      const at::ScalarType own = one.dtype == Dtype::u8 ? at::kByte : one.dtype == Dtype::f16 ? at::kHalf : at::kFloat;
      const std::int64_t numbers = is_by_parameter(one) ? 1 : numbers_of(one, kElements);
      states_.push_back(at::zeros({numbers}, on_card(one.dtype || is_count ? own : state)));
      bytes_ += 2 * static_cast<std::int64_t>(states_.back().nbytes());
    }
    bytes_ += 3 * static_cast<std::int64_t>(parameters_.nbytes());
    if (row.rounds_randomly) stretches_ = {{.offset = 0, .elements = kElements, .first = 0, .key = 7}};
  }

  void update(KernelSource kernels) {
    const UnitUpdate update{.elements = kElements,
                            .storage = Dtype::bf16,
                            .gradient = Dtype::bf16,
                            .state = states_.front().scalar_type() == at::kFloat ? Dtype::f32 : Dtype::bf16,
                            .device = DeviceKind::cuda,
                            .longest_row = kElements / kHidden,
                            .kernels = kernels};
    const auto scratch_of = optimizer_named(optimizer_).scratch;
    const std::int64_t numbers = scratch_of == nullptr ? 0 : scratch_of(update);
    at::Tensor scratch = at::empty({numbers}, on_card(at::kFloat));
    OptimizerCall call{.parameters = parameters_,
                       .gradients = gradients_,
                       .states = states_,
                       .gradient_divisor = nullptr,
                       .found_inf = nullptr,
                       .options = options_,
                       .scratch = numbers > 0 ? &scratch : nullptr,
                       .stretches = stretches_,
                       .rows = rows_};
    optimizer_step(optimizer_, DeviceKind::cuda, kernels)(call);
  }

  std::int64_t bytes() const { return bytes_; }

 private:
  std::string_view optimizer_;
  at::Tensor parameters_, gradients_;
  OptimizerOptions options_;
  std::vector<at::Tensor> states_;
  std::vector<RandomStretch> stretches_;
  std::vector<ParameterRows> rows_{
      {.offset = 0, .rows = kHidden, .columns = kElements / kHidden, .held_rows = kHidden, .all_rows = kHidden}};
  std::int64_t bytes_ = 0;
};

void time_update(const std::string& optimizer, at::ScalarType state, const std::string& states) {
  Updated unit(optimizer, state);
  time(
      {fmt::format("{}, {}", optimizer, states), fmt::format("{} parameters in bf16", kElements), unit.bytes()},
      [&] { unit.update(KernelSource::vramfit); }, [&] { unit.update(KernelSource::libtorch); });
}

void time_all() {
  const Device card = device();
  fmt::print("{{\"gpu\": \"{}\", \"multiprocessors\": {}}}\n", card.name, card.sm_count);
  time_copy();
  time_update("adamw-8bit", at::kBFloat16, "states of 8 bits");
  time_update("adamw-4bit", at::kBFloat16, "states of 4 bits");
  time_update("adamw-fp8-blocks", at::kBFloat16, "states in FP8, in blocks");
  time_update("adamw-fp8", at::kBFloat16, "states in FP8 and fp16");
  time_update("adamw", at::kFloat, "states in fp32");
  time_update("adamw-stochastic", at::kBFloat16, "states in bf16");
  time_update("adamw-stochastic", at::kFloat, "states in fp32");
  time_scaled_numbers();
  for (const char* format : {"nf4", "nf4-double", "int8", "fp8"}) time_dequantization(format);
  time_dropout();
  time_addition_and_norm();
  time_ops();
}

}  // namespace
}  // namespace vramfit

int main() {
  constexpr int kSkipped = 77;
  if (c10::cuda::device_count() == 0 || vramfit::own_kernels() == nullptr) {
    fmt::print(stderr, "skipped: there is no GPU here, or no library of kernels\n");
    return kSkipped;
  }
  vramfit::time_all();
  return 0;
}
