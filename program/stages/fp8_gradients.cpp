#include "program/stages/fp8_gradients.h"

#include <bit>
#include <string_view>

#include <fmt/format.h>

#include "base/conflict.h"
#include "job/fields/job_fields.h"
#include "job/fields/trained_dtype.h"
#include "job/sharding/sharding.h"
#include "program/stages/adapters.h"
#include "program/stages/offload.h"

namespace vramfit {

namespace {

// What LibTorch's calls do with a chunk to find its largest number and to round it, once its values are there.
constexpr std::int64_t kOnce = 8, kOfRounding = 6;  // launches
constexpr double kFp32OfRounding = 24;              // bytes of an element
// To make values of codes, twice: to numbers, and multiplied by their scales; to add one row to another one, twice.
constexpr double kFp32OfCodes = 24, kFp32OfRow = 24;

/// Rows are added up by halves.
std::int64_t additions(std::int64_t rows) {
  return static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(rows - 1)));
}

}  // namespace

Work work_of_fp8_addition(std::int64_t elements, Dtype dtype, DeviceKind device) {
  const Bytes read_twice = elements * (2 * dtype_bytes(dtype) + 2 * dtype_bytes(Dtype::f8_e4m3));
  const Bytes codes = elements * dtype_bytes(Dtype::f8_e4m3);
  if (device == DeviceKind::cpu) return {.launches = 2, .bytes = static_cast<double>((read_twice + codes).n)};
  constexpr double kAdded = 16;  // read and written, twice
  return {.launches = kOnce + ScaledScratch{elements}.chunks() * (kOfRounding + 6),
          .bytes = static_cast<double>((read_twice + codes).n) +
                   static_cast<double>(elements) * (kFp32OfCodes + kAdded + kFp32OfRounding)};
}

Work work_of_scaled_rounding(std::int64_t elements, std::int64_t rows, ScaledDtypes dtypes, DeviceKind device) {
  const Bytes moved = 2 * dtype_bytes(dtypes.from) + dtype_bytes(dtypes.to);
  const auto whole = static_cast<double>((checked_mul(elements, rows) * moved).n);
  if (device == DeviceKind::cpu) return {.launches = 2 * rows, .bytes = whole};
  constexpr double kCopied = 8;
  return {.launches = kOnce + ScaledScratch{elements, rows}.chunks() * (kOfRounding + 2),
          .bytes = whole + static_cast<double>(elements * rows) * (kCopied + kFp32OfRounding)};
}

Work work_of_fp8_parts(std::int64_t elements, std::int64_t shards, DeviceKind device) {
  const std::int64_t rows = shards + 1;  // with what is there
  const auto added = static_cast<double>(rows), numbers = static_cast<double>(elements);
  const double codes = 2 * added + 1;
  if (device == DeviceKind::cpu) return {.launches = 2, .bytes = numbers * codes};
  return {.launches = kOnce + ScaledScratch{elements, rows}.chunks() * (kOfRounding + 8 + 2 * additions(rows)),
          .bytes = numbers * (codes + kFp32OfCodes * added + kFp32OfRow * (added - 1) + kFp32OfRounding)};
}

Work work_of_fp8_sum(const Unit& unit, std::int64_t replicas, DeviceKind device) {
  const double elements = static_cast<double>(unit.fp8_gradient_elements), rows = static_cast<double>(replicas),
               codes = 2 * rows + 1;
  if (device == DeviceKind::cpu) return {.launches = 2 * unit.fp8_gradients, .bytes = elements * codes};
  std::int64_t chunks = 0;
  for (const UnitParameter& p : unit.parameters) {
    if (p.has_fp8_gradient) chunks += ScaledScratch{p.shard_elements, replicas}.chunks();
  }
  return {.launches = kOnce * unit.fp8_gradients + chunks * (kOfRounding + 4 + 2 * additions(replicas)),
          .bytes = elements * (codes + kFp32OfCodes * rows + kFp32OfRow * (rows - 1) + kFp32OfRounding)};
}

Work work_of_fp8_reading(const Unit& unit, DeviceKind device, KernelSource kernels) {
  const std::int64_t in_fp8 = unit.fp8_gradient_elements, others = gradient_shard_elements(unit);
  const Bytes made = dtype_bytes(unit.gradient);
  // Codes become numbers, which each parameter's scale then multiplies; on CPU and by own kernels at once.
  const bool at_once = device == DeviceKind::cpu || kernels == KernelSource::vramfit;
  const Bytes bytes = in_fp8 * (dtype_bytes(Dtype::f8_e4m3) + (at_once ? 1 : 3) * made) + others * (2 * made);
  return {.launches = unit.fp8_gradients + (at_once ? 0 : 1) + (others > 0 ? 1 : 0),
          .bytes = static_cast<double>(bytes.n)};
}

void require_fp8_gradients(const Job& job) {
  if (!keeps_fp8_gradients(job)) return;
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
