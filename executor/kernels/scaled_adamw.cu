// AdamW whose averages are numbers of 8 and 16 bits with a scale for each parameter. A scale follows from the largest
// of all its new averages, so one kernel finds these and the next computes the averages again and writes them. The
// formulas are those of CPU ranks, by the same headers.
#include "executor/kernels/functions.h"
#include "executor/kernels/numbers.cuh"
#include "executor/ops/e4m3.h"
#include "executor/optimizers/tensor_scales.h"

namespace vramfit::cuda {

namespace {

constexpr int kScaledPack = 4;

__device__ std::int32_t bits_of_size(float x) { return __float_as_int(std::fabs(x)); }

__global__ void begin_scales(AdamwUpdate update, ScaledAverages averages) {
  const int thread = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (thread == 0 && (update.found_inf == nullptr || *update.found_inf == 0)) *update.steps += 1;
  if (thread >= averages.parameters) return;
  averages.numbers[thread] = {.largest_first = 0,
                              .largest_second = 0,
                              .first_scale = averages.first_scales[thread],
                              .second_scale = averages.second_scales[thread]};
}

struct Averages {
  float first, second;
};

/// A parameter's numbers, or those of a pack.
template <typename T, typename Gradients>
struct ScaledElements {
  T* parameters;
  Gradients gradients;  // of which [i] is a number in fp32
  std::uint8_t* codes;
  Float16* halves;
  float first_scale, second_scale;  // before the update
  float divisor;

  __device__ Averages averages(const AdamNumbers& numbers, std::int64_t i) const {
    const float gradient = gradients[i] / divisor;
    return {numbers.first(E4m3::value(codes[i]) * first_scale, gradient),
            numbers.second(to_float(halves[i]) * second_scale, gradient)};
  }

  /// Visits all elements of the parameter that are the thread's: visit(numbers, element), those of a pack with the
  /// pack's numbers, which are written afterwards where `writes`.
  template <bool writes, typename Visit>
  __device__ void each(std::int64_t count, const Visit& visit) const {
    const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x, packs = count / kScaledPack;
    for (std::int64_t pack = thread; pack < packs; pack += step) {
      const std::int64_t begin = pack * kScaledPack;
      const Pack<float, kScaledPack> g = gradients.template pack<kScaledPack>(begin);
      Pack<std::uint8_t, kScaledPack> c = read<kScaledPack>(codes + begin);
      Pack<Float16, kScaledPack> h = read<kScaledPack>(halves + begin);
      Pack<T, kScaledPack> p{};
      if constexpr (writes) p = read<kScaledPack>(parameters + begin);
      const ScaledElements<T, const float*> own{p.at, g.at, c.at, h.at, first_scale, second_scale, divisor};
      for (int k = 0; k < kScaledPack; ++k) visit(own, k);
      if constexpr (writes) {
        write(parameters + begin, p);
        write(codes + begin, c);
        write(halves + begin, h);
      }
    }
    const std::int64_t last = packs * kScaledPack + thread;
    if (last < count) visit(*this, last);
  }
};

template <typename T>
__device__ ScaledElements<T, AnyNumbers> elements_of(const AdamwUpdate& update, const ScaledAverages& averages,
                                                     const ScaledStretch& stretch) {
  const ScaledNumbers& before = averages.numbers[stretch.parameter];
  return {.parameters = static_cast<T*>(update.parameters) + stretch.offset,
          .gradients = gradients_from(update, stretch.offset),
          .codes = averages.first + stretch.offset,
          .halves = static_cast<Float16*>(averages.second) + stretch.offset,
          .first_scale = before.first_scale,
          .second_scale = before.second_scale,
          .divisor = update.gradient_divisor == nullptr ? 1.0F : *update.gradient_divisor};
}

/// The largest of whole numbers is the same in whichever order threads come.
template <typename T>
__global__ void find_largest(AdamwUpdate update, ScaledAverages averages, ScaledStretch stretch) {
  __shared__ AdamNumbers numbers;
  __shared__ std::int32_t largest_first;
  __shared__ std::int32_t largest_second;
  if (threadIdx.x == 0) {
    numbers = AdamNumbers(update.rates, static_cast<double>(*update.steps));
    largest_first = largest_second = 0;
  }
  __syncthreads();
  if (update.found_inf != nullptr && *update.found_inf != 0) return;
  std::int32_t of_first = 0, of_second = 0;
  const auto add = [&](const auto& own, std::int64_t i) {
    const Averages average = own.averages(numbers, i);
    of_first = std::max(of_first, bits_of_size(average.first));
    of_second = std::max(of_second, bits_of_size(average.second));
  };
  elements_of<T>(update, averages, stretch).template each<false>(stretch.elements, add);
  of_first = largest_of_warp(of_first);
  of_second = largest_of_warp(of_second);
  if (threadIdx.x % kWarp == 0) {
    atomicMax(&largest_first, of_first);
    atomicMax(&largest_second, of_second);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  atomicMax(&averages.numbers[stretch.parameter].largest_first, largest_first);
  atomicMax(&averages.numbers[stretch.parameter].largest_second, largest_second);
}

template <typename T>
__global__ void update_with_scales(AdamwUpdate update, ScaledAverages averages, ScaledStretch stretch) {
  __shared__ AdamNumbers numbers;
  if (threadIdx.x == 0) numbers = AdamNumbers(update.rates, static_cast<double>(*update.steps));
  __syncthreads();
  if (update.found_inf != nullptr && *update.found_inf != 0) return;
  const ScaledNumbers& found = averages.numbers[stretch.parameter];
  constexpr ScaledFormat kFirst = kE4m3Format, kSecond = kF16Format;
  const float first_scale = scale_of(__int_as_float(found.largest_first), kFirst);
  const float second_scale = scale_of(__int_as_float(found.largest_second), kSecond);
  const float of_first = 1 / first_scale, of_second = 1 / second_scale;  // powers of two
  const auto change = [&](const auto& own, std::int64_t i) {
    const Averages average = own.averages(numbers, i);
    const float m = average.first, v = average.second;
    own.parameters[i] = rounded<T>(numbers.parameter(to_float(own.parameters[i]), m, v));
    own.codes[i] = static_cast<std::uint8_t>(E4m3::code(m * of_first));
    own.halves[i] = rounded<Float16>(v > 0 ? std::max(v * of_second, +kLeastF16) : v);
  };
  elements_of<T>(update, averages, stretch).template each<true>(stretch.elements, change);
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  averages.first_scales[stretch.parameter] = first_scale;
  averages.second_scales[stretch.parameter] = second_scale;
}

}  // namespace

int begin_scaled(const AdamwUpdate& update, const ScaledAverages& averages, Stream stream) {
  return launch(begin_scales, blocks_for(averages.parameters), kThreads, stream, update, averages);
}

int update_scaled(const AdamwUpdate& update, const ScaledAverages& averages, const ScaledStretch& stretch,
                  Stream stream) {
  const unsigned blocks = blocks_for(stretch.elements / kScaledPack);
  return with_number(update.number, [&](auto number) {
    using T = decltype(number);
    const int found = launch(find_largest<T>, blocks, kThreads, stream, update, averages, stretch);
    return found != 0 ? found : launch(update_with_scales<T>, blocks, kThreads, stream, update, averages, stretch);
  });
}

}  // namespace vramfit::cuda
