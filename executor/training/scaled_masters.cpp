#include "executor/training/scaled_masters_torch.h"

#include <ATen/Dispatch.h>

#include <cstdint>

#include "executor/ops/kernels_torch.h"
#include "executor/ops/scaled_numbers_torch.h"
#include "executor/ops/vectors.h"
#include "executor/optimizers/tensor_scales.h"

namespace vramfit {

namespace {

/// The parameters with scales are the unit's first ones.
std::size_t scaled_slots(const Unit& unit) { return static_cast<std::size_t>(unit.scales); }

at::Tensor slice_of_parameter(const at::Tensor& all, const UnitParameter& p) {
  return all.narrow(0, p.shard_offset, p.shard_elements);
}

/// With what lies between it and the next one, which is zero.
at::Tensor until_next(const at::Tensor& all, const Unit& unit, std::size_t slot) {
  return all.narrow(0, unit.parameters[slot].shard_offset,
                    elements_until_next(unit, slot, unit.scales, unit.scaled_elements));
}

at::Tensor others_of(const at::Tensor& all, const Unit& unit) {
  return all.narrow(0, unit.scaled_elements, trained_beside_scaled(unit));
}

void read_scaled(const Unit& unit, const ScaledShard& shard, const at::Tensor& all, KernelSource kernels) {
  for (std::size_t slot = 0; slot < scaled_slots(unit); ++slot) {
    const ScaledPart from{until_next(shard.numbers, unit, slot), part_of(shard, unit, slot).scale};
    scaled_numbers(from, until_next(all, unit, slot), kernels);
  }
  if (shard.others.defined()) others_of(all, unit).copy_(shard.others);
}

void round_scaled(const Unit& unit, const at::Tensor& all, const ScaledShard& shard, const at::Tensor& scratch) {
  for (std::size_t slot = 0; slot < scaled_slots(unit); ++slot) {
    const at::Tensor numbers = slice_of_parameter(all, unit.parameters[slot]);
    const ScaledPart to = part_of(shard, unit, slot);
    if (scratch.defined()) {
      round_scaled_by_calls(numbers, to, scratch);
    } else {
      numbers.is_cpu() ? round_scaled_on_cpu(numbers, to) : round_scaled_by_kernel(numbers, to.numbers, to.scale);
    }
  }
  if (shard.others.defined()) shard.others.copy_(others_of(all, unit));
}

}  // namespace

void scaled_numbers(const ScaledPart& from, const at::Tensor& to, KernelSource kernels) {
  if (!to.is_cpu() && kernels == KernelSource::vramfit) return scaled_numbers_by_kernel(from.numbers, from.scale, to);
  if (!to.is_cpu()) {
    to.copy_(from.numbers).mul_(from.scale);
    return;
  }
  const auto* const halves = from.numbers.const_data_ptr<at::Half>();
  const float scale = *from.scale.const_data_ptr<float>();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, to.scalar_type(), "scaled_numbers", [&] {
    auto* const numbers = to.mutable_data_ptr<scalar_t>();
    kernels::parallel_elements(to.numel(), [&](std::int64_t first, std::int64_t end) {
      VRAMFIT_INDEPENDENT_ELEMENTS
      for (std::int64_t i = first; i < end; ++i) {
        numbers[i] = static_cast<scalar_t>(static_cast<float>(halves[i]) * scale);
      }
    });
  });
}

void round_scaled_on_cpu(const at::Tensor& numbers, const ScaledPart& to) {
  const auto* const values = numbers.const_data_ptr<float>();
  auto* const halves = to.numbers.mutable_data_ptr<at::Half>();
  const auto copy = [=](std::int64_t first, std::int64_t count, float* block) {
    std::copy_n(values + first, count, block);
  };
  const auto write = [=](std::int64_t i, float x) { halves[i] = static_cast<at::Half>(x); };
  scaled_sums::round_sums(numbers.numel(), copy, kF16Format, write, *to.scale.mutable_data_ptr<float>());
}

void round_scaled_by_calls(const at::Tensor& numbers, const ScaledPart& to, const at::Tensor& scratch) {
  SumsByCalls(numbers.view({1, -1}), scratch).round_to({to.numbers.view({1, -1}), to.scale}, kF16Format);
}

ScaledPart part_of(const ScaledShard& shard, const Unit& unit, std::size_t slot) {
  return {slice_of_parameter(shard.numbers, unit.parameters[slot]),
          shard.scales.narrow(0, static_cast<std::int64_t>(slot), 1)};
}

void add_scaled_runs(ProgramRunner& runner, const UnitLayout& layout, KernelSource kernels) {
  using program::Kernel;
  const auto unit_of = [&layout](Operands& o) -> const Unit& { return layout.units[at_index(o.run().unit)]; };
  const auto others = [](Operands& o, std::size_t operand) { return o.has(operand) ? o.view(operand) : at::Tensor(); };
  runner.on(Kernel::read_scaled, [=](Operands& o) {
    read_scaled(unit_of(o), {o[0], o[1], others(o, 2)}, o[3], kernels);
  });
  runner.on(Kernel::round_scaled, [=](Operands& o) {
    round_scaled(unit_of(o), o[0], {o[1], o[2], others(o, 3)}, o.has(4) ? o[4] : at::Tensor());
  });
  runner.on(Kernel::gather_scaled, [](Operands& o) { scaled_numbers({o.view(0), o.view(1)}, o.view(2)); });
}

}  // namespace vramfit
