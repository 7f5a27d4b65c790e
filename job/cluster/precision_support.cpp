#include "job/cluster/precision_support.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/conflict.h"
#include "base/error.h"
#include "job/fields/trained_dtype.h"
#include "job/run/rehearsal_command.h"
#include "job/sharding/sharding.h"

namespace vramfit {

namespace {

struct DtypeRow {
  Dtype dtype;
  int native_from;  // compute capability since which there are units
  int runs_from;    // and since which PyTorch computes at all
};
constexpr std::array kDtypes{DtypeRow{Dtype::f16, 70, 0}, DtypeRow{Dtype::bf16, 80, 80},
                             DtypeRow{Dtype::f8_e4m3, 89, 89}, DtypeRow{Dtype::f8_e5m2, 89, 89}};

const DtypeRow* row_of(Dtype dtype) {
  const auto* const row = std::ranges::find(kDtypes, dtype, &DtypeRow::dtype);
  return row == kDtypes.end() ? nullptr : row;
}

std::string with_capability(const Card& card) {
  return fmt::format("{} (compute capability {})", card.name, capability_text(card.device.compute_capability));
}

std::string_view best_16_bits(const Card& card) {
  return card_support(Dtype::bf16, card.device.compute_capability) == Support::native ? "bf16-mixed" : "fp16-mixed";
}

/// Throws for a type that the card does not multiply.
void require_products(const std::string& flag, Dtype dtype, std::string_view units, const Card& card) {
  if (card_support(dtype, card.device.compute_capability) != Support::none) return;
  throw Conflict(fmt::format("{}: {} has no {} units, which come with {}; use --precision {} or fp32", flag,
                             with_capability(card), units, capability_text(row_of(dtype)->native_from),
                             best_16_bits(card)));
}

void require_kernels(const Cluster& cluster) {
  if (torch_has_kernels(cluster.card.device.compute_capability)) return;
  std::string known;
  for (const int capability : kTorchArchitectures) known += (known.empty() ? "" : ", ") + capability_text(capability);
  throw InputError(
      fmt::format("{}: PyTorch {}, which this engine runs on, has no kernels for it (only for {}); a script whose own "
                  "PyTorch has them can be rehearsed: {}",
                  with_capability(cluster.card), kTorchVersion, known, rehearsal_of(cluster)));
}

std::string compute_flag(const Precision& precision) {
  const bool by_name = !precision.name.empty() && precision_named(precision.name).compute == precision.compute;
  return by_name ? "--precision " + precision.name : fmt::format("--compute-dtype {}", dtype_name(precision.compute));
}

}  // namespace

std::string capability_text(int compute_capability) {
  return fmt::format("{}.{}", compute_capability / 10, compute_capability % 10);
}

bool torch_has_kernels(int compute_capability) {
  return std::ranges::any_of(kTorchArchitectures, [&](int compiled) {
    return compiled / 10 == compute_capability / 10 && compiled <= compute_capability;
  });
}

Support card_support(Dtype dtype, int compute_capability) {
  const DtypeRow* const row = row_of(dtype);
  if (row == nullptr || compute_capability >= row->native_from) return Support::native;
  return compute_capability >= row->runs_from ? Support::emulated : Support::none;
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

bool sums_between_ranks(const Job& job, Dtype dtype) {
  const std::int64_t shards = sharding_named(job.sharding).parameters ? job.mesh.shard : 1;
  const bool has_replicas = data_ranks(job) > shards;
  return (shards > 1 && job.precision.reduce == dtype) || (has_replicas && kept_gradient_dtype(job) == dtype);
}

std::string_view default_precision(const Cluster& cluster) {
  return cluster.is_cpu() ? "fp32" : best_16_bits(cluster.card);
}

void require_card_support(const Job& job, const Cluster& cluster) {
  if (cluster.is_cpu()) return;  // what has no units is emulated
  if (wants_fp8(job.precision)) require_products("--precision fp8", Dtype::f8_e4m3, "FP8", cluster.card);
  if (job.runtime != Runtime::vramfit) return;
  require_kernels(cluster);
  require_products(compute_flag(job.precision), job.precision.compute, dtype_name(job.precision.compute), cluster.card);
}

std::vector<std::string> precision_notes(const Job& job, const Cluster& cluster) {
  if (cluster.is_cpu() && wants_fp8(job.precision)) {
    return {
        "CPU ranks emulate FP8: they round factors to it and multiply them in fp32, which shows its results, not its "
        "speed"};
  }
  const Dtype compute = job.precision.compute;
  if (cluster.is_cpu() || card_support(compute, cluster.card.device.compute_capability) != Support::emulated) return {};
  return {
      fmt::format("{} has no {} tensor cores: 16 bits save memory, not time", cluster.card.name, dtype_name(compute))};
}

}  // namespace vramfit
