// Rows in FP8 with a scale for each: torchao's Float8Tensor with PerRow, of weights in fp32. It divides a row by its
// largest magnitude, which it divides by 448 before.
#include <ATen/Parallel.h>

#include <algorithm>
#include <stdexcept>

#include "executor/ops/e4m3.h"
#include "executor/ops/magnitudes.h"
#include "executor/ops/quantized_torch.h"
#include "executor/ops/vectors.h"

namespace vramfit {

namespace {

constexpr std::int64_t kGrainOfRows = std::int64_t{1} << 15;  // elements that a thread takes at least

template <typename T>
void encode_row(const T* values, std::int64_t count, float scale, std::uint8_t* codes) {
  const float divisor = scale == 0 ? 1 : scale;  // of zeros
  VRAMFIT_INDEPENDENT_ELEMENTS
  for (std::int64_t i = 0; i < count; ++i) {
    codes[i] = static_cast<std::uint8_t>(E4m3::code(static_cast<float>(values[i]) / divisor));
  }
}

template <typename T>
void encode(const T* values, std::int64_t rows, std::int64_t columns, std::uint8_t* codes, float* scales) {
  const std::int64_t grain = std::max<std::int64_t>(kGrainOfRows / std::max<std::int64_t>(columns, 1), 1);
  at::parallel_for(0, rows, grain, [&](std::int64_t first, std::int64_t end) {
    kernels::on_widest([&] {
      for (std::int64_t row = first; row < end; ++row) {
        scales[row] = kernels::largest_magnitude(values + row * columns, columns) / E4m3::kLargest;
        encode_row(values + row * columns, columns, scales[row], codes + row * columns);
      }
    });
  });
}

}  // namespace

void encode_e4m3_rows(std::span<const float> values, std::int64_t columns, std::uint8_t* codes, float* scales) {
  encode(values.data(), static_cast<std::int64_t>(values.size()) / columns, columns, codes, scales);
}

void encode_rows(const QuantizedRows& matrix, const at::Tensor& values, at::Tensor& stored) {
  if (matrix.format.kind != CodeKind::e4m3) throw std::logic_error("codes of another kind have no masters");
  auto* const bytes = stored.mutable_data_ptr<std::uint8_t>();
  std::uint8_t* const codes = bytes + matrix.parts().codes_begin;
  auto* const scales = reinterpret_cast<float*>(bytes);
  const auto encode_all = [&](const auto* numbers) {
    encode(numbers, matrix.rows, matrix.row_elements, codes, scales);
  };
  if (values.scalar_type() == at::kFloat) return encode_all(values.const_data_ptr<float>());
  if (values.scalar_type() == at::kHalf) return encode_all(values.const_data_ptr<at::Half>());
  encode_all(values.const_data_ptr<at::BFloat16>());
}

}  // namespace vramfit
