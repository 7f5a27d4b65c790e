// Adafactor by the formulas of CPU ranks (executor/optimizers/adafactor.cpp). A warp has a row of a parameter, and a
// vector is one row. Sums over rows are those of blocks, which one block adds up; sums over a column have a lane.
#include <cmath>

#include "executor/kernels/functions.h"
#include "executor/kernels/numbers.cuh"

namespace vramfit::cuda {

namespace {

constexpr int kPackOfParameter = 4;
static_assert(kAdafactorRowsOfBlock == kThreads / kWarp, "a warp has a row");
/// Of a block that sums over columns, and rows that a lane adds up in fp32 before it adds them to its sum in fp64.
constexpr int kThreadsOfColumns = 1024, kRowsInFp32 = 16;

/// What all elements of an update share.
struct Rates {
  float divisor, share, kept, epsilon;
  double rate;

  Rates() = default;
  __device__ explicit Rates(const AdafactorUpdate& update)
      : divisor(update.gradient_divisor == nullptr ? 1.0F : *update.gradient_divisor),
        share(static_cast<float>(std::pow(static_cast<double>(*update.steps), -update.rates.beta2_decay))),
        kept(static_cast<float>(1 - update.rates.learning_rate * update.rates.weight_decay)),
        epsilon(static_cast<float>(update.rates.eps1)),
        rate(std::min(update.rates.learning_rate, 1 / std::sqrt(static_cast<double>(*update.steps)))) {}

  __device__ float moved(float average, double mean) const {
    return average + share * (static_cast<float>(mean) - average);
  }
};

__device__ bool is_skipped(const AdafactorUpdate& update) {
  return update.found_inf != nullptr && *update.found_inf != 0;
}

__device__ double squared(float x) { return static_cast<double>(x) * static_cast<double>(x); }

/// A parameter's rows as warps take them.
template <typename T>
struct Rows {
  T* parameters;
  AnyNumbers gradients;
  std::int64_t rows, columns;
  bool is_aligned;

  Rows(const AdafactorUpdate& update, const AdafactorParameter& p)
      : parameters(static_cast<T*>(update.parameters) + p.offset),
        gradients(gradients_from(update, p.offset)),
        rows(p.columns > 1 ? p.rows : std::min<std::int64_t>(p.rows, 1)),
        columns(p.columns > 1 ? p.columns : p.rows),
        is_aligned(columns % kPackOfParameter == 0 && begins_with_pack<kPackOfParameter>(parameters) &&
                   begins_with_pack<kPackOfParameter>(gradients)) {}

  template <typename Visit>
  __device__ void each_row(const Visit& visit) const {
    const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
    const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x / kWarp;
    for (std::int64_t row = first; row < rows; row += step) visit(row);
  }
  /// visit(part) for the lane's parts of a row.
  template <typename Visit>
  __device__ void each_part(const Visit& visit) const {
    const std::int64_t lane = threadIdx.x % kWarp;
    for (std::int64_t begin = lane * kPackOfParameter; begin < columns; begin += kWarp * kPackOfParameter) {
      visit(Part<kPackOfParameter>{begin, columns - begin, is_aligned});
    }
  }
  __device__ Pack<float, kPackOfParameter> gradient(const Part<kPackOfParameter>& part, std::int64_t row) const {
    const std::int64_t begin = row * columns + part.begin;
    if (part.is_aligned && part.there >= kPackOfParameter) return gradients.pack<kPackOfParameter>(begin);
    Pack<float, kPackOfParameter> pack{};
    for (int i = 0; i < kPackOfParameter; ++i) {
      if (i < part.there) pack.at[i] = gradients[begin + i];
    }
    return pack;
  }
};

/// Over the lanes of a warp, in an order that is the same each time.
__device__ double sum_of_warp(double mine) {
  constexpr unsigned kAll = 0xFFFFFFFFU;
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const std::int64_t bits = __double_as_longlong(mine);
    const auto low = static_cast<std::uint32_t>(__shfl_xor_sync(kAll, static_cast<std::int32_t>(bits), distance));
    const std::int32_t high = __shfl_xor_sync(kAll, static_cast<std::int32_t>(bits >> 32), distance);
    mine += __longlong_as_double(static_cast<std::int64_t>(high) * (std::int64_t{1} << 32) + low);
  }
  return mine;
}

/// What each warp has, of which every lane has the same, to `into` of the block.
__device__ void sum_of_block(double mine, double* into) {
  __shared__ double warps[kAdafactorRowsOfBlock];
  __syncthreads();  // every thread has read what was there before
  if (threadIdx.x % kWarp == 0) warps[threadIdx.x / kWarp] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double sum = 0;
  for (int warp = 0; warp < kAdafactorRowsOfBlock; ++warp) sum += warps[warp];
  into[blockIdx.x] = sum;
}

__device__ void share_rates(const AdafactorUpdate& update, Rates& rates) {
  if (threadIdx.x == 0) rates = Rates(update);
  __syncthreads();
}

/// Moves the averages of rows, and sums over the block's rows: those averages, and the parameter's squares.
template <typename T>
__global__ void find_rows(AdafactorUpdate update, AdafactorParameter p, Rows<T> own) {
  __shared__ Rates rates;
  share_rates(update, rates);
  if (is_skipped(update)) return;
  double averages = 0, squares = 0;
  own.each_row([&](std::int64_t row) {
    double of_gradients = 0, of_parameters = 0;
    own.each_part([&](const Part<kPackOfParameter>& part) {
      const Pack<float, kPackOfParameter> g = own.gradient(part, row);
      const Pack<T, kPackOfParameter> x = part.read(own.parameters + row * own.columns);
      for (int k = 0; k < kPackOfParameter && k < part.there; ++k) {
        of_gradients += squared(g.at[k] / rates.divisor);
        of_parameters += squared(to_float(x.at[k]));
      }
    });
    squares += sum_of_warp(of_parameters);
    if (p.columns == 1) return;
    const float average = rates.moved(p.rows_averages[row], sum_of_warp(of_gradients) / static_cast<double>(p.columns));
    averages += static_cast<double>(average);
    if (threadIdx.x % kWarp == 0) p.rows_averages[row] = average;
  });
  sum_of_block(averages, update.partial);
  sum_of_block(squares, update.partial + gridDim.x);
}

/// The gradient's squares over each column.
__global__ void __launch_bounds__(kThreadsOfColumns) find_columns(AdafactorUpdate update, AdafactorParameter p) {
  constexpr int kWarpsOfColumns = kThreadsOfColumns / kWarp;
  __shared__ double sums[kWarpsOfColumns][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kWarp + lane;
  double sum = 0;
  if (column < p.columns && !is_skipped(update)) {
    const float divisor = update.gradient_divisor == nullptr ? 1.0F : *update.gradient_divisor;
    const AnyNumbers gradients = gradients_from(update, p.offset + column);
    for (std::int64_t first = warp; first < p.rows; first += kWarpsOfColumns * kRowsInFp32) {
      float part = 0;
      for (int k = 0; k < kRowsInFp32; ++k) {
        const std::int64_t row = first + static_cast<std::int64_t>(k) * kWarpsOfColumns;
        if (row >= p.rows) break;
        const float g = gradients[row * p.columns] / divisor;
        part += g * g;
      }
      sum += static_cast<double>(part);
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= p.columns) return;
  double all = 0;
  for (int other = 0; other < kWarpsOfColumns; ++other) all += sums[other][lane];
  p.sums[column] = static_cast<float>(all);
}

/// What blocks have, added up by one warp: their first sums, their second ones, or both (null: unwanted). Nothing where
/// the step is skipped.
__global__ void add_partials(AdafactorUpdate update, unsigned blocks, float* first, float* second) {
  double sums[2] = {0, 0};
  for (unsigned block = threadIdx.x; block < blocks && !is_skipped(update); block += kWarp) {
    if (first != nullptr) sums[0] += update.partial[block];
    if (second != nullptr) sums[1] += update.partial[blocks + block];
  }
  const double all[2] = {sum_of_warp(sums[0]), sum_of_warp(sums[1])};
  if (threadIdx.x != 0) return;
  if (first != nullptr) *first = static_cast<float>(all[0]);
  if (second != nullptr) *second = static_cast<float>(all[1]);
}

/// Averages of columns, or of a vector's elements.
__global__ void move_averages(AdafactorUpdate update, AdafactorParameter p) {
  __shared__ Rates rates;
  share_rates(update, rates);
  if (is_skipped(update)) return;
  const AnyNumbers gradients = gradients_from(update, p.offset);
  const std::int64_t numbers = p.columns > 1 ? p.columns : p.rows;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < numbers; i += step) {
    const double mean = p.columns > 1 ? static_cast<double>(p.sums[i]) / static_cast<double>(p.all_rows)
                                      : squared(gradients[i] / rates.divisor);
    p.columns_averages[i] = rates.moved(p.columns_averages[i], mean);
  }
}

/// By what a row's averages of columns are multiplied; the elements of a vector have their own.
__device__ float factor_of(const AdafactorParameter& p, const Rates& rates, std::int64_t row) {
  if (p.columns == 1) return 1;
  const float mean = p.sums[p.columns] / static_cast<float>(p.all_rows);
  return p.rows_averages[row] / std::max(mean, rates.epsilon);
}

/// What an element loses, before the factor that all have.
__device__ float change_of(const AdafactorParameter& p, const Rates& rates, float factor, std::int64_t i, float g) {
  return g / rates.divisor / std::sqrt(std::max(p.columns_averages[i] * factor, rates.epsilon * rates.epsilon));
}

template <typename T>
__global__ void find_changes(AdafactorUpdate update, AdafactorParameter p, Rows<T> own) {
  __shared__ Rates rates;
  share_rates(update, rates);
  if (is_skipped(update)) return;
  double squares = 0;
  own.each_row([&](std::int64_t row) {
    const float factor = factor_of(p, rates, row);
    double of_row = 0;
    own.each_part([&](const Part<kPackOfParameter>& part) {
      const Pack<float, kPackOfParameter> g = own.gradient(part, row);
      for (int k = 0; k < kPackOfParameter && k < part.there; ++k) {
        of_row += squared(change_of(p, rates, factor, part.begin + k, g.at[k]));
      }
    });
    squares += sum_of_warp(of_row);
  });
  sum_of_block(squares, update.partial);
}

template <typename T>
__global__ void update_rows(AdafactorUpdate update, AdafactorParameter p, Rows<T> own) {
  __shared__ Rates rates;
  __shared__ float lost;
  if (threadIdx.x == 0) {
    rates = Rates(update);
    const double elements = static_cast<double>(p.all_rows) * static_cast<double>(p.columns);
    const double squares = static_cast<double>(p.sums[p.columns > 1 ? p.columns + 1 : 0]);
    const double size = std::max(update.rates.eps2, std::sqrt(squares / elements));
    const double excess = std::sqrt(static_cast<double>(*p.change_sum) / elements) / update.rates.update_clip;
    lost = static_cast<float>(size * rates.rate / std::max(1.0, excess));
  }
  __syncthreads();
  if (is_skipped(update)) return;
  own.each_row([&](std::int64_t row) {
    const float factor = factor_of(p, rates, row);
    own.each_part([&](const Part<kPackOfParameter>& part) {
      const Pack<float, kPackOfParameter> g = own.gradient(part, row);
      Pack<T, kPackOfParameter> x = part.read(own.parameters + row * own.columns);
      for (int k = 0; k < kPackOfParameter && k < part.there; ++k) {
        const float change = change_of(p, rates, factor, part.begin + k, g.at[k]);
        x.at[k] = rounded<T>(to_float(x.at[k]) * rates.kept - lost * change);
      }
      part.write(own.parameters + row * own.columns, x);
    });
  });
}

/// As many as have partial sums, at most.
template <typename T>
unsigned blocks_of(const Rows<T>& own) {
  return std::min(blocks_for(own.rows * kWarp), static_cast<unsigned>(kAdafactorBlocks));
}

}  // namespace

int adafactor_sums(const AdafactorUpdate& update, const AdafactorParameter& p, Stream stream) {
  return with_number(update.number, [&](auto number) {
    using T = decltype(number);
    const Rows<T> own(update, p);
    const unsigned blocks = blocks_of(own);
    int status = launch(find_rows<T>, blocks, kThreads, stream, update, p, own);
    const bool is_matrix = p.columns > 1;
    if (is_matrix && status == 0) {
      const auto groups = static_cast<unsigned>((p.columns + kWarp - 1) / kWarp);
      status = launch(find_columns, groups, kThreadsOfColumns, stream, update, p);
    }
    if (status != 0) return status;
    float* const averages = is_matrix ? p.sums + p.columns : nullptr;
    return launch(add_partials, 1, kWarp, stream, update, blocks, averages, p.sums + (is_matrix ? p.columns + 1 : 0));
  });
}

int adafactor_change_sums(const AdafactorUpdate& update, const AdafactorParameter& p, Stream stream) {
  return with_number(update.number, [&](auto number) {
    using T = decltype(number);
    const Rows<T> own(update, p);
    const unsigned blocks = blocks_of(own);
    int status = launch(move_averages, blocks_for(own.columns), kThreads, stream, update, p);
    if (status == 0) status = launch(find_changes<T>, blocks, kThreads, stream, update, p, own);
    if (status != 0) return status;
    return launch(add_partials, 1, kWarp, stream, update, blocks, p.change_sum, static_cast<float*>(nullptr));
  });
}

int adafactor_update(const AdafactorUpdate& update, const AdafactorParameter& p, Stream stream) {
  return with_number(update.number, [&](auto number) {
    using T = decltype(number);
    const Rows<T> own(update, p);
    return launch(update_rows<T>, blocks_for(own.rows * kWarp), kThreads, stream, update, p, own);
  });
}

}  // namespace vramfit::cuda
