// Numbers of 8 and 16 bits with one scale: read, and made of fp32 numbers. Their scale follows from the largest of all,
// so one kernel finds that, in the place of the scale, and another one rounds.
#include "executor/kernels/functions.h"
#include "executor/kernels/numbers.cuh"
#include "executor/ops/e4m3.h"
#include "executor/optimizers/tensor_scales.h"

namespace vramfit::cuda {

namespace {

constexpr int kPackOfScaled = 4;

__device__ float number_of(std::uint8_t code) { return E4m3::value(code); }
__device__ float number_of(Float16 half) { return to_float(half); }

template <typename From, typename To>
__global__ void multiply(const From* from, const float* scale, To* to, std::int64_t elements, bool is_aligned) {
  const float factor = *scale;
  each_part<kPackOfScaled>(elements, is_aligned, [&](const Part<kPackOfScaled>& part) {
    const Pack<From, kPackOfScaled> stored = part.read(from);
    Pack<To, kPackOfScaled> numbers{};
    for (int i = 0; i < kPackOfScaled; ++i) numbers.at[i] = rounded<To>(number_of(stored.at[i]) * factor);
    part.write(to, numbers);
  });
}

/// By their bits magnitudes are ordered; what is no number counts as larger than all.
__global__ void forget_largest(std::int32_t* largest) { *largest = 0; }

__global__ void find_largest_number(const float* from, std::int32_t* largest, std::int64_t elements, bool is_aligned) {
  __shared__ std::int32_t largest_of_block;
  if (threadIdx.x == 0) largest_of_block = 0;
  __syncthreads();
  std::int32_t own = 0;
  each_part<kPackOfScaled>(elements, is_aligned, [&](const Part<kPackOfScaled>& part) {
    const Pack<float, kPackOfScaled> numbers = part.read(from);
    for (const float x : numbers.at) own = std::max(own, __float_as_int(std::fabs(x)));
  });
  own = largest_of_warp(own);
  if (threadIdx.x % kWarp == 0) atomicMax(&largest_of_block, own);
  __syncthreads();
  if (threadIdx.x == 0) atomicMax(largest, largest_of_block);
}

__global__ void make_scale(const std::int32_t* largest, float* scale) {
  constexpr ScaledFormat kFormat = kF16Format;
  *scale = scale_of(__int_as_float(*largest), kFormat);
}

__global__ void divide(const float* from, const float* scale, Float16* to, std::int64_t elements, bool is_aligned) {
  const float inverse = 1 / *scale;  // of a power of two
  each_part<kPackOfScaled>(elements, is_aligned, [&](const Part<kPackOfScaled>& part) {
    const Pack<float, kPackOfScaled> numbers = part.read(from);
    Pack<Float16, kPackOfScaled> halves{};
    for (int i = 0; i < kPackOfScaled; ++i) halves.at[i] = rounded<Float16>(numbers.at[i] * inverse);
    part.write(to, halves);
  });
}

template <typename From>
int launch_multiply(const ScaledRange& range, void* to, Number number, Stream stream) {
  const From* const from = static_cast<const From*>(range.stored);
  return with_number(number, [&](auto made) {
    using To = decltype(made);
    To* const numbers = static_cast<To*>(to);
    return launch(multiply<From, To>, blocks_for(range.elements / kPackOfScaled), kThreads, stream, from, range.scale,
                  numbers, range.elements,
                  begins_with_pack<kPackOfScaled>(from) && begins_with_pack<kPackOfScaled>(numbers));
  });
}

}  // namespace

int read_scaled(const ScaledRange& range, void* to, Number number, Stream stream) {
  return range.is_e4m3 ? launch_multiply<std::uint8_t>(range, to, number, stream)
                       : launch_multiply<Float16>(range, to, number, stream);
}

int round_scaled(const float* from, const ScaledRange& range, Stream stream) {
  auto* const largest = reinterpret_cast<std::int32_t*>(range.scale);
  auto* const to = static_cast<Float16*>(range.stored);
  const unsigned blocks = blocks_for(range.elements / kPackOfScaled);
  const bool is_aligned = begins_with_pack<kPackOfScaled>(from) && begins_with_pack<kPackOfScaled>(to);
  int status = launch(forget_largest, 1, 1, stream, largest);
  if (status == 0) {
    status = launch(find_largest_number, blocks, kThreads, stream, from, largest, range.elements, is_aligned);
  }
  if (status == 0) status = launch(make_scale, 1, 1, stream, largest, range.scale);
  if (status == 0) {
    status = launch(divide, blocks, kThreads, stream, from, range.scale, to, range.elements, is_aligned);
  }
  return status;
}

}  // namespace vramfit::cuda
