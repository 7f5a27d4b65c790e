// Rotary embeddings, in one pass. A block has rows, its threads the pairs of a row: four at a time where rows and heads
// begin at multiples of a pack.
#include "executor/kernels/functions.h"
#include "executor/kernels/numbers.cuh"

namespace vramfit::cuda {

namespace {

constexpr int kPairs = 4;
constexpr std::int64_t kMostRowBlocks = 65536;

__device__ float table_value(const void* table, Number number, std::int64_t i) {
  if (number == Number::f32) return static_cast<const float*>(table)[i];
  return number == Number::bf16 ? to_float(static_cast<const Bfloat16*>(table)[i])
                                : to_float(static_cast<const Float16*>(table)[i]);
}

/// Of a head of one row.
template <typename T>
struct Head {
  const Rotation& rotation;
  std::int64_t angles;  // where the row's are in the tables
  const T* from;
  T* to;

  /// `count` pairs from pair `first` on.
  template <int kCount>
  __device__ void turn(int first) const {
    const Pack<T, kCount> x = read<kCount>(from + first), y = read<kCount>(from + first + rotation.half);
    Pack<T, kCount> new_x{}, new_y{};
    if (rotation.add) {
      new_x = read<kCount>(to + first);
      new_y = read<kCount>(to + first + rotation.half);
    }
    for (int k = 0; k < kCount; ++k) {
      const float a = to_float(x.at[k]), b = to_float(y.at[k]);
      const float stay = table_value(rotation.cos, rotation.table, angles + first + k);
      const float sine = table_value(rotation.sin, rotation.table, angles + first + k);
      const float turn = rotation.backwards ? -sine : sine;
      new_x.at[k] = put(new_x.at[k], a * stay - b * turn, rotation.add);
      new_y.at[k] = put(new_y.at[k], b * stay + a * turn, rotation.add);
    }
    write(to + first, new_x);
    write(to + first + rotation.half, new_y);
  }

  __device__ void pass(int i) const { to[i] = put(to[i], to_float(from[i]), rotation.add); }
};

/// Threads that a head takes: one for each pack of pairs, and one for each number that isn't turned.
template <typename T, int kCount>
__global__ void rotate_rows(Rotation rotation) {
  const int packs = rotation.half / kCount;
  const bool passes = rotation.add || rotation.from != rotation.to;
  const int units = packs + (passes ? rotation.dim - 2 * rotation.half : 0);
  for (std::int64_t row = blockIdx.x; row < rotation.rows; row += gridDim.x) {
    const std::int64_t angles = row % rotation.sequence * rotation.half;
    const T* const from = static_cast<const T*>(rotation.from) + row * rotation.from_stride;
    T* const to = static_cast<T*>(rotation.to) + row * rotation.to_stride;
    for (int i = static_cast<int>(threadIdx.x); i < rotation.heads * units; i += static_cast<int>(blockDim.x)) {
      const int head = i / units, unit = i - head * units;
      const Head<T> own{rotation, angles, from + head * rotation.dim, to + head * rotation.dim};
      unit < packs ? own.template turn<kCount>(unit * kCount) : own.pass(2 * rotation.half + unit - packs);
    }
  }
}

/// Whether each pack of a row begins at a multiple of its bytes.
bool is_in_packs(const Rotation& rotation) {
  const auto is_multiple = [](std::int64_t value) { return value % kPairs == 0; };
  const std::uintptr_t bytes = (rotation.number == Number::f32 ? sizeof(float) : sizeof(Bfloat16)) * kPairs;
  return is_multiple(rotation.half) && is_multiple(rotation.dim) && is_multiple(rotation.from_stride) &&
         is_multiple(rotation.to_stride) && reinterpret_cast<std::uintptr_t>(rotation.from) % bytes == 0 &&
         reinterpret_cast<std::uintptr_t>(rotation.to) % bytes == 0;
}

}  // namespace

int rotate(const Rotation& rotation, Stream stream) {
  const auto blocks = static_cast<unsigned>(std::clamp<std::int64_t>(rotation.rows, 1, kMostRowBlocks));
  return with_number(rotation.number, [&](auto number) {
    using T = decltype(number);
    return is_in_packs(rotation) ? launch(rotate_rows<T, kPairs>, blocks, kThreads, stream, rotation)
                                 : launch(rotate_rows<T, 1>, blocks, kThreads, stream, rotation);
  });
}

}  // namespace vramfit::cuda
