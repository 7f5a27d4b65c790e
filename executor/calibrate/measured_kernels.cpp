#include "executor/calibrate/measured_kernels_torch.h"

#include <ATen/ops/clamp.h>
#include <ATen/ops/mul.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <span>

#include "executor/calibrate/cudnn_attention_torch.h"
#include "executor/calibrate/one_op_torch.h"
#include "executor/calibrate/stopwatch_torch.h"
#include "executor/optimizers/optimizers.h"
#include "executor/training/tensor_torch.h"
#include "job/optimizers/optimizers.h"
#include "program/optimizers/optimizers.h"
#include "program/pytorch/calls/kernels.h"

namespace vramfit {

namespace {

struct Product {
  std::int64_t tokens, outputs, inputs;
};
/// Of models from 1 B to 70 B parameters: square ones, the wide and the narrow ones of a block, few and many tokens.
constexpr std::array kCudaProducts{Product{2048, 2048, 2048},  Product{4096, 4096, 4096}, Product{8192, 14336, 4096},
                                   Product{8192, 4096, 14336}, Product{8192, 1024, 4096}, Product{8192, 8192, 8192}};
/// Of models that a CPU trains, with a millisecond and more each.
constexpr std::array kCpuProducts{Product{256, 512, 512}, Product{512, 1536, 576}, Product{1024, 768, 768},
                                  Product{512, 576, 1536}};

struct Heads {
  std::int64_t sequence, count, dim;
};
constexpr std::array kCudaHeads{Heads{512, 32, 64},  Heads{2048, 32, 64},  Heads{8192, 32, 64},
                                Heads{512, 32, 128}, Heads{2048, 32, 128}, Heads{8192, 32, 128}};
constexpr std::array kCpuHeads{Heads{128, 4, 64},  Heads{256, 4, 64},  Heads{512, 4, 64},
                               Heads{128, 4, 128}, Heads{256, 4, 128}, Heads{512, 4, 128}};

/// Rows and numbers in each of what is bound by memory: far larger than any cache.
constexpr Product kCudaRows{16384, 8192, 8192}, kCpuRows{2048, 4096, 4096};
constexpr std::int64_t kCudaUpdate = std::int64_t{1} << 27, kCpuUpdate = std::int64_t{1} << 23;
/// For an optimizer that works in host memory.
constexpr std::int64_t kHostUpdate = std::int64_t{1} << 26;
constexpr std::array kCopies{std::int64_t{1} << 26, std::int64_t{1} << 28};
/// Bytes of the whole data. The first is nearly all latency.
constexpr std::array kCollectives{std::int64_t{1} << 12, std::int64_t{1} << 20, std::int64_t{1} << 24};
constexpr std::int64_t kLargeCollective = std::int64_t{1} << 28;  // on CUDA

/// Measures one thing after the other, each with its share of the time.
class Measuring {
 public:
  explicit Measuring(const MeasuringPlace& in) : in_(in), watch_(in.place) {}

  Measurements measured() {
    plan();
    const auto begin = std::chrono::steady_clock::now();
    found_.device = in_.device.name;
    found_.ranks = in_.groups.world().size();
    for (std::size_t i = 0; i < todo_.size(); ++i) {
      const double used = seconds_since(begin);
      share_ = std::max(0.0, in_.seconds - used) / static_cast<double>(todo_.size() - i);
      in_.groups.world().barrier();  // so that all ranks use the machine alike
      todo_[i]();
    }
    found_.seconds = seconds_since(begin);
    return std::move(found_);
  }

 private:
  bool is_cuda() const { return in_.place.is_cuda(); }

  void plan() {
    todo_.emplace_back([this] { measure_launches(); });
    const bool has_bf16 = !is_cuda() || in_.device.compute_capability >= 80;
    for (const Dtype dtype : {Dtype::f32, has_bf16 ? Dtype::bf16 : Dtype::f16}) {
      for (const Product& product : is_cuda() ? std::span<const Product>(kCudaProducts) : kCpuProducts) {
        todo_.emplace_back([this, product, dtype] { measure_product(product, dtype); });
      }
    }
    for (const Heads& heads : is_cuda() ? std::span<const Heads>(kCudaHeads) : kCpuHeads) {
      todo_.emplace_back([this, heads] { measure_attention(heads); });
    }
    if (is_cuda() && eager::widest_cudnn_attention(in_.device) > 0) {
      for (const Heads& heads : kCudaHeads) todo_.emplace_back([this, heads] { measure_cudnn_attention(heads); });
    }
    plan_memory_bound();
    for (const std::int64_t bytes : kCollectives) plan_collectives(bytes);
    if (is_cuda()) plan_collectives(kLargeCollective);
  }

  void plan_memory_bound() {
    const Product rows = is_cuda() ? kCudaRows : kCpuRows;
    todo_.emplace_back([this, rows] { measure_norm(rows); });
    todo_.emplace_back([this, rows] { measure_glu(rows); });
    todo_.emplace_back([this, rows] { measure_add(rows); });
    todo_.emplace_back([this] { measure_update(); });
    if (!is_cuda()) return;
    todo_.emplace_back([this, rows] { measure_fp8_cast(rows); });
    for (const std::int64_t bytes : kCopies) todo_.emplace_back([this, bytes] { measure_copies(bytes); });
    todo_.emplace_back([this] { measure_host_update(); });
  }

  void plan_collectives(std::int64_t bytes) {
    if (in_.groups.world().size() == 1) return;
    using enum program::Collective;
    for (const program::Collective collective : {all_gather, reduce_scatter, all_reduce}) {
      todo_.emplace_back([this, collective, bytes] { measure_collective(collective, Bytes{bytes}); });
    }
  }

  /// Under the precision whose compute dtype this is: 16 bits are those that training uses here.
  static Precision precision_of(Dtype dtype) {
    if (dtype == Dtype::f32) return precision_named("fp32");
    return precision_named(dtype == Dtype::bf16 ? "bf16-mixed" : "fp16-mixed");
  }

  void measure(const std::string& group, const OpSizes& sizes, Dtype dtype) {
    OneOp op(sizes, precision_of(dtype), in_.device, in_.place);
    found_.kernels.push_back(
        {.group = group, .work = op.work().forward, .seconds = watch_.seconds_of([&] { op.forward(); }, share_ / 3)});
    found_.kernels.push_back({.group = group + ", backward",
                              .work = op.work().backward,
                              .seconds = watch_.seconds_of([&] { op.backward(); }, 2 * share_ / 3)});
  }

  void measure_launches() {
    OneOp op({.kind = OpKind::add, .shape = {1, 1}, .inputs = {8, 8}, .outputs = {8}}, precision_of(Dtype::f32),
             in_.device, in_.place);
    found_.launch_seconds = watch_.host_seconds_of([&] { op.forward(); });
  }

  void measure_product(const Product& product, Dtype dtype) {
    measure(fmt::format("products, {}", dtype_name(dtype)),
            {.kind = OpKind::linear,
             .shape = {1, product.tokens},
             .inputs = {product.inputs},
             .outputs = {product.outputs},
             .parameters = {{product.outputs, product.inputs}}},
            dtype);
  }

  /// In the type that training computes in: fp32 on CPU ranks.
  Dtype usual_dtype() const {
    if (!is_cuda()) return Dtype::f32;
    return in_.device.compute_capability >= 80 ? Dtype::bf16 : Dtype::f16;
  }

  static OpSizes attention_sizes(const Heads& heads) {
    const std::int64_t width = heads.count * heads.dim;
    return {.kind = OpKind::attention,
            .attributes = {.heads = heads.count, .kv_heads = heads.count, .head_dim = heads.dim},
            .shape = {1, heads.sequence},
            .inputs = {width, width, width},
            .outputs = {width},
            .statistics = Value{
                .name = "lse", .shape = {Dim{heads.count, true, false}, Dim{1, false, true}}, .type = ValueType::fp32}};
  }

  void measure_attention(const Heads& heads) {
    measure(fmt::format("attention, heads of {}", heads.dim), attention_sizes(heads), usual_dtype());
  }

  /// The same work as the engine's attention.
  void measure_cudnn_attention(const Heads& heads) {
    const OpWork work = OneOp(attention_sizes(heads), precision_of(usual_dtype()), in_.device, in_.place).work();
    const auto add = [&](const char* way, Work::Unit unit, Work like, double seconds) {
      like.unit = unit;
      found_.kernels.push_back({fmt::format("cuDNN's attention, heads of {}{}", heads.dim, way), {like}, seconds});
    };
    try {
      CudnnAttention attention({heads.sequence, heads.count, heads.dim}, usual_dtype(), in_.place);
      const double forward = watch_.seconds_of([&] { attention.forward(); }, share_ / 3);
      const double backward = watch_.seconds_of([&] { attention.backward(); }, 2 * share_ / 3);
      add("", Work::Unit::cudnn_attention, work.forward.front(), forward);
      add(", backward", Work::Unit::cudnn_attention_backward, work.backward.front(), backward);
    } catch (const c10::Error&) {  // a PyTorch without it; the known figures stay
    }
  }

  void measure_norm(const Product& rows) {
    measure("norms",
            {.kind = OpKind::rms_norm,
             .attributes = {.eps = 1e-5},
             .shape = {1, rows.tokens},
             .inputs = {rows.inputs},
             .outputs = {rows.inputs},
             .parameters = {{rows.inputs}},
             .statistics = Value{.name = "rstd", .shape = {kTokens}, .type = ValueType::fp32}},
            usual_dtype());
  }

  void measure_glu(const Product& rows) {
    measure("activations",
            {.kind = OpKind::glu,
             .shape = {1, rows.tokens},
             .inputs = {rows.inputs, rows.inputs},
             .outputs = {rows.inputs}},
            usual_dtype());
  }

  /// Forward alone: in backward gradients pass through.
  void measure_add(const Product& rows) {
    OneOp op({.kind = OpKind::add,
              .shape = {1, rows.tokens},
              .inputs = {rows.inputs, rows.inputs},
              .outputs = {rows.inputs}},
             precision_of(usual_dtype()), in_.device, in_.place);
    found_.kernels.push_back(
        {.group = "sums", .work = op.work().forward, .seconds = watch_.seconds_of([&] { op.forward(); }, share_)});
  }

  /// By PyTorch's calls: to fp32, scaled, clamped, to FP8.
  void measure_fp8_cast(const Product& rows) {
    constexpr double kBytes = (2 + 4) + (4 + 4) + (4 + 4) + (4 + 1), kLargest = 448;
    const std::int64_t elements = rows.tokens * rows.inputs;
    const at::Tensor numbers = flat(elements, in_.place, Dtype::bf16), scale = flat(1, in_.place);
    at::Tensor wide = flat(elements, in_.place), scaled = flat(elements, in_.place),
               clamped = flat(elements, in_.place);
    at::Tensor narrow = flat(elements, in_.place, Dtype::f8_e4m3);
    const auto cast = [&] {
      wide.copy_(numbers);
      at::mul_out(scaled, wide, scale);
      at::clamp_out(clamped, scaled, -kLargest, kLargest);
      narrow.copy_(clamped);
    };
    found_.kernels.push_back(
        {.group = "casts to FP8",
         .work = {{.unit = Work::Unit::eager_cast, .launches = 4, .bytes = static_cast<double>(elements) * kBytes}},
         .seconds = watch_.seconds_of(cast, share_)});
  }

  at::Tensor flat(std::int64_t elements, at::Device place, Dtype dtype = Dtype::f32) const {
    return allocate_tensor({elements}, dtype, {place, Category::temporaries, "calibration"}).zero_();
  }

  /// Seconds of an AdamW update of fp32 numbers.
  double seconds_of_update(std::int64_t elements, at::Device place) const {
    at::Tensor parameters = flat(elements, place), gradients = flat(elements, place);
    const OptimizerOptions options = complete_options({}, "adamw");
    OptimizerCall call{.parameters = parameters,
                       .gradients = gradients,
                       .states = {flat(elements, place), flat(elements, place), flat(1, place)},
                       .gradient_divisor = nullptr,
                       .found_inf = nullptr,
                       .options = options};
    const OptimizerStep step = optimizer_step("adamw", place.is_cuda() ? DeviceKind::cuda : DeviceKind::cpu);
    return Stopwatch(place).seconds_of([&] { step(call); }, share_);
  }

  static Work work_of_update(std::int64_t elements, DeviceKind device) {
    return optimizer_named("adamw").work({.elements = elements, .device = device});
  }

  void measure_update() {
    const std::int64_t elements = is_cuda() ? kCudaUpdate : kCpuUpdate;
    found_.kernels.push_back({.group = "AdamW updates",
                              .work = {work_of_update(elements, in_.device.kind)},
                              .seconds = seconds_of_update(elements, in_.place)});
  }

  void measure_host_update() {
    found_.updates_on_host.push_back({.group = "AdamW updates on the host",
                                      .bytes = work_of_update(kHostUpdate, DeviceKind::cpu).bytes,
                                      .seconds = seconds_of_update(kHostUpdate, at::Device(at::kCPU))});
  }

  void measure_copies(std::int64_t bytes) {
    const std::int64_t elements = bytes / dtype_bytes(Dtype::f32).n;
    at::Tensor on_card = flat(elements, in_.place);
    at::Tensor on_host = allocate_tensor({elements}, Dtype::f32,
                                         {in_.place, Category::temporaries, "calibration", program::Space::pinned});
    const auto add = [&](const char* group, at::Tensor& to, const at::Tensor& from) {
      const double seconds = watch_.seconds_of([&] { to.copy_(from, /*non_blocking=*/true); }, share_ / 2);
      found_.copies.push_back({.group = group, .bytes = static_cast<double>(bytes), .seconds = seconds});
    };
    add("copies to the GPU", on_card, on_host);
    add("copies to the host", on_host, on_card);
  }

  void measure_collective(program::Collective collective, Bytes bytes) {
    Collectives& ranks = in_.groups.world();
    const std::int64_t each = bytes.n / dtype_bytes(Dtype::f32).n / ranks.size();
    const std::vector<at::Tensor> tensors{flat(each * ranks.size(), in_.place)};
    const auto call = [&] {
      const Pending pending = collective == program::Collective::all_gather       ? ranks.all_gather(tensors)
                              : collective == program::Collective::reduce_scatter ? ranks.reduce_scatter(tensors)
                                                                                  : ranks.all_reduce(tensors);
      if (pending) pending->wait();
    };
    call();
    found_.collectives.push_back(
        {.collective = collective, .bytes = bytes, .seconds = watch_.seconds_of_calls(call, agreed_calls(call))});
  }

  /// As many as rank 0 has time for: all ranks must make the same number.
  int agreed_calls(const std::function<void()>& call) {
    constexpr double kLeast = 3, kMost = 1000;
    const double once = std::max(watch_.seconds_of_calls(call, 1), 1e-7);
    const auto own = static_cast<int>(std::clamp(share_ / once, kLeast, kMost));
    const std::string topic = fmt::format("calibration calls {}", found_.collectives.size());
    return std::stoi(in_.groups.share_texts(topic, fmt::to_string(own)).front());
  }

  const MeasuringPlace& in_;
  Stopwatch watch_;
  Measurements found_;
  std::vector<std::function<void()>> todo_;
  double share_ = 0;  // seconds for what is measured now
};

}  // namespace

Measurements measured_here(const MeasuringPlace& place) { return Measuring(place).measured(); }

}  // namespace vramfit
