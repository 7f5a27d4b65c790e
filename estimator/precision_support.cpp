#include "estimator/precision_support.h"

#include <algorithm>

#include <fmt/format.h>

#include "estimator/ops/fp8.h"
#include "model_specs/error.h"

namespace vramfit {

namespace {

constexpr int kFp16From = 70, kBf16From = 80, kFp8From = 89;

std::string with_capability(const Card& card) {
  const int capability = card.device.compute_capability;
  return fmt::format("{} (compute capability {}.{})", card.name, capability / 10, capability % 10);
}

std::string_view best_16_bits(const Card& card) {
  return card.device.compute_capability >= kBf16From ? "bf16-mixed" : "fp16-mixed";
}

}  // namespace

Support card_support(Dtype dtype, int compute_capability) {
  switch (dtype) {
    case Dtype::f16:
      return compute_capability >= kFp16From ? Support::native : Support::emulated;
    case Dtype::bf16:
      return compute_capability >= kBf16From ? Support::native : Support::emulated;
    case Dtype::f8_e4m3:
    case Dtype::f8_e5m2:
      return compute_capability >= kFp8From ? Support::native : Support::none;
    case Dtype::f32:
    case Dtype::i64:
    case Dtype::i32:
    case Dtype::u8:
      return Support::native;
  }
  return Support::none;
}

Support cpu_support(Dtype dtype, const std::vector<std::string>& flags) {
  const auto has = [&](std::string_view flag) { return std::ranges::find(flags, flag) != flags.end(); };
  switch (dtype) {
    case Dtype::f16:
      return has("avx512_fp16") || has("amx_fp16") ? Support::native : Support::emulated;
    case Dtype::bf16:
      return has("avx512_bf16") || has("amx_bf16") ? Support::native : Support::emulated;
    case Dtype::f8_e4m3:
    case Dtype::f8_e5m2:
      return Support::emulated;
    case Dtype::f32:
    case Dtype::i64:
    case Dtype::i32:
    case Dtype::u8:
      return Support::native;
  }
  return Support::none;
}

std::string_view support_name(Support support) {
  switch (support) {
    case Support::native:
      return "native";
    case Support::emulated:
      return "emulated in fp32";
    case Support::none:
      return "none";
  }
  return "none";
}

void require_card_support(const Job& job, const Cluster& cluster) {
  if (!wants_fp8(job.precision)) return;
  if (cluster.is_cpu()) return;  // emulated
  if (card_support(Dtype::f8_e4m3, cluster.card.device.compute_capability) != Support::none) return;
  throw InputError(fmt::format("--precision fp8: {} has no FP8 units, which come with 8.9; use --precision {}",
                               with_capability(cluster.card), best_16_bits(cluster.card)));
}

std::vector<std::string> precision_notes(const Job& job, const Cluster& cluster) {
  if (cluster.is_cpu() && wants_fp8(job.precision)) {
    return {
        "CPU ranks emulate FP8: they round factors to it and multiply them in fp32, which shows its results, not its "
        "speed"};
  }
  const Dtype compute = job.precision.compute;
  if (cluster.is_cpu() || card_support(compute, cluster.card.device.compute_capability) != Support::emulated) return {};
  if (compute == Dtype::bf16) {
    return {fmt::format("{} has no bf16 units: it computes bf16 by emulation{}", cluster.card.name,
                        card_support(Dtype::f16, cluster.card.device.compute_capability) == Support::native
                            ? " (it has fp16 units: --precision fp16-mixed)"
                            : "")};
  }
  return {fmt::format("{} has no fp16 tensor cores: 16 bits save memory, not time", cluster.card.name)};
}

}  // namespace vramfit
