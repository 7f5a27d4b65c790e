#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/maximum.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "executor/ops/e4m3.h"
#include "executor/ops/vectors.h"
#include "executor/optimizers/tensor_scales.h"
#include "executor/training/fp8_gradients_torch.h"
#include "executor/training/tensor_torch.h"
#include "program/stages/fp8_gradients.h"

namespace vramfit {

namespace {

constexpr std::int64_t kGrain = 16384;  // elements that a thread takes at least
constexpr std::int64_t kBlock = 1024;   // elements that are summed at a time on CPU, in a thread's cache

/// Calls use(first of the block, its sums) for all blocks of the elements; `sum` fills a block.
template <typename Sums, typename Use>
void each_block(std::int64_t elements, const Sums& sums, const Use& use) {
  at::parallel_for(0, elements, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::array<float, kBlock> block;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled below
    kernels::on_widest([&] {
      for (std::int64_t first = begin; first < end; first += kBlock) {
        const std::int64_t count = std::min(kBlock, end - first);
        sums(first, count, block.data());
        use(first, count, block.data());
      }
    });
  });
}

/// Sums are made twice: to find the scale of the largest one, and to round them. By their bits magnitudes are ordered;
/// what is no number counts as larger than all.
template <typename Sums>
void round_sums(std::int64_t elements, const Sums& sums, std::uint8_t* codes, float& scale) {
  std::atomic<std::int32_t> largest = 0;
  each_block(elements, sums, [&](std::int64_t /*first*/, std::int64_t count, const float* block) {
    std::int32_t own = 0;
    for (std::int64_t i = 0; i < count; ++i) own = std::max(own, std::bit_cast<std::int32_t>(std::fabs(block[i])));
    std::int32_t before = largest.load();
    while (before < own && !largest.compare_exchange_weak(before, own)) {
    }
  });
  const float found = scale_of(std::bit_cast<float>(largest.load()), kE4m3Format);
  const float inverse = 1 / found;  // of a power of two
  each_block(elements, sums, [&](std::int64_t first, std::int64_t count, const float* block) {
    VRAMFIT_INDEPENDENT_ELEMENTS
    for (std::int64_t i = 0; i < count; ++i) {
      codes[first + i] = static_cast<std::uint8_t>(E4m3::code(block[i] * inverse));
    }
  });
  scale = found;
}

/// The parameters whose gradients are kept in FP8 are the unit's first ones.
std::size_t slots_of(const Unit& unit) { return static_cast<std::size_t>(unit.fp8_gradients); }

/// What lies between the parameter and the next one is zero.
std::int64_t elements_until_next(const Unit& unit, std::size_t slot) {
  const std::size_t next = slot + 1;
  return (next == slots_of(unit) ? unit.fp8_gradient_elements : unit.parameters[next].shard_offset) -
         unit.parameters[slot].shard_offset;
}

void read_others(const Unit& unit, const UnitGradients& gradients, const at::Tensor& into) {
  const std::int64_t others = gradient_shard_elements(unit);
  if (others == 0) return;
  const at::Tensor rest = into.narrow(0, unit.fp8_gradient_elements, others);
  gradients.shard.defined() ? rest.copy_(gradients.shard) : rest.zero_();
}

/// Codes, and their scale.
struct Part {
  at::Tensor codes, scale;
};

/// Sums by LibTorch's calls over one chunk after the other: of codes, and of a gradient where there is one.
class Sums {
 public:
  Sums(std::vector<Part> parts, const at::Tensor& gradient, const at::Tensor& scratch)
      : parts_(std::move(parts)), gradient_(gradient), scratch_(scratch) {
    for (Part& part : parts_) part.codes = part.codes.view(at::kFloat8_e4m3fn);
  }

  void round_to(const Part& sum) {
    const at::Tensor codes = sum.codes.view(at::kFloat8_e4m3fn);
    number(kLargest).zero_();
    each_chunk([&] { find_largest(); });
    find_scale();
    each_chunk([&] {
      add_up();
      of_chunk(codes).copy_(values().div_(number(kScale)));
    });
    sum.scale.copy_(number(kScale));
  }

 private:
  static constexpr std::int64_t kLargest = 0, kLargestOfChunk = 1, kScale = 2;

  template <typename Visit>
  void each_chunk(const Visit& visit) {
    const std::int64_t elements = parts_.front().codes.numel();
    for (first_ = 0; first_ < elements; first_ += sizes_.chunk()) {
      count_ = std::min(sizes_.chunk(), elements - first_);
      visit();
    }
  }

  at::Tensor part(ScratchPart part) const { return scratch_.narrow(0, part.begin, part.elements); }
  at::Tensor number(std::int64_t place) const { return part(sizes_.numbers()).narrow(0, place, 1); }
  at::Tensor of_chunk(const at::Tensor& flat) const { return flat.narrow(0, first_, count_); }
  at::Tensor values() const { return part(sizes_.values()).narrow(0, 0, count_); }

  void add_up() const {
    at::Tensor into = values();
    const at::Tensor next = part(sizes_.of_replica()).narrow(0, 0, count_);
    into.copy_(of_chunk(parts_.front().codes)).mul_(parts_.front().scale);
    for (std::size_t i = 1; i < parts_.size(); ++i) {
      into.add_(next.copy_(of_chunk(parts_[i].codes)).mul_(parts_[i].scale));
    }
    if (gradient_.defined()) into.add_(of_chunk(gradient_));
  }

  /// By rows of kMaximaOf numbers first: a reduction of all of them would work in memory of its own.
  void find_largest() const {
    add_up();
    values().abs_();
    const std::int64_t rows = ceil_div(count_, kMaximaOf), rest = rows * kMaximaOf - count_;
    if (rest > 0) part(sizes_.values()).narrow(0, count_, rest).zero_();
    at::Tensor maxima = part(sizes_.maxima()).narrow(0, 0, rows);
    at::Tensor of_chunk = number(kLargestOfChunk), largest = number(kLargest);
    at::amax_out(maxima, part(sizes_.values()).narrow(0, 0, rows * kMaximaOf).view({-1, kMaximaOf}), 1);
    at::amax_out(of_chunk, maxima.view({1, -1}), 1);
    at::maximum_out(largest, largest, of_chunk);
  }

  /// scale_of(), by its bits.
  void find_scale() const {
    at::Tensor bits = number(kScale).copy_(number(kLargest)).view(at::kInt);
    bits.clamp_(least_bits(kE4m3Format), kMostBits);
    bits.add_(kE4m3Format.rest).bitwise_and_(kFloatExponent).sub_(kE4m3Format.exponent << kFloatBits);
  }

  std::vector<Part> parts_;
  const at::Tensor &gradient_, &scratch_;
  Fp8GradientScratch sizes_{parts_.front().codes.numel()};
  std::int64_t first_ = 0, count_ = 0;
};

/// A unit's codes and scales of all replicas, one replica's after the other's.
Part part_of_replica(const Unit& unit, std::size_t slot, std::int64_t replica, const UnitGradients& all) {
  const UnitParameter& p = unit.parameters[slot];
  return {all.codes.narrow(0, replica * unit.fp8_gradient_elements + p.shard_offset, p.shard_elements),
          all.scales.narrow(0, replica * unit.fp8_gradients + static_cast<std::int64_t>(slot), 1)};
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
    round_sums(gradient.numel(), sums, bytes, *factor);
  });
}

void add_to_fp8_gradient_by_calls(const at::Tensor& gradient, const at::Tensor& codes, const at::Tensor& scale,
                                  const at::Tensor& scratch) {
  Sums({{codes, scale}}, gradient, scratch).round_to({codes, scale});
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
    round_sums(p.shard_elements, sums, sum.codes.mutable_data_ptr<std::uint8_t>() + p.shard_offset,
               sum.scales.mutable_data_ptr<float>()[slot]);
  }
}

void sum_fp8_gradients_by_calls(const Unit& unit, const UnitGradients& all, const UnitGradients& sum,
                                const at::Tensor& scratch) {
  const std::int64_t replicas = all.scales.numel() / unit.fp8_gradients;
  for (std::size_t slot = 0; slot < slots_of(unit); ++slot) {
    std::vector<Part> parts;
    for (std::int64_t replica = 0; replica < replicas; ++replica) {
      parts.push_back(part_of_replica(unit, slot, replica, all));
    }
    Sums(std::move(parts), {}, scratch).round_to(part_of_replica(unit, slot, 0, sum));
  }
}

void read_fp8_gradients_on_cpu(const Unit& unit, const UnitGradients& gradients, const at::Tensor& into) {
  const auto* const codes = gradients.codes.const_data_ptr<std::uint8_t>();
  const auto* const scales = gradients.scales.const_data_ptr<float>();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, into.scalar_type(), "read_fp8", [&] {
    auto* const numbers = into.mutable_data_ptr<scalar_t>();
    for (std::size_t slot = 0; slot < slots_of(unit); ++slot) {
      const std::int64_t begin = unit.parameters[slot].shard_offset;
      const float scale = scales[slot];
      at::parallel_for(begin, begin + elements_until_next(unit, slot), kGrain,
                       [&](std::int64_t first, std::int64_t end) {
                         kernels::on_widest([&] {
                           VRAMFIT_INDEPENDENT_ELEMENTS
                           for (std::int64_t i = first; i < end; ++i)
                             numbers[i] = static_cast<scalar_t>(E4m3::value(codes[i]) * scale);
                         });
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

void add_fp8_gradient_runs(ProgramRunner& runner, const UnitLayout& layout) {
  using program::Kernel;
  const auto unit_of = [&layout](Operands& o) -> const Unit& { return layout.units[at_index(o.run().unit)]; };
  runner.on(Kernel::add_fp8, [](Operands& o) {
    const at::Tensor gradient = o.view(0), codes = o.view(1), scale = o.view(2);
    o.has(3) ? add_to_fp8_gradient_by_calls(gradient, codes, scale, o[3])
             : add_to_fp8_gradient_on_cpu(gradient, codes, scale);
  });
  runner.on(Kernel::sum_fp8, [unit_of](Operands& o) {
    const UnitGradients all{o[0], o[1], {}}, sum{o[2], o[3], {}};
    o.has(4) ? sum_fp8_gradients_by_calls(unit_of(o), all, sum, o[4]) : sum_fp8_gradients_on_cpu(unit_of(o), all, sum);
  });
  runner.on(Kernel::read_fp8, [unit_of](Operands& o) {
    const UnitGradients gradients{o[0], o[1], o.has(2) ? o[2] : at::Tensor()};
    o[3].is_cpu() ? read_fp8_gradients_on_cpu(unit_of(o), gradients, o[3])
                  : read_fp8_gradients_by_calls(unit_of(o), gradients, o[3]);
  });
}

}  // namespace vramfit
