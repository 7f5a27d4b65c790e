// AdamW whose averages are codes in blocks. A warp has a block: it reads codes, gradient and parameters once, updates
// in registers, and writes codes by the block's largest magnitude. The formulas are those of CPU ranks, by the same
// headers.
#include "executor/kernels/functions.h"
#include "executor/kernels/numbers.cuh"
#include "executor/optimizers/block_codes.h"

namespace vramfit::cuda {

namespace {

/// What codes stand for and are found by, as a parameter of the kernel, which copies it to where threads may read
/// different places at once.
template <typename Codes>
struct Table {
  float values[Codes::kValues.size()];
};
template <int kDecades, bool kSigned>
struct Table<DynamicCodes<kDecades, kSigned>> {
  using Codes = DynamicCodes<kDecades, kSigned>;
  float values[Codes::kValues.size()];
  typename Codes::Decade decades[Codes::kDecades.size()];
};

template <typename Codes>
Table<Codes> table_of(Codes /*codes*/) {
  Table<Codes> table{};
  std::copy(Codes::kValues.begin(), Codes::kValues.end(), table.values);
  return table;
}
template <int kDecades, bool kSigned>
auto table_of(DynamicCodes<kDecades, kSigned> /*codes*/) {
  using Codes = DynamicCodes<kDecades, kSigned>;
  Table<Codes> table{};
  std::copy(Codes::kValues.begin(), Codes::kValues.end(), table.values);
  std::copy(Codes::kDecades.begin(), Codes::kDecades.end(), table.decades);
  return table;
}

template <typename Codes>
__device__ void copy_decades(const Table<Codes>& /*from*/, Table<Codes>& /*to*/) {}
template <int kDecades, bool kSigned>
__device__ void copy_decades(const Table<DynamicCodes<kDecades, kSigned>>& from,
                             Table<DynamicCodes<kDecades, kSigned>>& to) {
  for (int k = 0; k < kDecades; ++k) to.decades[k] = from.decades[k];
}

template <typename Codes>
__device__ std::int32_t encode(const Table<Codes>& /*table*/, float x) {
  return Codes::encode(x);
}
template <int kDecades, bool kSigned>
__device__ std::int32_t encode(const Table<DynamicCodes<kDecades, kSigned>>& table, float x) {
  return DynamicCodes<kDecades, kSigned>::encode(table.decades, x);
}

/// The largest magnitude of a block, of which each thread of a warp has some; NaN if there is one.
template <int kEach>
__device__ float largest_magnitude_of_warp(const float (&values)[kEach]) {
  std::int32_t largest = 0;
  for (const float value : values) largest = std::max(largest, __float_as_int(std::fabs(value)));
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    constexpr unsigned kAll = 0xFFFFFFFFU;
    largest = std::max(largest, __shfl_xor_sync(kAll, largest, distance));
  }
  return __int_as_float(largest);
}

/// A block's codes and scale, of which a thread has kEach elements.
template <typename Codes, int kEach>
struct Coded {
  static constexpr int kBytes = kEach / static_cast<int>(Codes::kPerByte);
  const Table<Codes>& table;
  std::uint8_t* codes;  // the thread's
  float* scale;         // the block's

  __device__ void decode(float (&values)[kEach]) const {
    const Pack<std::uint8_t, kBytes> bytes = read<kBytes>(codes);
    const float by = *scale;
    for (int i = 0; i < kBytes; ++i) {
      if constexpr (Codes::kPerByte == 1) {
        values[i] = table.values[bytes.at[i]] * by;
      } else {
        values[2 * i] = table.values[bytes.at[i] & 0xF] * by;
        values[2 * i + 1] = table.values[bytes.at[i] >> 4] * by;
      }
    }
  }

  __device__ void encode(const float (&values)[kEach], bool is_first) const {
    const float new_scale = largest_magnitude_of_warp(values) / Codes::kLargest;
    const float inverse = inverse_of_scale(new_scale);
    Pack<std::uint8_t, kBytes> bytes;
    for (int i = 0; i < kBytes; ++i) {
      if constexpr (Codes::kPerByte == 1) {
        bytes.at[i] = static_cast<std::uint8_t>(cuda::encode(table, values[i] * inverse));
      } else {
        const std::int32_t low = cuda::encode(table, values[2 * i] * inverse);
        const std::int32_t high = cuda::encode(table, values[2 * i + 1] * inverse);
        bytes.at[i] = static_cast<std::uint8_t>(low | high << 4);
      }
    }
    write(codes, bytes);
    if (is_first) *scale = new_scale;
  }
};

template <typename T, int kEach>
__device__ void update_values(const AdamNumbers& numbers, const AdamwUpdate& update, std::int64_t begin,
                              float (&m)[kEach], float (&v)[kEach]) {
  T* const parameters = static_cast<T*>(update.parameters) + begin;
  Pack<T, kEach> p = read<kEach>(parameters);
  const Pack<float, kEach> g = gradients_from(update, 0).pack<kEach>(begin);
  const float divisor = update.gradient_divisor == nullptr ? 1.0F : *update.gradient_divisor;
  for (int i = 0; i < kEach; ++i) {
    const float gradient = g.at[i] / divisor;
    m[i] = numbers.first(m[i], gradient);
    v[i] = numbers.second(v[i], gradient);
    p.at[i] = rounded<T>(numbers.parameter(to_float(p.at[i]), m[i], v[i]));
  }
  write(parameters, p);
}

template <typename First, typename Second, int kBlock, typename T>
__global__ void update_blocks(const __grid_constant__ AdamwUpdate update,
                              const __grid_constant__ CodedAverages averages,
                              const __grid_constant__ Table<First> first_table,
                              const __grid_constant__ Table<Second> second_table) {
  constexpr int kEach = kBlock / kWarp;
  __shared__ Table<First> first;
  __shared__ Table<Second> second;
  __shared__ AdamNumbers numbers;
  for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(First::kValues.size()); i += kThreads) {
    first.values[i] = first_table.values[i];
    second.values[i] = second_table.values[i];
  }
  if (threadIdx.x == 0) {
    copy_decades(first_table, first);
    copy_decades(second_table, second);
    numbers = AdamNumbers(update.rates, static_cast<double>(*update.steps));
  }
  __syncthreads();
  if (update.found_inf != nullptr && *update.found_inf != 0) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (blockDim.x / kWarp);
  for (std::int64_t block = thread / kWarp; block < update.elements / kBlock; block += warps) {
    const std::int64_t begin = block * kBlock + lane * kEach;
    const Coded<First, kEach> of_first{first, averages.first + begin / First::kPerByte, averages.first_scales + block};
    const Coded<Second, kEach> of_second{second, averages.second + begin / Second::kPerByte,
                                         averages.second_scales + block};
    float m[kEach], v[kEach];
    of_first.decode(m);
    of_second.decode(v);
    update_values<T>(numbers, update, begin, m, v);
    of_first.encode(m, lane == 0);
    of_second.encode(v, lane == 0);
  }
}

template <typename First, typename Second, int kBlock>
int launch_blocks(const AdamwUpdate& update, const CodedAverages& averages, Stream stream) {
  const unsigned blocks = blocks_for(update.elements / kBlock * kWarp);
  return with_number(update.number, [&](auto number) {
    return launch(update_blocks<First, Second, kBlock, decltype(number)>, blocks, kThreads, stream, update, averages,
                  table_of(First{}), table_of(Second{}));
  });
}

}  // namespace

int update_coded(const AdamwUpdate& update, const CodedAverages& averages, Stream stream) {
  if (averages.kind == StateCodes::eight_bits) {
    return launch_blocks<DynamicCodes<7, true>, DynamicCodes<7, false>, 256>(update, averages, stream);
  }
  if (averages.kind == StateCodes::four_bits) {
    return launch_blocks<DynamicCodes<3, true>, SixteenthCodes, 128>(update, averages, stream);
  }
  return launch_blocks<E4m3Codes<true>, E4m3Codes<false>, 256>(update, averages, stream);
}

}  // namespace vramfit::cuda
