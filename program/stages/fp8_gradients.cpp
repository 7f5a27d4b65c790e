#include "program/stages/fp8_gradients.h"

#include <string_view>

#include <fmt/format.h>

#include "base/conflict.h"
#include "job/fields/job_fields.h"
#include "job/sharding.h"
#include "program/stages/adapters.h"
#include "program/stages/offload.h"

namespace vramfit {

Work work_of_fp8_addition(std::int64_t elements, Dtype dtype, DeviceKind device) {
  const Bytes read_twice = elements * (2 * dtype_bytes(dtype) + 2 * dtype_bytes(Dtype::f8_e4m3));
  const Bytes codes = elements * dtype_bytes(Dtype::f8_e4m3);
  if (device == DeviceKind::cpu) return {.launches = 2, .bytes = static_cast<double>((read_twice + codes).n)};
  constexpr std::int64_t kOnce = 7, kOfChunk = 12;  // launches
  constexpr Bytes kFp32{64};                        // that LibTorch's calls move of an element between them
  return {.launches = kOnce + kOfChunk * ceil_div(elements, kBlockStatesChunk),
          .bytes = static_cast<double>((read_twice + codes + elements * kFp32).n)};
}

Work work_of_fp8_coding(std::int64_t elements, std::int64_t shards, Dtype dtype, DeviceKind device) {
  const Bytes moved = 2 * dtype_bytes(dtype) + dtype_bytes(Dtype::f8_e4m3);
  const std::int64_t whole = checked_mul(elements, shards);
  if (device == DeviceKind::cpu) return {.launches = 2 * shards, .bytes = static_cast<double>((whole * moved).n)};
  constexpr std::int64_t kOnce = 7, kOfChunk = 9;  // launches
  constexpr Bytes kFp32{32};                       // that LibTorch's calls move of an element between them
  return {.launches = shards * (kOnce + kOfChunk * ceil_div(elements, kBlockStatesChunk)),
          .bytes = static_cast<double>((whole * (moved + kFp32)).n)};
}

Work work_of_fp8_parts(std::int64_t elements, std::int64_t shards, DeviceKind device) {
  const auto added = static_cast<double>(shards), numbers = static_cast<double>(elements);
  const double codes = 2 * (added + 1) + 1;
  if (device == DeviceKind::cpu) return {.launches = 2, .bytes = numbers * codes};
  constexpr std::int64_t kOnce = 7, kOfChunk = 12, kOfPart = 6;
  constexpr double kFp32 = 36, kFp32OfPart = 48;
  return {.launches = kOnce + ceil_div(elements, kBlockStatesChunk) * (kOfChunk + kOfPart * shards),
          .bytes = numbers * (codes + kFp32 + kFp32OfPart * added)};
}

Work work_of_fp8_sum(const Unit& unit, std::int64_t replicas, DeviceKind device) {
  const double elements = static_cast<double>(unit.fp8_gradient_elements),
               codes = 2 * static_cast<double>(replicas) + 1;
  if (device == DeviceKind::cpu) return {.launches = 2 * unit.fp8_gradients, .bytes = elements * codes};
  // Of each replica's codes: to numbers, scaled, added; of the sums as of an addition.
  constexpr std::int64_t kOnce = 7, kOfChunk = 6, kOfReplica = 6;
  constexpr double kFp32 = 36, kFp32OfReplica = 48;
  const std::int64_t chunks = unit.fp8_gradients + unit.fp8_gradient_elements / kBlockStatesChunk;
  return {.launches = kOnce * unit.fp8_gradients + chunks * (kOfChunk + kOfReplica * replicas),
          .bytes = elements * (codes + kFp32 + kFp32OfReplica * static_cast<double>(replicas - 1))};
}

Work work_of_fp8_reading(const Unit& unit, DeviceKind device) {
  const std::int64_t in_fp8 = unit.fp8_gradient_elements, others = gradient_shard_elements(unit);
  const Bytes made = dtype_bytes(unit.gradient);
  // Codes become numbers, which each parameter's scale then multiplies; on CPU at once.
  const bool is_cpu = device == DeviceKind::cpu;
  const Bytes bytes = in_fp8 * (dtype_bytes(Dtype::f8_e4m3) + (is_cpu ? 1 : 3) * made) + others * (2 * made);
  return {.launches = unit.fp8_gradients + (is_cpu ? 0 : 1) + (others > 0 ? 1 : 0),
          .bytes = static_cast<double>(bytes.n)};
}

void require_fp8_gradients(const Job& job) {
  if (!job.gradient_dtype) return;
  const auto refuse = [&](std::string_view field, std::string_view why) {
    const JobField& row = job_field_named(field);
    throw Excluded(fmt::format("--gradient-dtype {} with {} {} ({})", job_field_named("gradient_dtype").get(job),
                               flag_of(row), row.get(job), why));
  };
  const bool is_split = sharding_named(job.sharding).parameters && job.mesh.shard > 1;
  if (job.sends_fp8_gradients && !is_split) {
    throw Excluded(fmt::format(
        "--gradient-dtype fp8-sent with --sharding {} and --mesh {} (no rank keeps a part of them for others; use "
        "--gradient-dtype fp8)",
        job.sharding, job_field_named("mesh").get(job)));
  }
  if (!std::holds_alternative<NoGradientMask>(job.gradient_mask)) {
    refuse("gradient_mask", "masks are applied to gradients in the storage dtype; leave out one of the two");
  }
  if (has_adapters(job) && job.freeze.empty()) {
    refuse("method", "adapters alone are trained, and no matrix of a layer; use --method full, or leave it out");
  }
  if (offload_of(job).states) {
    refuse("offload", "the CPU reads gradients in the storage dtype; use --offload none or activations");
  }
}

}  // namespace vramfit
