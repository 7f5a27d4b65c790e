// RMS norms, with or without the residual addition before them, by the formulas of CPU ranks. A row has a warp or,
// where it is long, a block, which keeps it in registers between the pass that sums over it and the one that writes.
// Backward adds up the weight's gradient over a block's rows in registers; a second kernel adds up the blocks' sums.
#include <cmath>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "executor/kernels/functions.h"
#include "executor/kernels/numbers.cuh"

namespace vramfit::cuda {

namespace {

constexpr int kPackOfRow = 8;
/// Packs that a thread keeps of a row. A block keeps rows of 8192 numbers; of longer ones the rest is read twice.
constexpr int kKept = 4;
constexpr int kWarps = kThreads / kWarp;
/// Longer rows have a block.
constexpr int kMostColumnsOfWarp = kWarp * kPackOfRow * kKept;

/// Some of a row, of which fewer than a pack may be there, or which may begin anywhere.
using RowPart = Part<kPackOfRow>;
template <typename T>
using RowPack = Pack<T, kPackOfRow>;

/// A pack of a row that is in whole packs.
struct WholePart {
  std::int64_t begin;
  template <typename T>
  __device__ RowPack<T> read(const T* from) const {
    return cuda::read<kPackOfRow>(from + begin);
  }
  template <typename T>
  __device__ void write(T* to, const RowPack<T>& pack) const {
    cuda::write(to + begin, pack);
  }
};

bool is_in_packs(std::int64_t columns, std::initializer_list<const void*> pointers) {
  constexpr std::uintptr_t kBytes = 16;
  return columns % kPackOfRow == 0 && std::all_of(pointers.begin(), pointers.end(), [](const void* p) {
           return reinterpret_cast<std::uintptr_t>(p) % kBytes == 0;
         });
}

/// The threads that have a row: kSize of them, a warp or the block.
template <int kSize>
struct Team {
  std::int64_t columns;
  bool keeps;     // whether rows are in whole packs, the first of which are kept
  float* shared;  // kWarps numbers

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kSize; }
  __device__ static std::int64_t number() {
    return (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kSize;
  }
  __device__ static std::int64_t count() { return static_cast<std::int64_t>(gridDim.x) * kThreads / kSize; }

  /// work(part, i) for each of the lane's parts that are kept; `i` is known when this is compiled, so that what it
  /// numbers lies in registers.
  template <typename Work>
  __device__ void for_kept(const Work& work) const {
    if (keeps) for_each(work, std::make_integer_sequence<int, kKept>{});
  }
  /// work(part) for each of the others.
  template <typename Work>
  __device__ void for_rest(const Work& work) const {
    for (std::int64_t i = begin(keeps ? kKept : 0); i < columns; i += kSize * kPackOfRow) {
      work(RowPart{i, columns - i, keeps});
    }
  }

  /// Over the team's threads, in an order that is the same each time.
  __device__ float sum(float mine) const {
    constexpr unsigned kAll = 0xFFFFFFFF;
    for (int distance = kWarp / 2; distance > 0; distance /= 2) {
      mine += __int_as_float(__shfl_xor_sync(kAll, __float_as_int(mine), distance));
    }
    if constexpr (kSize == kWarp) {
      return mine;
    } else {
      __syncthreads();  // every thread has read what was there before
      if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = mine;
      __syncthreads();
      float all = 0;
      for (int warp = 0; warp < kWarps; ++warp) all += shared[warp];
      return all;
    }
  }

 private:
  __device__ static std::int64_t begin(int part) {
    return static_cast<std::int64_t>(part * kSize + lane()) * kPackOfRow;
  }
  template <typename Work, int... kParts>
  __device__ void for_each(const Work& work, std::integer_sequence<int, kParts...> /*parts*/) const {
    ((begin(kParts) < columns ? work(WholePart{begin(kParts)}, kParts) : void()), ...);
  }
};

/// A row with what its norm takes.
template <typename T>
struct Row {
  T* x;
  const T *residual, *weight;
  T* output;
  float plus;

  /// Of x, to which the residual is added first; `squares` grows by those of what is there then.
  template <typename P>
  __device__ RowPack<T> sum(const P& part, float& squares) const {
    RowPack<T> pack = part.read(static_cast<const T*>(x));
    if (residual != nullptr) {
      const RowPack<T> add = part.read(residual);
      for (int k = 0; k < kPackOfRow; ++k) pack.at[k] = put(pack.at[k], to_float(add.at[k]), true);
      part.write(x, pack);
    }
    for (int k = 0; k < kPackOfRow; ++k) squares += to_float(pack.at[k]) * to_float(pack.at[k]);
    return pack;
  }
  template <typename P>
  __device__ void write(const P& part, const RowPack<T>& pack, float rstd) const {
    const RowPack<T> scale = part.read(weight);
    RowPack<T> out;
    for (int k = 0; k < kPackOfRow; ++k) {
      out.at[k] = rounded<T>(to_float(pack.at[k]) * rstd * (to_float(scale.at[k]) + plus));
    }
    part.write(output, out);
  }
};

template <typename T, int kSize>
__global__ void norm_rows(NormRows rows, const void* residual, void* output, bool in_packs) {
  __shared__ float shared[kWarps];
  const Team<kSize> team{rows.columns, in_packs, shared};
  for (std::int64_t r = team.number(); r < rows.rows; r += team.count()) {
    const std::int64_t first = r * rows.columns;
    const Row<T> row{.x = static_cast<T*>(rows.x) + first,
                     .residual = residual == nullptr ? nullptr : static_cast<const T*>(residual) + first,
                     .weight = static_cast<const T*>(rows.weight),
                     .output = static_cast<T*>(output) + first,
                     .plus = rows.plus};
    RowPack<T> kept[kKept];
    float squares = 0;
    team.for_kept([&](const WholePart& part, int i) { kept[i] = row.sum(part, squares); });
    team.for_rest([&](const RowPart& part) { row.sum(part, squares); });
    const float mean = team.sum(squares) / static_cast<float>(rows.columns);
    const float rstd = 1.0F / std::sqrt(mean + rows.eps);
    if (team.lane() == 0) rows.rstd[r] = rstd;
    team.for_kept([&](const WholePart& part, int i) { row.write(part, kept[i], rstd); });
    team.for_rest([&](const RowPart& part) { row.write(part, part.read(static_cast<const T*>(row.x)), rstd); });
  }
}

/// Of a row's x and of the gradient of its output.
template <typename T>
struct GradientPack {
  RowPack<T> x, output;
};

template <typename T>
struct GradientRow {
  const T *x, *output, *weight;
  T* input;
  bool add;
  float rstd, plus;

  template <typename P>
  __device__ GradientPack<T> read(const P& part) const {
    return {part.read(x), part.read(output)};
  }
  /// Of the gradient of x * rstd with x.
  template <typename P>
  __device__ float product(const P& part, const GradientPack<T>& pack) const {
    const RowPack<T> scale = part.read(weight);
    float sum = 0;
    for (int k = 0; k < kPackOfRow; ++k) {
      sum += to_float(pack.output.at[k]) * (to_float(scale.at[k]) + plus) * to_float(pack.x.at[k]);
    }
    return sum;
  }
  template <typename P>
  __device__ void write(const P& part, const GradientPack<T>& pack, float mean) const {
    const RowPack<T> scale = part.read(weight);
    auto all = add ? part.read(static_cast<const T*>(input)) : RowPack<T>{};
    for (int k = 0; k < kPackOfRow; ++k) {
      const float g = to_float(pack.output.at[k]) * (to_float(scale.at[k]) + plus);
      all.at[k] = put(all.at[k], rstd * (g - to_float(pack.x.at[k]) * rstd * mean), add);
    }
    part.write(input, all);
  }
  __device__ float of_weight(const GradientPack<T>& pack, int k) const {
    return to_float(pack.output.at[k]) * to_float(pack.x.at[k]) * rstd;
  }
};

/// The weight's gradient over the block's rows: of the columns that its threads keep, and in `partial` of the rest.
struct WeightSums {
  float* partial;  // [columns], the block's
  float kept[kKept][kPackOfRow] = {};

  template <typename T>
  __device__ void add(int i, const GradientRow<T>& row, const GradientPack<T>& pack) {
    for (int k = 0; k < kPackOfRow; ++k) kept[i][k] += row.of_weight(pack, k);
  }
  template <typename T>
  __device__ void add_rest(const RowPart& part, const GradientRow<T>& row, const GradientPack<T>& pack,
                           bool is_first) const {
    for (int k = 0; k < kPackOfRow && k < part.there; ++k) {
      float& sum = partial[part.begin + k];
      sum = is_first ? row.of_weight(pack, k) : sum + row.of_weight(pack, k);
    }
  }
  /// What is kept goes to `partial`, one team after the other.
  template <int kSize>
  __device__ void write(const Team<kSize>& team) const {
    for (int turn = 0; turn < kThreads / kSize; ++turn) {
      if (static_cast<int>(threadIdx.x) / kSize == turn) {
        team.for_kept([&](const WholePart& part, int i) {
          auto sums = turn == 0 ? Pack<float, kPackOfRow>{} : part.read(static_cast<const float*>(partial));
          for (int k = 0; k < kPackOfRow; ++k) sums.at[k] += kept[i][k];
          part.write(partial, sums);
        });
      }
      __syncthreads();
    }
  }
};

/// Two blocks have room on a multiprocessor.
template <typename T, int kSize, bool kWantsWeight>
__global__ void __launch_bounds__(kThreads, 2) norm_gradients(NormRows rows, NormGradients gradients, bool in_packs) {
  __shared__ float shared[kWarps];
  const Team<kSize> team{rows.columns, in_packs, shared};
  WeightSums sums{kWantsWeight ? gradients.partial + blockIdx.x * rows.columns : nullptr};
  for (std::int64_t r = team.number(); r < rows.rows; r += team.count()) {
    const std::int64_t first = r * rows.columns;
    const GradientRow<T> row{.x = static_cast<const T*>(rows.x) + first,
                             .output = static_cast<const T*>(gradients.output) + first,
                             .weight = static_cast<const T*>(rows.weight),
                             .input = static_cast<T*>(gradients.input) + first,
                             .add = gradients.add_input,
                             .rstd = rows.rstd[r],
                             .plus = rows.plus};
    GradientPack<T> kept[kKept];
    float product = 0;
    team.for_kept([&](const WholePart& part, int i) {
      kept[i] = row.read(part);
      product += row.product(part, kept[i]);
    });
    team.for_rest([&](const RowPart& part) { product += row.product(part, row.read(part)); });
    const float mean = row.rstd / static_cast<float>(rows.columns) * team.sum(product);
    team.for_kept([&](const WholePart& part, int i) {
      row.write(part, kept[i], mean);
      if constexpr (kWantsWeight) sums.add(i, row, kept[i]);
    });
    team.for_rest([&](const RowPart& part) {
      const GradientPack<T> pack = row.read(part);  // before it may be written over
      row.write(part, pack, mean);
      if constexpr (kWantsWeight) sums.add_rest(part, row, pack, r == team.number());
    });
  }
  if constexpr (kWantsWeight) sums.write(team);
}

/// The weight's gradient as a sum over rows: over the blocks' sums, or over the norm's own rows.
struct PartialTerm {
  const float* partial;
  std::int64_t columns;
  __device__ float operator()(std::int64_t row, std::int64_t column) const { return partial[row * columns + column]; }
};
template <typename T>
struct RowTerm {
  const T *x, *output;
  const float* rstd;
  std::int64_t columns;
  __device__ float operator()(std::int64_t row, std::int64_t column) const {
    const std::int64_t i = row * columns + column;
    return to_float(output[i]) * to_float(x[i]) * rstd[row];
  }
};

/// A block has 32 columns; its warps take turns at the rows.
template <typename T, typename Term>
__global__ void sum_columns(Term term, std::int64_t rows, std::int64_t columns, T* target, bool add) {
  __shared__ float sums[kThreads];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kWarp + lane;
  float sum = 0;
  if (column < columns) {
    for (std::int64_t row = threadIdx.x / kWarp; row < rows; row += kWarps) sum += term(row, column);
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= kWarp || column >= columns) return;
  for (int warp = 1; warp < kWarps; ++warp) sum += sums[warp * kWarp + lane];
  target[column] = put(target[column], sum, add);
}

template <typename T, typename Term>
int launch_sums(const Term& term, std::int64_t rows, const NormGradients& gradients, Stream stream) {
  const auto blocks = static_cast<unsigned>((term.columns + kWarp - 1) / kWarp);
  return launch(sum_columns<T, Term>, blocks, kThreads, stream, term, rows, term.columns,
                static_cast<T*>(gradients.weight), gradients.add_weight);
}

/// f(number, size of a team). Rows of which nothing is kept have blocks, whose threads share no sums.
template <typename F>
int with_teams(const NormRows& rows, bool in_packs, const F& f) {
  return with_number(rows.number, [&](auto number) {
    return in_packs && rows.columns <= kMostColumnsOfWarp ? f(number, std::integral_constant<int, kWarp>{})
                                                          : f(number, std::integral_constant<int, kThreads>{});
  });
}

}  // namespace

int rms_norm(const NormRows& rows, const void* residual, void* output, Stream stream) {
  const bool in_packs = is_in_packs(rows.columns, {rows.x, rows.weight, residual, output});
  return with_teams(rows, in_packs, [&](auto number, auto team) {
    return launch(norm_rows<decltype(number), team()>, blocks_for(rows.rows * team), kThreads, stream, rows, residual,
                  output, in_packs);
  });
}

int rms_norm_backward(const NormRows& rows, const NormGradients& gradients, Stream stream) {
  const bool in_packs = is_in_packs(rows.columns, {rows.x, rows.weight, gradients.output, gradients.input});
  return with_teams(rows, in_packs, [&](auto number, auto team) {
    using T = decltype(number);
    if (gradients.input == nullptr) {
      const RowTerm<T> term{static_cast<const T*>(rows.x), static_cast<const T*>(gradients.output), rows.rstd,
                            rows.columns};
      return launch_sums<T>(term, rows.rows, gradients, stream);
    }
    if (gradients.weight == nullptr) {
      return launch(norm_gradients<T, team(), false>, blocks_for(rows.rows * team), kThreads, stream, rows, gradients,
                    in_packs);
    }
    const int status = launch(norm_gradients<T, team(), true>, static_cast<unsigned>(gradients.partial_rows), kThreads,
                              stream, rows, gradients, in_packs);
    if (status != 0) return status;
    return launch_sums<T>(PartialTerm{gradients.partial, rows.columns}, gradients.partial_rows, gradients, stream);
  });
}

}  // namespace vramfit::cuda
