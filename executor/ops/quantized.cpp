#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "executor/ops/nf4_vectors.h"
#include "executor/ops/quantized_torch.h"
#include "executor/ops/vectors.h"

namespace vramfit {

namespace {

constexpr std::int64_t kBlock = 64;
constexpr std::int64_t kGrain = std::int64_t{1} << 15;  // elements that a thread takes at least
constexpr float kInt8 = 127;

/// Between neighbouring values; a number on one has the code below.
constexpr std::array<float, 15> borders_of_normal_floats() {
  std::array<float, 15> borders{};
  for (std::size_t i = 0; i < borders.size(); ++i) borders[i] = (kNormalFloats[i] + kNormalFloats[i + 1]) / 2;
  return borders;
}
constexpr std::array<float, 15> kBorders = borders_of_normal_floats();

float largest_of(const float* values, std::int64_t count) {
  std::int32_t largest = 0;  // magnitudes of floats are ordered as their bits are
  VRAMFIT_INDEPENDENT_ELEMENTS
  for (std::int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<std::int32_t>(std::fabs(values[i])));
  }
  return std::bit_cast<float>(largest);
}

std::int32_t normal_float_code(float x) {
  std::int32_t code = 0;
  for (const float border : kBorders) code += x > border ? 1 : 0;
  return code;
}

/// Returns the scale. A whole block is multiplied by its scale's reciprocal, a shorter last one divided.
float quantize_block(const float* values, std::int64_t count, std::uint8_t* codes) {
  constexpr float kLeast = 1e-38F;
  const float scale = largest_of(values, count), divisor = std::max(scale, kLeast);
  std::array<std::int32_t, kBlock> numbers{};
  if (count == kBlock) {
    const float inverse = 1 / divisor;
    VRAMFIT_INDEPENDENT_ELEMENTS
    for (std::int64_t i = 0; i < kBlock; ++i)
      numbers[static_cast<std::size_t>(i)] = normal_float_code(values[i] * inverse);
  } else {
    numbers.fill(normal_float_code(0));  // the half byte beyond an odd number of elements
    for (std::int64_t i = 0; i < count; ++i)
      numbers[static_cast<std::size_t>(i)] = normal_float_code(values[i] / divisor);
  }
  for (std::int64_t i = 0; i < ceil_div(count, 2); ++i) {
    const auto at = static_cast<std::size_t>(2 * i);
    codes[i] = static_cast<std::uint8_t>(numbers[at] << 4 | numbers[at + 1]);
  }
  return scale;
}

void quantize_blocks(std::span<const float> values, std::uint8_t* codes, float* scales) {
  const auto elements = static_cast<std::int64_t>(values.size());
  at::parallel_for(0, ceil_div(elements, kBlock), kGrain / kBlock, [&](std::int64_t first, std::int64_t end) {
    kernels::on_widest([&] {
      for (std::int64_t b = first; b < end; ++b) {
        const std::int64_t begin = b * kBlock;
        scales[b] = quantize_block(values.data() + begin, std::min(kBlock, elements - begin), codes + begin / 2);
      }
    });
  });
}

void quantize_rows(std::span<const float> values, std::int64_t row_elements, std::uint8_t* codes, float* scales) {
  const std::int64_t rows = static_cast<std::int64_t>(values.size()) / row_elements;
  at::parallel_for(
      0, rows, std::max<std::int64_t>(kGrain / row_elements, 1), [&](std::int64_t first, std::int64_t end) {
        kernels::on_widest([&] {
          for (std::int64_t row = first; row < end; ++row) {
            const float* const from = values.data() + row * row_elements;
            std::uint8_t* const to = codes + row * row_elements;
            scales[row] = largest_of(from, row_elements);
            const float factor = scales[row] > 0 ? 1 / scales[row] * kInt8 : 0;
            VRAMFIT_INDEPENDENT_ELEMENTS
            for (std::int64_t i = 0; i < row_elements; ++i) {
              to[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(std::nearbyint(from[i] * factor)));
            }
          }
        });
      });
}

/// Codes of scales from which their mean was taken. A block of zeros has the code 0, as with quantize_blockwise.
float quantize_scales(std::span<const float> scales, float mean, std::uint8_t* codes) {
  float largest = 0;
  for (const float scale : scales) largest = std::max(largest, std::fabs(scale - mean));
  const float inverse = largest > 0 ? 1 / largest : 0;
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const std::int32_t place = ScaleCodes::encode((scales[i] - mean) * inverse) ^ ScaleCodes::kZero;
    codes[i] = static_cast<std::uint8_t>(largest > 0 ? place : 0);
  }
  return largest;
}

/// The scales of a matrix as they are used.
class Scales {
 public:
  Scales(const QuantizedRows& matrix, const std::uint8_t* stored) {
    const QuantizedParts parts = matrix.parts();
    const auto* const numbers = reinterpret_cast<const float*>(stored);
    wide_ = numbers;
    if (parts.scale_scales == 0) return;
    codes_ = stored + parts.scales_begin;
    offset_ = *reinterpret_cast<const float*>(stored + parts.offset_begin);
    block_ = matrix.format.scale_block;
  }

  float operator[](std::int64_t i) const {
    return codes_ == nullptr ? wide_[i] : map_[codes_[i]] * wide_[i / block_] + offset_;
  }

 private:
  const float* map_ = scale_map().data();
  const float* wide_ = nullptr;
  const std::uint8_t* codes_ = nullptr;
  float offset_ = 0;
  std::int64_t block_ = 1;
};

/// The bits of a number of 16 or 32 bits; a table of them has 16.
template <typename T>
struct BitsOf {
  using Type = std::uint16_t;
  static Type of(float x) { return static_cast<T>(x).x; }
};
template <>
struct BitsOf<float> {
  using Type = std::uint32_t;
  static Type of(float x) { return std::bit_cast<std::uint32_t>(x); }
};
template <>
struct BitsOf<at::BFloat16> {
  using Type = std::uint16_t;
  /// To the nearest, to even; without the branch for what isn't a number, which stays so here.
  static Type of(float x) {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    return static_cast<Type>((bits + 0x7FFFU + (bits >> 16U & 1U)) >> 16U);
  }
};

template <typename Bits>
using LookUp = void (*)(const std::uint8_t* codes, const Bits* table, Bits* into);

template <typename Bits>
void look_up_block(const std::uint8_t* codes, const Bits* table, Bits* into) {
  kernels::look_up_pairs(codes, table, kBlock / 2, into);
}

template <typename Bits>
LookUp<Bits> widest_look_up() {
#if defined(__x86_64__)
  const kernels::Vectors vectors = kernels::find_vectors();
  if (vectors == kernels::Vectors::avx512) return kernels::look_up_avx512;
  if (vectors == kernels::Vectors::avx2) return kernels::look_up_avx2;
#endif
  return look_up_block<Bits>;
}

/// Blocks `first` to `end`. The 16 numbers of a block are multiplied by its scale and rounded once, then looked up.
template <typename T>
void whole_blocks(const QuantizedRows& matrix, const std::uint8_t* codes, const Scales& scales, T* into,
                  std::int64_t first, std::int64_t end) {
  using Bits = typename BitsOf<T>::Type;
  static const LookUp<Bits> kLookUp = widest_look_up<Bits>();
  std::array<Bits, kNormalFloats.size()> table{};
  for (std::int64_t b = first; b < end; ++b) {
    const float scale = scales[b];
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = BitsOf<T>::of(kNormalFloats[i] * scale);
    const std::int64_t begin = b * kBlock, count = std::min(kBlock, matrix.elements() - begin);
    auto* const to = reinterpret_cast<Bits*>(into + begin);
    if (count == kBlock) {
      kLookUp(codes + begin / 2, table.data(), to);
      continue;
    }
    kernels::look_up_pairs(codes + begin / 2, table.data(), count / 2, to);
    if (count % 2 != 0) to[count - 1] = table[codes[(begin + count) / 2] >> 4U];
  }
}

/// `number`: of a code and its row's scale.
template <typename T, typename Number>
void whole_rows(const QuantizedRows& matrix, const std::uint8_t* codes, const Scales& scales, T* into,
                std::int64_t first, std::int64_t end, const Number& number) {
  for (std::int64_t row = first; row < end; ++row) {
    const std::uint8_t* const from = codes + row * matrix.row_elements;
    T* const to = into + row * matrix.row_elements;
    const float scale = scales[row];
    VRAMFIT_INDEPENDENT_ELEMENTS
    for (std::int64_t i = 0; i < matrix.row_elements; ++i) to[i] = static_cast<T>(number(from[i], scale));
  }
}

/// Blocks, or rows, `first` to `end`.
template <typename T>
void whole_part(const QuantizedRows& matrix, const std::uint8_t* codes, const Scales& scales, T* into,
                std::int64_t first, std::int64_t end) {
  switch (matrix.format.kind) {
    case CodeKind::normal_float:
      return whole_blocks(matrix, codes, scales, into, first, end);
    case CodeKind::integer:
      return whole_rows(matrix, codes, scales, into, first, end, NumberOfInt8());
    case CodeKind::e4m3:
      return whole_rows(matrix, codes, scales, into, first, end, NumberOfE4m3());
  }
}

template <typename T>
void make_whole(const QuantizedRows& matrix, const std::uint8_t* stored, T* into) {
  const Scales scales(matrix, stored);
  const std::uint8_t* const codes = stored + matrix.parts().codes_begin;
  const std::int64_t block = matrix.format.block;
  const std::int64_t each = block > 0 ? block : std::max<std::int64_t>(matrix.row_elements, 1);
  at::parallel_for(0, ceil_div(matrix.elements(), each), std::max<std::int64_t>(kGrain / each, 1),
                   [&](std::int64_t first, std::int64_t end) {
                     kernels::on_widest([&] { whole_part(matrix, codes, scales, into, first, end); });
                   });
  std::fill(into + matrix.elements(), into + matrix.capacity * matrix.row_elements, T(0));
}

}  // namespace

const std::array<float, 256>& scale_map() {
  static constexpr std::array<float, 256> kMap = ScaleCodes::kSorted;
  return kMap;
}

RowsQuantizer::RowsQuantizer(const QuantizedRows& matrix, std::span<std::uint8_t> stored)
    : matrix_(matrix), parts_(matrix.parts()), stored_(stored) {
  if (matrix.format.block != 0 && matrix.format.block != kBlock) throw std::logic_error("blocks of another size");
  const auto count = static_cast<std::size_t>(scales_of(matrix.format, matrix.elements(), matrix.row_elements));
  if (parts_.scale_scales > 0) {
    wide_scales_.resize(count);
    scales_ = wide_scales_;
  } else {
    scales_ = {reinterpret_cast<float*>(stored_.data()), count};
  }
}

std::int64_t RowsQuantizer::row_step() const {
  return matrix_.format.block == 0 ? 1 : kBlock / std::gcd(kBlock, matrix_.row_elements);
}

void RowsQuantizer::add(std::span<const float> values) {
  const std::int64_t block = matrix_.format.block;
  float* const scales = scales_.data() + scales_of(matrix_.format, done_, matrix_.row_elements);
  std::uint8_t* const codes = stored_.data() + parts_.codes_begin + (block == 0 ? done_ : done_ / 2);
  if (matrix_.format.kind == CodeKind::e4m3) {
    encode_e4m3_rows(values, matrix_.row_elements, codes, scales);
  } else {
    block == 0 ? quantize_rows(values, matrix_.row_elements, codes, scales) : quantize_blocks(values, codes, scales);
  }
  done_ += static_cast<std::int64_t>(values.size());
}

double RowsQuantizer::sum_of_scales() const { return std::accumulate(scales_.begin(), scales_.end(), 0.0); }

void RowsQuantizer::finish(float mean) {
  if (parts_.scale_scales == 0) return;
  auto* const scale_scales = reinterpret_cast<float*>(stored_.data());
  *reinterpret_cast<float*>(stored_.data() + parts_.offset_begin) = mean;
  const auto each = static_cast<std::size_t>(matrix_.format.scale_block);
  for (std::size_t begin = 0; begin < scales_.size(); begin += each) {
    const auto part = scales_.subspan(begin, std::min(each, scales_.size() - begin));
    scale_scales[begin / each] =
        quantize_scales(part, mean, stored_.data() + parts_.scales_begin + static_cast<std::ptrdiff_t>(begin));
  }
}

void dequantize_on_cpu(const QuantizedRows& matrix, const at::Tensor& stored, at::Tensor& into) {
  const auto* const bytes = stored.const_data_ptr<std::uint8_t>();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, into.scalar_type(), "dequantize", [&] {
    if constexpr (sizeof(scalar_t) <= sizeof(float)) {
      make_whole(matrix, bytes, into.mutable_data_ptr<scalar_t>());
    } else {
      throw std::logic_error("weights are never computed with in double");
    }
  });
}

}  // namespace vramfit
