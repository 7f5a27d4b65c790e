#include "program/stages/own_kernels.h"

#include "base/conflict.h"
#include "job/fields/trained_dtype.h"
#include "job/parameters/quantization.h"
#include "program/optimizers/optimizers.h"
#include "program/stages/offload.h"

namespace vramfit {

namespace {

/// Elements of a unit, any number of them.
constexpr std::int64_t kSome = std::int64_t{1} << 20;

/// Updates that have a kernel are those that work in less scratch with it, or in none.
bool updates_by_own_kernel(const Job& job) {
  const Optimizer& row = optimizer_named(job.optimizer);
  if (row.scratch == nullptr || offload_of(job).states) return false;
  UnitUpdate update{.elements = kSome,
                    .storage = job.precision.storage,
                    .gradient = kept_gradient_dtype(job),
                    .state = job.precision.state,
                    .device = DeviceKind::cuda};
  const std::int64_t of_calls = row.scratch(update);
  update.kernels = KernelSource::vramfit;
  return row.scratch(update) < of_calls;
}

}  // namespace

void require_gpus_for_own_kernels(const Job& job, const Cluster& cluster) {
  if (job.kernels != KernelSource::vramfit || !cluster.is_cpu()) return;
  throw Excluded("--kernels vramfit with CPU ranks (they are CUDA kernels; leave it out)");
}

bool replaces_many_calls(const Job& job) {
  const bool drops = job.method != Method::full && job.lora.dropout > 0;
  return drops || job.master_dtype || updates_by_own_kernel(job) || quantization_named(job.quantization) != nullptr;
}

}  // namespace vramfit
