// Matrices in codes, made whole in one pass: as executor/ops/quantized.cpp does for CPU ranks, to the bit. A thread has
// eight elements.
#include "executor/kernels/functions.h"
#include "executor/kernels/numbers.cuh"
#include "executor/ops/code_values.h"

namespace vramfit::cuda {

namespace {

constexpr int kEachOfCodes = 8;

/// What codes stand for, as a parameter of the kernel, which copies it to where threads may read different places at
/// once.
struct Values {
  float of_scales[256];
  float normal[16];
};

Values make_values() {
  Values values{};
  std::copy(kNormalFloats.begin(), kNormalFloats.end(), values.normal);
  std::copy(ScaleCodes::kSorted.begin(), ScaleCodes::kSorted.end(), values.of_scales);
  return values;
}

class Scales {
 public:
  __device__ Scales(const CodedMatrix& matrix, const float* values)
      : wide_(reinterpret_cast<const float*>(matrix.stored)), block_(matrix.scale_block), values_(values) {
    if (block_ == 0) return;
    codes_ = matrix.stored + matrix.scales_begin;
    offset_ = *reinterpret_cast<const float*>(matrix.stored + matrix.offset_begin);
  }
  __device__ float at(std::int64_t i) const {
    return block_ == 0 ? wide_[i] : values_[codes_[i]] * wide_[i / block_] + offset_;
  }

 private:
  const float* wide_;
  const std::uint8_t* codes_ = nullptr;
  float offset_ = 0;
  std::int64_t block_;
  const float* values_;
};

/// Two elements a byte, the first in the upper half. A thread's are of one block.
template <typename T>
struct NormalFloats {
  const CodedMatrix& matrix;
  const Values& values;

  __device__ Pack<T, kEachOfCodes> at(std::int64_t begin) const {
    const std::int64_t count = matrix.elements - begin;
    if (count <= 0) return {};
    const auto codes = read_bytes<kEachOfCodes / 2>(matrix.stored + matrix.codes_begin + begin / 2, (count + 1) / 2);
    const float scale = Scales(matrix, values.of_scales).at(begin / matrix.block);
    Pack<T, kEachOfCodes> pack{};
    for (int i = 0; i < kEachOfCodes; ++i) {
      const int code = i % 2 == 0 ? codes.at[i / 2] >> 4 : codes.at[i / 2] & 0xF;
      const float value = i < count ? values.normal[code] * scale : 0;
      pack.at[i] = rounded<T>(value);
    }
    return pack;
  }
};

/// A byte for each element.
template <typename T, typename Number>
struct OfRows {
  const CodedMatrix& matrix;
  const Values& values;

  __device__ Pack<T, kEachOfCodes> at(std::int64_t begin) const {
    const std::int64_t count = matrix.elements - begin;
    if (count <= 0) return {};
    const auto codes = read_bytes<kEachOfCodes>(matrix.stored + matrix.codes_begin + begin, count);
    const Scales scales(matrix, values.of_scales);
    std::int64_t row = begin / matrix.row_elements, column = begin - row * matrix.row_elements;
    float scale = scales.at(row);
    Pack<T, kEachOfCodes> pack{};
    for (int i = 0; i < kEachOfCodes; ++i) {
      const bool is_there = i < count;
      if (is_there && column == matrix.row_elements) {
        column = 0;
        scale = scales.at(++row);
      }
      ++column;
      pack.at[i] = rounded<T>(is_there ? Number()(codes.at[i], scale) : 0);
    }
    return pack;
  }
};
template <typename T>
using Int8 = OfRows<T, NumberOfInt8>;
template <typename T>
using Fp8 = OfRows<T, NumberOfE4m3>;

template <typename T, template <typename> typename Format>
__global__ void make_whole(const __grid_constant__ CodedMatrix matrix, const __grid_constant__ Values values_of_codes) {
  __shared__ Values values;
  for (int i = static_cast<int>(threadIdx.x); i < 256; i += kThreads) {
    values.of_scales[i] = values_of_codes.of_scales[i];
    if (i < 16) values.normal[i] = values_of_codes.normal[i];
  }
  __syncthreads();
  const Format<T> format{matrix, values};
  T* const into = static_cast<T*>(matrix.into);
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x * kEachOfCodes;
  for (std::int64_t begin = thread * kEachOfCodes; begin < matrix.capacity; begin += step) {
    const Pack<T, kEachOfCodes> pack = format.at(begin);
    if (begin + kEachOfCodes <= matrix.capacity) {
      write(into + begin, pack);
      continue;
    }
    for (int i = 0; i < kEachOfCodes; ++i) {
      if (begin + i < matrix.capacity) into[begin + i] = pack.at[i];
    }
  }
}

}  // namespace

int dequantize(const CodedMatrix& matrix, Stream stream) {
  const unsigned blocks = blocks_for((matrix.capacity + kEachOfCodes - 1) / kEachOfCodes);
  return with_number(matrix.number, [&](auto number) {
    using T = decltype(number);
    const auto start = [&](auto kernel) { return launch(kernel, blocks, kThreads, stream, matrix, make_values()); };
    if (matrix.codes == Codes::e4m3) return start(make_whole<T, Fp8>);
    return matrix.codes == Codes::int8 ? start(make_whole<T, Int8>) : start(make_whole<T, NormalFloats>);
  });
}

}  // namespace vramfit::cuda
