// Cross entropy over rows of logits, by the formulas of CPU ranks. A block has a row: forward reads it once, keeping
// the largest logit and the sum relative to it, and backward reads it once more and writes its gradient.
#include <cmath>

#include "executor/kernels/functions.h"
#include "executor/kernels/numbers.cuh"

namespace vramfit::cuda {

namespace {

constexpr int kPackOfLogits = 8;
using LogitPart = Part<kPackOfLogits>;

/// What `join` makes of every thread's part, in an order that is the same each time. `shared` has kThreads places.
template <typename T, typename Join>
__device__ T over_block(const T& mine, T* shared, const Join& join) {
  __syncthreads();  // every thread has read what was there before
  shared[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned distance = kThreads / 2; distance > 0; distance /= 2) {
    if (threadIdx.x < distance) shared[threadIdx.x] = join(shared[threadIdx.x], shared[threadIdx.x + distance]);
    __syncthreads();
  }
  return shared[0];
}

struct Plus {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};

/// The sum of exp(x - highest) over numbers x, of which `highest` is the largest. Where both are infinite, their
/// difference is 0.
struct ExpSum {
  float highest, sum;

  __device__ static float decay(float x, float highest) { return x == highest ? 1.0F : std::exp(x - highest); }
  __device__ void add(float x) {
    if (x > highest) {
      sum = sum * decay(highest, x) + 1;
      highest = x;
    } else {
      sum += decay(x, highest);
    }
  }
};

struct JoinExpSums {
  __device__ ExpSum operator()(const ExpSum& a, const ExpSum& b) const {
    const float highest = a.highest > b.highest ? a.highest : b.highest;
    return {highest, a.sum * ExpSum::decay(a.highest, highest) + b.sum * ExpSum::decay(b.highest, highest)};
  }
};

template <typename T>
__device__ bool is_aligned(const T* row) {
  constexpr std::uintptr_t kBytes = 16;
  return reinterpret_cast<std::uintptr_t>(row) % kBytes == 0;
}

/// work(part) for each part of a row that is this thread's.
template <typename Work>
__device__ void for_parts(std::int64_t columns, bool aligned, const Work& work) {
  for (std::int64_t i = static_cast<std::int64_t>(threadIdx.x) * kPackOfLogits; i < columns;
       i += static_cast<std::int64_t>(kThreads) * kPackOfLogits) {
    work(LogitPart{i, columns - i, aligned});
  }
}

/// Of a row that has a label; a label of no column makes it NaN.
__device__ double loss_of(const LossRows& rows, double lse, double of_label, double total) {
  const double own = lse - of_label;
  double loss = own;
  if (rows.smoothing != 0) {
    loss = (1 - rows.smoothing) * own + rows.smoothing * (lse - total / static_cast<double>(rows.columns));
  }
  return rows.z == 0 ? loss : loss + rows.z * lse * lse;
}

template <typename T>
__global__ void row_losses(LossRows rows, float* losses) {
  __shared__ ExpSum sums[kThreads];
  __shared__ float totals[kThreads];
  for (std::int64_t row = blockIdx.x; row < rows.rows; row += gridDim.x) {
    const T* const logits = static_cast<const T*>(rows.logits) + row * rows.columns;
    ExpSum mine{-INFINITY, 0};
    float total = 0;
    for_parts(rows.columns, is_aligned(logits), [&](const LogitPart& part) {
      const Pack<T, kPackOfLogits> pack = part.read(logits);
      for (int k = 0; k < kPackOfLogits; ++k) {
        if (k >= part.there) break;
        mine.add(to_float(pack.at[k]));
        total += to_float(pack.at[k]);
      }
    });
    const ExpSum all = over_block(mine, sums, JoinExpSums{});
    if (rows.smoothing != 0) total = over_block(total, totals, Plus{});
    if (threadIdx.x != 0) continue;
    const float lse = all.highest + std::log(all.sum);
    const std::int64_t label = rows.labels[row];
    rows.lse[row] = lse;
    const bool is_column = label >= 0 && label < rows.columns;
    const float of_label = is_column ? to_float(logits[label]) : NAN;
    losses[row] = label == rows.ignored ? 0.0F : static_cast<float>(loss_of(rows, lse, of_label, total));
  }
}

/// One block.
__global__ void add_losses(const float* losses, std::int64_t rows, double scale, float* loss) {
  __shared__ double sums[kThreads];
  double mine = 0;
  for (std::int64_t row = threadIdx.x; row < rows; row += kThreads) mine += losses[row];
  const double all = over_block(mine, sums, Plus{});
  if (threadIdx.x == 0) *loss += static_cast<float>(scale * all);
}

/// A row's gradient but for the slope of a softcap: scale (factor exp(x - lse) - each), less `own` at the label.
struct RowGradient {
  float lse, scale, factor, own, each, cap;
  std::int64_t label;

  __device__ float at(float x, std::int64_t column) const {
    float value = factor * std::exp(x - lse) - each;
    if (column == label) value -= own;
    return scale * value * (cap == 0 ? 1.0F : 1.0F - (x / cap) * (x / cap));
  }
};

template <typename T>
__global__ void row_gradients(LossRows rows, LogitGradients gradients) {
  const float scale = gradients.scale * (gradients.device_scale == nullptr ? 1.0F : *gradients.device_scale);
  for (std::int64_t row = blockIdx.x; row < rows.rows; row += gridDim.x) {
    const T* const logits = static_cast<const T*>(rows.logits) + row * rows.columns;
    T* const target = static_cast<T*>(gradients.target) + row * rows.columns;
    const float lse = rows.lse[row];
    const RowGradient of_row{.lse = lse,
                             .scale = scale,
                             .factor = rows.z == 0 ? 1.0F : 1.0F + static_cast<float>(2 * rows.z) * lse,
                             .own = static_cast<float>(1 - rows.smoothing),
                             .each = static_cast<float>(rows.smoothing / static_cast<double>(rows.columns)),
                             .cap = gradients.softcap,
                             .label = rows.labels[row]};
    const bool is_counted = of_row.label != rows.ignored;
    if (!is_counted && gradients.add) continue;
    for_parts(rows.columns, is_aligned(logits) && is_aligned(target), [&](const LogitPart& part) {
      const Pack<T, kPackOfLogits> pack = part.read(logits);
      auto all = gradients.add ? part.read(static_cast<const T*>(target)) : Pack<T, kPackOfLogits>{};
      for (int k = 0; k < kPackOfLogits; ++k) {
        const float value = is_counted ? of_row.at(to_float(pack.at[k]), part.begin + k) : 0.0F;
        all.at[k] = put(all.at[k], value, gradients.add);
      }
      part.write(target, all);
    });
  }
}

unsigned blocks_of_rows(std::int64_t rows) {
  return static_cast<unsigned>(std::clamp<std::int64_t>(rows, 1, kMostBlocks));
}

}  // namespace

int cross_entropy(const LossRows& rows, float* losses, double scale, float* loss, Stream stream) {
  const int status = with_number(rows.number, [&](auto number) {
    return launch(row_losses<decltype(number)>, blocks_of_rows(rows.rows), kThreads, stream, rows, losses);
  });
  return status != 0 ? status : launch(add_losses, 1, kThreads, stream, losses, rows.rows, scale, loss);
}

int cross_entropy_backward(const LossRows& rows, const LogitGradients& gradients, Stream stream) {
  return with_number(rows.number, [&](auto number) {
    return launch(row_gradients<decltype(number)>, blocks_of_rows(rows.rows), kThreads, stream, rows, gradients);
  });
}

}  // namespace vramfit::cuda
