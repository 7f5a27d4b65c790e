#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "executor/ops/e4m3.h"
#include "executor/ops/kernels_torch.h"
#include "executor/ops/scaled_numbers_torch.h"
#include "executor/ops/vectors.h"
#include "executor/training/fp8_gradients_torch.h"
#include "executor/training/scaled_sums_torch.h"
#include "executor/training/tensor_torch.h"
#include "program/stages/fp8_gradients.h"

namespace vramfit {

namespace {

/// The parameters whose gradients are kept in FP8 are the unit's first ones.
std::size_t slots_of(const Unit& unit) { return static_cast<std::size_t>(unit.fp8_gradients); }

void read_others(const Unit& unit, const UnitGradients& gradients, const at::Tensor& into) {
  const std::int64_t others = gradient_shard_elements(unit);
  if (others == 0) return;
  const at::Tensor rest = into.narrow(0, unit.fp8_gradient_elements, others);
  gradients.shard.defined() ? rest.copy_(gradients.shard) : rest.zero_();
}

/// Rounds sums to codes.
template <typename Sums>
void round_to_codes(std::int64_t elements, const Sums& sums, std::uint8_t* codes, float& scale) {
  const auto write = [=](std::int64_t i, float x) { codes[i] = static_cast<std::uint8_t>(E4m3::code(x)); };
  scaled_sums::round_sums(elements, sums, kE4m3Format, write, scale);
}

ScaledPart as_numbers(const at::Tensor& codes, const at::Tensor& scale) {
  return {codes.view(at::kFloat8_e4m3fn), scale};
}

/// A number of a list that may be strided, [1].
at::Tensor part_of_list(const at::Tensor& list, std::int64_t part) { return list.narrow(0, part, 1).view({1}); }

/// As one row, or as one for each scale.
ScaledRows as_rows(const at::Tensor& codes, const at::Tensor& scales) {
  return {codes.view(at::kFloat8_e4m3fn).view({scales.numel(), -1}), scales.view({scales.numel()})};
}

/// A unit's codes and scales of all replicas, one replica's after the other's.
ScaledPart part_of_replica(const Unit& unit, std::size_t slot, std::int64_t replica, const UnitGradients& all) {
  const UnitParameter& p = unit.parameters[slot];
  return as_numbers(all.codes.narrow(0, replica * unit.fp8_gradient_elements + p.shard_offset, p.shard_elements),
                    all.scales.narrow(0, replica * unit.fp8_gradients + static_cast<std::int64_t>(slot), 1));
}

}  // namespace

void add_to_fp8_gradient_on_cpu(const at::Tensor& gradient, const at::Tensor& codes, const at::Tensor& scale) {
  auto* const bytes = codes.mutable_data_ptr<std::uint8_t>();
  auto* const factor = scale.mutable_data_ptr<float>();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, gradient.scalar_type(), "add_fp8", [&] {
    const auto* const added = gradient.const_data_ptr<scalar_t>();
    const float before = *factor;
    const auto sums = [&](std::int64_t first, std::int64_t count, float* block) {
      VRAMFIT_INDEPENDENT_ELEMENTS
      for (std::int64_t i = 0; i < count; ++i) {
        block[i] = E4m3::value(bytes[first + i]) * before + static_cast<float>(added[first + i]);
      }
    };
    round_to_codes(gradient.numel(), sums, bytes, *factor);
  });
}

void add_to_fp8_gradient_by_calls(const at::Tensor& gradient, const at::Tensor& codes, const at::Tensor& scale,
                                  const at::Tensor& scratch) {
  const ScaledRows kept = as_rows(codes, scale);
  SumsByCalls({kept}, gradient, scratch).round_to(kept, kE4m3Format);
}

void code_fp8_gradient_on_cpu(const at::Tensor& gradient, const at::Tensor& codes, const at::Tensor& scales) {
  const std::int64_t each = gradient.numel() / scales.numel();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, gradient.scalar_type(), "code_fp8", [&] {
    for (std::int64_t part = 0; part < scales.numel(); ++part) {
      const auto* const from = gradient.const_data_ptr<scalar_t>() + part * each;
      const auto numbers = [=](std::int64_t first, std::int64_t count, float* block) {
        VRAMFIT_INDEPENDENT_ELEMENTS
        for (std::int64_t i = 0; i < count; ++i) block[i] = static_cast<float>(from[first + i]);
      };
      round_to_codes(each, numbers, codes.mutable_data_ptr<std::uint8_t>() + part * each,
                     *part_of_list(scales, part).mutable_data_ptr<float>());
    }
  });
}

void code_fp8_gradient_by_calls(const at::Tensor& gradient, const at::Tensor& codes, const at::Tensor& scales,
                                const at::Tensor& scratch) {
  SumsByCalls(gradient.view({scales.numel(), -1}), scratch).round_to(as_rows(codes, scales), kE4m3Format);
}

void add_fp8_parts_on_cpu(const ScaledPart& parts, const ScaledPart& kept) {
  const std::int64_t each = kept.numbers.numel(), count_of_parts = parts.scale.numel();
  const auto* const from = parts.numbers.const_data_ptr<std::uint8_t>();
  auto* const codes = kept.numbers.mutable_data_ptr<std::uint8_t>();
  auto* const scale = kept.scale.mutable_data_ptr<float>();
  const float before = *scale;
  const auto sums = [&](std::int64_t first, std::int64_t count, float* block) {
    for (std::int64_t i = 0; i < count; ++i) block[i] = E4m3::value(codes[first + i]) * before;
    for (std::int64_t part = 0; part < count_of_parts; ++part) {
      const std::uint8_t* const added = from + part * each + first;
      const float factor = *part_of_list(parts.scale, part).const_data_ptr<float>();
      VRAMFIT_INDEPENDENT_ELEMENTS
      for (std::int64_t i = 0; i < count; ++i) block[i] += E4m3::value(added[i]) * factor;
    }
  };
  round_to_codes(each, sums, codes, *scale);
}

void add_fp8_parts_by_calls(const ScaledPart& parts, const ScaledPart& kept, const at::Tensor& scratch) {
  const ScaledRows sum = as_rows(kept.numbers, kept.scale);
  SumsByCalls({sum, as_rows(parts.numbers, parts.scale)}, {}, scratch).round_to(sum, kE4m3Format);
}

void sum_fp8_gradients_on_cpu(const Unit& unit, const UnitGradients& all, const UnitGradients& sum) {
  const std::int64_t replicas = all.scales.numel() / unit.fp8_gradients;
  const auto* const codes = all.codes.const_data_ptr<std::uint8_t>();
  const auto* const scales = all.scales.const_data_ptr<float>();
  for (std::size_t slot = 0; slot < slots_of(unit); ++slot) {
    const UnitParameter& p = unit.parameters[slot];
    const auto sums = [&](std::int64_t first, std::int64_t count, float* block) {
      for (std::int64_t replica = 0; replica < replicas; ++replica) {
        const std::uint8_t* from = codes + replica * unit.fp8_gradient_elements + p.shard_offset + first;
        const float scale = scales[replica * unit.fp8_gradients + static_cast<std::int64_t>(slot)];
        VRAMFIT_INDEPENDENT_ELEMENTS
        for (std::int64_t i = 0; i < count; ++i) {
          block[i] = (replica == 0 ? 0.0F : block[i]) + E4m3::value(from[i]) * scale;
        }
      }
    };
    round_to_codes(p.shard_elements, sums, sum.codes.mutable_data_ptr<std::uint8_t>() + p.shard_offset,
                   sum.scales.mutable_data_ptr<float>()[slot]);
  }
}

void sum_fp8_gradients_by_calls(const Unit& unit, const UnitGradients& all, const UnitGradients& sum,
                                const at::Tensor& scratch) {
  const std::int64_t replicas = all.scales.numel() / unit.fp8_gradients;
  const at::Tensor codes = all.codes.view(at::kFloat8_e4m3fn).view({replicas, -1}),
                   scales = all.scales.view({replicas, -1});
  for (std::size_t slot = 0; slot < slots_of(unit); ++slot) {
    const UnitParameter& p = unit.parameters[slot];
    const ScaledRows rows{codes.narrow(1, p.shard_offset, p.shard_elements),
                          scales.select(1, static_cast<std::int64_t>(slot))};
    const ScaledPart own = part_of_replica(unit, slot, 0, sum);
    SumsByCalls({rows}, {}, scratch).round_to({own.numbers.view({1, -1}), own.scale}, kE4m3Format);
  }
}

void read_fp8_gradients_on_cpu(const Unit& unit, const UnitGradients& gradients, const at::Tensor& into) {
  const auto* const codes = gradients.codes.const_data_ptr<std::uint8_t>();
  const auto* const scales = gradients.scales.const_data_ptr<float>();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, into.scalar_type(), "read_fp8", [&] {
    auto* const numbers = into.mutable_data_ptr<scalar_t>();
    for (std::size_t slot = 0; slot < slots_of(unit); ++slot) {
      const auto* const from = codes + unit.parameters[slot].shard_offset;
      auto* const to = numbers + unit.parameters[slot].shard_offset;
      const float scale = scales[slot];
      // What lies between the parameter and the next one is zero.
      const std::int64_t count = elements_until_next(unit, slot, unit.fp8_gradients, unit.fp8_gradient_elements);
      kernels::parallel_elements(count, [=](std::int64_t first, std::int64_t end) {
        VRAMFIT_INDEPENDENT_ELEMENTS
        for (std::int64_t i = first; i < end; ++i) to[i] = static_cast<scalar_t>(E4m3::value(from[i]) * scale);
      });
    }
  });
  read_others(unit, gradients, into);
}

void read_fp8_gradients_by_calls(const Unit& unit, const UnitGradients& gradients, const at::Tensor& into) {
  into.narrow(0, 0, unit.fp8_gradient_elements).copy_(gradients.codes.view(at::kFloat8_e4m3fn));
  for (std::size_t slot = 0; slot < slots_of(unit); ++slot) {
    const UnitParameter& p = unit.parameters[slot];
    into.narrow(0, p.shard_offset, p.shard_elements).mul_(part_of_replica(unit, slot, 0, gradients).scale);
  }
  read_others(unit, gradients, into);
}

void read_fp8_gradients_by_kernel(const Unit& unit, const UnitGradients& gradients, const at::Tensor& into) {
  for (std::size_t slot = 0; slot < slots_of(unit); ++slot) {
    const std::int64_t begin = unit.parameters[slot].shard_offset;
    const std::int64_t count = elements_until_next(unit, slot, unit.fp8_gradients, unit.fp8_gradient_elements);
    scaled_numbers_by_kernel(gradients.codes.narrow(0, begin, count),
                             part_of_list(gradients.scales, static_cast<std::int64_t>(slot)),
                             into.narrow(0, begin, count));
  }
  read_others(unit, gradients, into);
}

void add_fp8_gradient_runs(ProgramRunner& runner, const UnitLayout& layout, KernelSource kernels) {
  using program::Kernel;
  const auto unit_of = [&layout](Operands& o) -> const Unit& { return layout.units[at_index(o.run().unit)]; };
  runner.on(Kernel::add_fp8, [](Operands& o) {
    const at::Tensor gradient = o.view(0), codes = o.view(1), scale = o.view(2);
    o.has(3) ? add_to_fp8_gradient_by_calls(gradient, codes, scale, o[3])
             : add_to_fp8_gradient_on_cpu(gradient, codes, scale);
  });
  runner.on(Kernel::code_fp8, [](Operands& o) {
    const at::Tensor scales = o.view(2);
    o.has(3) ? code_fp8_gradient_by_calls(o[0], o[1], scales, o[3]) : code_fp8_gradient_on_cpu(o[0], o[1], scales);
  });
  runner.on(Kernel::add_fp8_parts, [](Operands& o) {
    const ScaledPart parts{o[0], o.view(1)}, kept{o.view(2), o.view(3)};
    o.has(4) ? add_fp8_parts_by_calls(parts, kept, o[4]) : add_fp8_parts_on_cpu(parts, kept);
  });
  runner.on(Kernel::sum_fp8, [unit_of](Operands& o) {
    const UnitGradients all{o[0], o[1], {}}, sum{o[2], o[3], {}};
    o.has(4) ? sum_fp8_gradients_by_calls(unit_of(o), all, sum, o[4]) : sum_fp8_gradients_on_cpu(unit_of(o), all, sum);
  });
  runner.on(Kernel::read_fp8, [unit_of, kernels](Operands& o) {
    const UnitGradients gradients{o[0], o[1], o.has(2) ? o[2] : at::Tensor()};
    if (o[3].is_cpu()) return read_fp8_gradients_on_cpu(unit_of(o), gradients, o[3]);
    const bool by_kernel = kernels == KernelSource::vramfit;
    by_kernel ? read_fp8_gradients_by_kernel(unit_of(o), gradients, o[3])
              : read_fp8_gradients_by_calls(unit_of(o), gradients, o[3]);
  });
}

}  // namespace vramfit
