// Shared by the kernels of the ops: rows of typed elements, loops over threads, and one function table per op.
// Only for .cpp files of executor/ops.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "executor/ops/activation_values.h"
#include "executor/ops/ops.h"
#include "executor/ops/vectors.h"

namespace vramfit::kernels {

/// The working functions of one op. `cuda` is made of ATen calls that also run on CPU tensors, except attention's;
/// `own_cuda` is by own kernels, which not all ops have.
struct DeviceFunctions {
  OpFunctions cpu, cuda;
  OpFunctions own_cuda = {};
};

/// In executor/ops/NAME.cpp for each NAME of model_specs/ops.def.
namespace rows {
#define OP(name) extern const DeviceFunctions name;
#include "model_specs/ops.def"
#undef OP
}  // namespace rows

/// Elements a thread should have at least: below it starting threads costs more than it saves.
inline constexpr std::int64_t kGrain = 16384;

inline std::int64_t rows_grain(std::int64_t columns) {
  return std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(columns, 1));
}

/// Calls f with a zero of the element type; throws NotModelled for types without CPU kernels.
template <typename F>
void with_type(at::ScalarType type, const F& f) {
  if (type == at::kFloat) return f(float{});
  if (type == at::kBFloat16) return f(at::BFloat16{});
  if (type == at::kHalf) return f(at::Half{});
  throw NotModelled(std::string("CPU kernels for ") + c10::toString(type));
}

template <typename T>
T* data(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

/// A 2-D tensor's rows; the columns are contiguous.
template <typename T>
struct Rows {
  explicit Rows(const at::Tensor& t)
      : first(data<T>(t)), count(t.size(0)), columns(t.size(1)), stride(std::max(t.stride(0), t.size(1))) {}
  T* operator[](std::int64_t row) const { return first + row * stride; }
  T* first;
  std::int64_t count, columns, stride;
};

/// f(begin, end) over element ranges of [0, count), on all threads. For work where elements are independent.
template <typename F>
void parallel_elements(std::int64_t count, const F& f) {
  at::parallel_for(0, count, kGrain, [&](std::int64_t begin, std::int64_t end) { on_widest([&] { f(begin, end); }); });
}

/// f(row) over rows of `columns` elements, on all threads.
template <typename F>
void parallel_rows(std::int64_t rows, std::int64_t columns, const F& f) {
  at::parallel_for(0, rows, rows_grain(columns), [&](std::int64_t begin, std::int64_t end) {
    on_widest([&] {
      for (std::int64_t row = begin; row < end; ++row) f(row);
    });
  });
}

inline constexpr std::int64_t kColumnBlock = 64, kRowBlock = 256;

/// total[c] += sum over rows of term(row, first + c), for c in [0, width): in row order, in blocks of rows so that the
/// error grows with the number of blocks.
template <typename Term>
void add_rows_of_block(std::int64_t rows, std::int64_t first, std::int64_t width, const Term& term, float* total) {
  for (std::int64_t row0 = 0; row0 < rows; row0 += kRowBlock) {
    float part[kColumnBlock] = {};
    for (std::int64_t row = row0; row < std::min(rows, row0 + kRowBlock); ++row) {
      for (std::int64_t c = 0; c < width; ++c) part[c] += term(row, first + c);
    }
    for (std::int64_t c = 0; c < width; ++c) total[c] += part[c];
  }
}

/// store(column, sum over rows of term(row, column)). Each column is summed by one thread, so the result does not
/// depend on the number of threads.
template <typename Term, typename Store>
void column_sums(std::int64_t rows, std::int64_t columns, const Term& term, const Store& store) {
  const std::int64_t blocks = (columns + kColumnBlock - 1) / kColumnBlock;
  at::parallel_for(0, blocks, rows_grain(rows * kColumnBlock), [&](std::int64_t begin, std::int64_t end) {
    on_widest([&] {
      for (std::int64_t block = begin; block < end; ++block) {
        const std::int64_t first = block * kColumnBlock, width = std::min(kColumnBlock, columns - first);
        float total[kColumnBlock] = {};
        add_rows_of_block(rows, first, width, term, total);
        for (std::int64_t c = 0; c < width; ++c) store(first + c, total[c]);
      }
    });
  });
}

/// target = value, or target += value.
template <typename T>
void put(T& target, float value, bool add) {
  target = static_cast<T>(add ? static_cast<float>(target) + value : value);
}

/// Sum of term(i) over [0, n) in 16 interleaved partial sums, which the compiler keeps in vector registers.
template <typename Term>
float row_sum(std::int64_t n, const Term& term) {
  constexpr std::int64_t kLanes = 16;
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) lanes[l] += term(i + l);
  }
  double sum = 0;
  for (; i < n; ++i) sum += term(i);
  for (const float lane : lanes) sum += lane;
  return static_cast<float>(sum);
}

/// The largest term(i) over [0, n), n > 0, by the same lanes.
template <typename Term>
float row_maximum(std::int64_t n, const Term& term) {
  constexpr std::int64_t kLanes = 16;
  float lanes[kLanes];
  std::fill(lanes, lanes + kLanes, term(0));
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) lanes[l] = std::max(lanes[l], term(i + l));
  }
  for (; i < n; ++i) lanes[0] = std::max(lanes[0], term(i));
  return *std::max_element(lanes, lanes + kLanes);
}

inline bool wants_input(const OpCall& call, std::size_t i) {
  return i < call.needs.inputs.size() && call.needs.inputs[i];
}
inline bool wants_parameter(const OpCall& call, std::size_t i) {
  return i < call.needs.parameters.size() && call.needs.parameters[i];
}
inline bool adds_input(const OpCall& call, std::size_t i) {
  return i < call.needs.accumulate_inputs.size() && call.needs.accumulate_inputs[i];
}
inline bool adds_parameter(const OpCall& call, std::size_t i) {
  return i < call.needs.accumulate_parameters.size() && call.needs.accumulate_parameters[i];
}
inline const Attributes& attributes(const OpCall& call) { return call.context.op.attributes; }

/// The gradient of input `i` is the output's, unchanged: nothing to do where they share storage, a copy or a sum
/// otherwise. Any device.
void pass_gradient(OpCall& call, std::size_t i);

/// Gives input `i` a gradient that a kernel made itself: taken as it is, copied or added. Any device.
void deliver_gradient(OpCall& call, std::size_t i, const at::Tensor& value);

/// input_gradients[i][e] = or += derivative(e) over all elements, CPU; T is the element type of every tensor involved.
template <typename T, typename F>
void put_elements(const at::Tensor& target, bool add, const F& derivative) {
  T* out = data<T>(target);
  parallel_elements(target.numel(), [&](std::int64_t begin, std::int64_t end) {
    VRAMFIT_INDEPENDENT_ELEMENTS
    for (std::int64_t e = begin; e < end; ++e) put(out[e], derivative(e), add);
  });
}

}  // namespace vramfit::kernels
