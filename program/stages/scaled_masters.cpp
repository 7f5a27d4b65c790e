#include "program/stages/scaled_masters.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "base/conflict.h"
#include "job/fields/job_fields.h"
#include "program/optimizers/optimizers.h"
#include "program/stages/adapters.h"
#include "program/stages/fp8_gradients.h"
#include "program/stages/offload.h"

namespace vramfit {

std::int64_t scaled_scratch(const Unit& unit) {
  std::int64_t longest = 0;
  for (const UnitParameter& p : unit.parameters) {
    if (p.is_scaled) longest = std::max(longest, p.shard_elements);
  }
  return ScaledScratch{longest}.size();
}

namespace {

/// What is trained beside matrices with scales is copied.
Bytes copied(const Unit& unit) { return trained_beside_scaled(unit) * (2 * dtype_bytes(unit.trained)); }

}  // namespace

Work work_of_scaled_reading(const Unit& unit, DeviceKind device, KernelSource kernels) {
  // Converted, and by LibTorch's calls multiplied by each parameter's scale afterwards.
  const bool at_once = device == DeviceKind::cpu || kernels == KernelSource::vramfit;
  const Bytes made = dtype_bytes(unit.trained);
  const Bytes bytes = unit.scaled_elements * (dtype_bytes(Dtype::f16) + (at_once ? 1 : 3) * made) + copied(unit);
  return {.launches = unit.scales * (at_once ? 1 : 2) + (trained_beside_scaled(unit) > 0 ? 1 : 0),
          .bytes = static_cast<double>(bytes.n)};
}

Work work_of_scaled_rounding(const Unit& unit, DeviceKind device, KernelSource kernels) {
  constexpr std::int64_t kOwnKernels = 4;  // two over the numbers, and one before each of these
  const bool is_own = device == DeviceKind::cuda && kernels == KernelSource::vramfit;
  Work work{.launches = trained_beside_scaled(unit) > 0 ? 1 : 0, .bytes = static_cast<double>(copied(unit).n)};
  for (const UnitParameter& p : unit.parameters) {
    if (!p.is_scaled) continue;
    const Work one = work_of_scaled_rounding(p.shard_elements, 1, {unit.trained, Dtype::f16},
                                             is_own ? DeviceKind::cpu : device);  // which reads them twice, too
    work.launches += is_own ? kOwnKernels : one.launches;
    work.bytes += one.bytes;
  }
  return work;
}

void require_scaled_masters(const Job& job) {
  if (!job.master_dtype) return;
  const auto refuse = [&](std::string_view field, std::string_view why) {
    const JobField& row = job_field_named(field);
    throw Excluded(fmt::format("--master-dtype fp16 with {} {} ({})", flag_of(row), row.get(job), why));
  };
  if (optimizer_named(job.optimizer).rounds_randomly) {
    refuse("optimizer", "it rounds parameters stored in bf16; use adamw");
  }
  if (job.precision.storage != Dtype::f32) {
    refuse("storage_dtype", "an update works on fp32 numbers that are made of the masters; use --storage-dtype fp32");
  }
  if (has_adapters(job) && job.freeze.empty()) {
    refuse("method", "adapters alone are trained, and no matrix of a layer; use --method full, or leave it out");
  }
  const Offload offload = offload_of(job);
  if (offload.states || offload.parameters) {
    refuse("offload", "an update makes the masters anew on the card; use --offload none or activations");
  }
  if (job.load != Load::each) refuse("load", "rank 0 would send numbers whose scales it lacks; use --load each");
}

}  // namespace vramfit
