#include "executor/optimizers/optimizers.h"

#include <ATen/core/Tensor.h>

#include <array>

#include "job/optimizers/optimizers.h"

namespace vramfit {

namespace {

constexpr std::array kSteps{
#define OPTIMIZER(name, ...) &optimizer_steps::name,
#include "job/optimizers/optimizers.def"
#undef OPTIMIZER
};

}  // namespace

OptimizerStep optimizer_step(std::string_view name, DeviceKind device, KernelSource kernels,
                             OptimizerImplementation form) {
  const OptimizerSteps& row = *kSteps.at(optimizer_number(name));
  if (form == OptimizerImplementation::foreach) return row.foreach;
  if (form == OptimizerImplementation::loop) return row.loop;
  if (device == DeviceKind::cpu) return row.cpu;
  return kernels == KernelSource::vramfit && row.own_cuda != nullptr ? row.own_cuda : row.cuda;
}

OptimizerStep optimizer_step(const Job& job, DeviceKind device) {
  return optimizer_step(job.optimizer, device, job.kernels, job.optimizer_implementation);
}

bool draws_random_numbers(std::string_view optimizer) { return kSteps.at(optimizer_number(optimizer))->draws; }

}  // namespace vramfit
