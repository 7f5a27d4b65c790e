// AdamW whose averages or gradients are numbers of another dtype than the parameters, or whose parameters are rounded
// stochastically. Each number is read and written once, four by a thread at a time.
#include "executor/kernels/functions.h"
#include "executor/kernels/numbers.cuh"
#include "executor/training/counter_random.h"

namespace vramfit::cuda {

namespace {

constexpr int kPack = 4;

__global__ void count(AdamwUpdate update) {
  if (update.found_inf == nullptr || *update.found_inf == 0) *update.steps += 1;
}

struct ToNearest {
  template <typename T>
  __device__ T of(float x, std::int64_t /*element*/) const {
    return rounded<T>(x);
  }
};

/// Of the 16 bits that bf16 lacks, a random number of as many carries over with their odds. NaN stays NaN.
struct Stochastic {
  RoundedStretch stretch;

  template <typename T>
  __device__ Bfloat16 of(float x, std::int64_t element) const {
    const std::uint64_t word = random_word(stretch.key, static_cast<std::uint64_t>(stretch.first + element));
    const std::uint32_t carried = __float_as_uint(x) + static_cast<std::uint32_t>(word >> 48U);
    return {x == x ? static_cast<std::uint16_t>(carried >> 16U) : kNanOfBfloat16};
  }
};

template <typename T, typename State, typename Gradients>
struct Elements {
  T* parameters;
  Gradients gradients;  // of which [i] is a number in fp32
  State *first, *second;
  float divisor;

  template <typename Round>
  __device__ void update(const AdamNumbers& numbers, std::int64_t i, const Round& round) const {
    const float gradient = gradients[i] / divisor;
    const float m = numbers.first(to_float(first[i]), gradient), v = numbers.second(to_float(second[i]), gradient);
    parameters[i] = round.template of<T>(numbers.parameter(to_float(parameters[i]), m, v), i);
    first[i] = rounded<State>(m);
    second[i] = rounded<State>(v);
  }

  template <typename Round>
  __device__ void update_pack(const AdamNumbers& numbers, std::int64_t i, const Round& round) const {
    Pack<T, kPack> p = read<kPack>(parameters + i);
    const Pack<float, kPack> g = gradients.template pack<kPack>(i);
    Pack<State, kPack> m = read<kPack>(first + i), v = read<kPack>(second + i);
    const Elements<T, State, const float*> own{p.at, g.at, m.at, v.at, divisor};
    for (int k = 0; k < kPack; ++k) own.update(numbers, k, Shifted<Round>{round, i});
    write(parameters + i, p);
    write(first + i, m);
    write(second + i, v);
  }

  /// Elements of a pack are counted from its first.
  template <typename Round>
  struct Shifted {
    const Round& round;
    std::int64_t begin;
    template <typename N>
    __device__ N of(float x, std::int64_t element) const {
      return round.template of<N>(x, begin + element);
    }
  };
};

template <typename T, typename State, typename Round>
__global__ void update_elements(AdamwUpdate update, PlainAverages averages, std::int64_t offset, Round round) {
  __shared__ AdamNumbers numbers;
  if (threadIdx.x == 0) numbers = AdamNumbers(update.rates, static_cast<double>(*update.steps));
  __syncthreads();
  if (update.found_inf != nullptr && *update.found_inf != 0) return;
  const Elements<T, State, AnyNumbers> elements{
      static_cast<T*>(update.parameters) + offset, gradients_from(update, offset),
      static_cast<State*>(averages.first) + offset, static_cast<State*>(averages.second) + offset,
      update.gradient_divisor == nullptr ? 1.0F : *update.gradient_divisor};
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x, packs = update.elements / kPack;
  for (std::int64_t pack = thread; pack < packs; pack += step) elements.update_pack(numbers, pack * kPack, round);
  const std::int64_t last = packs * kPack + thread;
  if (last < update.elements) elements.update(numbers, last, round);
}

template <typename T, typename State, typename Round>
int launch_update(const AdamwUpdate& update, const PlainAverages& averages, std::int64_t offset, const Round& round,
                  Stream stream) {
  return launch(update_elements<T, State, Round>, blocks_for(update.elements / kPack), kThreads, stream, update,
                averages, offset, round);
}

template <typename T, typename Round>
int launch_any(const AdamwUpdate& update, const PlainAverages& averages, std::int64_t offset, const Round& round,
               Stream stream) {
  return averages.number == Number::f32 ? launch_update<T, float>(update, averages, offset, round, stream)
                                        : launch_update<T, Bfloat16>(update, averages, offset, round, stream);
}

}  // namespace

int count_update(const AdamwUpdate& update, Stream stream) { return launch(count, 1, 1, stream, update); }

int update_plain(const AdamwUpdate& update, const PlainAverages& averages, Stream stream) {
  return with_number(update.number, [&](auto number) {
    return launch_any<decltype(number)>(update, averages, 0, ToNearest{}, stream);
  });
}

int update_rounding(const AdamwUpdate& update, const PlainAverages& averages, const RoundedStretch& stretch,
                    Stream stream) {
  AdamwUpdate part = update;
  part.elements = stretch.elements;
  return launch_any<Bfloat16>(part, averages, stretch.offset, Stochastic{stretch}, stream);
}

}  // namespace vramfit::cuda
