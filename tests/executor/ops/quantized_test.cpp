// Matrices in codes: what CPU ranks and GPUs make of them, and what of them depends on how rows arrive.
#include <ATen/ATen.h>
#include <c10/util/Float8_e4m3fn.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "executor/ops/e4m3.h"
#include "executor/ops/nf4_vectors.h"
#include "executor/ops/quantized_torch.h"

namespace vramfit::testing {

namespace {

using Bytes8 = std::vector<std::uint8_t>;

struct Matrix {
  QuantizedRows rows;
  at::Tensor stored;  // with the bytes of each rank's storage

  Matrix(const char* format, std::int64_t capacity, std::int64_t own, std::int64_t columns)
      : rows{.format = *quantization_named(format), .capacity = capacity, .rows = own, .row_elements = columns},
        stored(at::zeros({quantized_bytes(rows.format, capacity, columns).n}, at::kByte)) {}

  std::span<std::uint8_t> bytes() const {
    return {stored.mutable_data_ptr<std::uint8_t>(), static_cast<std::size_t>(stored.numel())};
  }
};

at::Tensor random_weights(std::int64_t elements) {
  at::manual_seed(3);
  return at::randn({elements}) * at::exp(at::randn({elements}) * 0.5);
}

/// `at_once`: rows that arrive together; a multiple of what the quantizer asks for.
void quantize(const Matrix& matrix, const at::Tensor& values, std::int64_t at_once) {
  RowsQuantizer quantizer(matrix.rows, matrix.bytes());
  const std::int64_t rows = quantizer.row_step() * at_once;
  for (std::int64_t row = 0; row < matrix.rows.rows; row += rows) {
    const std::int64_t count = std::min(rows, matrix.rows.rows - row) * matrix.rows.row_elements;
    quantizer.add({values.const_data_ptr<float>() + row * matrix.rows.row_elements, static_cast<std::size_t>(count)});
  }
  const std::int64_t scales = scales_of(matrix.rows.format, matrix.rows.elements(), matrix.rows.row_elements);
  quantizer.finish(scales > 0 ? static_cast<float>(quantizer.sum_of_scales() / static_cast<double>(scales)) : 0.0F);
}

at::Tensor whole_on_cpu(const Matrix& matrix, at::ScalarType type) {
  at::Tensor into = at::full({matrix.rows.capacity * matrix.rows.row_elements}, 7, type);
  dequantize_on_cpu(matrix.rows, matrix.stored, into);
  return into;
}

at::Tensor whole_by_calls(const Matrix& matrix, at::ScalarType type) {
  const QuantizedRows& rows = matrix.rows;
  at::Tensor into = at::full({rows.capacity * rows.row_elements}, 7, type);
  const at::Tensor scratch = at::full({DequantizeScratch(rows.format, rows.capacity, rows.row_elements).end}, NAN);
  dequantize_by_calls(rows, matrix.stored, into, scratch);
  return into;
}

struct Shape {
  std::int64_t capacity, rows, columns;
};
/// Whole blocks; with padding; odd; of less than a block; more than a chunk of a GPU's; none.
const std::vector<Shape> kShapes{{128, 128, 256}, {40, 37, 64},     {7, 7, 11}, {3, 2, 5},
                                 {1, 1, 1},       {600, 599, 4099}, {4, 0, 8}};

}  // namespace

TEST_CASE("CPU ranks and GPUs make the same numbers of codes, and zeros of padding") {
  for (const char* format : {"nf4", "nf4-double", "int8", "fp8"}) {
    for (const Shape& shape : kShapes) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
        CAPTURE(format);
        CAPTURE(shape.rows);
        CAPTURE(shape.columns);
        const Matrix matrix(format, shape.capacity, shape.rows, shape.columns);
        const at::Tensor values = random_weights(shape.rows * shape.columns);
        quantize(matrix, values, 16);
        const at::Tensor cpu = whole_on_cpu(matrix, type), calls = whole_by_calls(matrix, type);
        CHECK(at::equal(cpu, calls));
        const std::int64_t own = matrix.rows.elements();
        CHECK(cpu.narrow(0, own, cpu.numel() - own).eq(0).all().item<bool>());
        if (own == 0) continue;
        const at::Tensor off = (cpu.narrow(0, 0, own).to(at::kFloat) - values).abs();
        CHECK(off.max().item<double>() <
              0.2 * values.abs().max().item<double>());  // wider than half a step of any code
      }
    }
  }
}

TEST_CASE("what is stored does not depend on how many rows arrive at once") {
  for (const char* format : {"nf4", "nf4-double", "int8", "fp8"}) {
    CAPTURE(format);
    const Matrix one(format, 640, 640, 48), many(format, 640, 640, 48);
    const at::Tensor values = random_weights(640 * 48);
    quantize(one, values, 1);
    quantize(many, values, 1000);
    CHECK(at::equal(one.stored, many.stored));
  }
}

TEST_CASE("a code of NF4 is the nearest of its 16 numbers") {
  const Matrix matrix("nf4", 64, 64, 64);
  const at::Tensor values = random_weights(64 * 64);
  quantize(matrix, values, 64);
  const at::Tensor whole = whole_on_cpu(matrix, at::kFloat);
  const at::Tensor scales = values.view({-1, 64}).abs().amax(1, true);
  const at::Tensor numbers = at::from_blob(const_cast<float*>(kNormalFloats.data()), {16});
  const at::Tensor nearest = (values.view({-1, 64}) / scales).unsqueeze(2).sub(numbers).abs().amin(2).mul(scales);
  CHECK(at::allclose((whole - values).abs().view({-1, 64}), nearest, 1e-5, 1e-6));
}

TEST_CASE("FP8 numbers are PyTorch's: all codes, and the nearest of numbers of every size") {
  for (std::uint32_t code = 0; code < 256; ++code) {
    CAPTURE(code);
    const float theirs = c10::Float8_e4m3fn(static_cast<std::uint8_t>(code), c10::Float8_e4m3fn::from_bits());
    CHECK((E4m3::value(code) == theirs || (std::isnan(theirs) && std::isnan(E4m3::value(code)))));
  }
  at::manual_seed(4);
  const at::Tensor sizes = at::exp2(at::rand({20000}) * 22 - 13);
  const at::Tensor halves = at::arange(0, 4096) * 0x1p-11;  // between neighbours without an exponent, too
  const at::Tensor values =
      at::cat({sizes, halves, sizes.round(), -sizes, at::tensor({NAN, 448.F, 449.F, -1e9F, -0.F})});
  const at::Tensor theirs = values.clamp(-448, 448).to(at::kFloat8_e4m3fn).view(at::kByte);
  std::int64_t others = 0;
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    const std::uint32_t code = E4m3::code(values[i].item<float>()), expected = theirs[i].item<std::uint8_t>();
    if (code != expected && (code & expected & 0x7FU) != 0x7FU) ++others;
  }
  CHECK(others == 0);
}

TEST_CASE("masters in 16 bits have the codes of their numbers in fp32, whatever the rows beside them are") {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    CAPTURE(static_cast<int>(type));
    const Matrix arrived("fp8", 40, 37, 64), encoded("fp8", 40, 37, 64);
    at::Tensor values = random_weights(37 * 64).to(type);
    values.narrow(0, 64, 64).zero_();
    quantize(arrived, values.to(at::kFloat), 5);
    at::Tensor stored = encoded.stored;
    encode_rows(encoded.rows, values, stored);
    CHECK(at::equal(arrived.stored, stored));
    CHECK(whole_on_cpu(encoded, at::kFloat).narrow(0, 64, 64).eq(0).all().item<bool>());
  }
}

#if defined(__x86_64__)
TEST_CASE("codes are looked up alike in vectors of any width") {
  at::manual_seed(5);
  const at::Tensor codes = at::randint(256, {32}, at::kByte);
  const auto check = [&](auto sample) {
    using Bits = decltype(sample);
    std::array<Bits, 16> table{};
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<Bits>(0x9E3779B9U * (i + 1));
    std::array<Bits, 64> plain{}, wide{};
    kernels::look_up_pairs(codes.const_data_ptr<std::uint8_t>(), table.data(), 32, plain.data());
    if (kernels::find_vectors() != kernels::Vectors::sse2) {
      kernels::look_up_avx2(codes.const_data_ptr<std::uint8_t>(), table.data(), wide.data());
      CHECK(plain == wide);
    }
    if (kernels::find_vectors() == kernels::Vectors::avx512) {
      kernels::look_up_avx512(codes.const_data_ptr<std::uint8_t>(), table.data(), wide.data());
      CHECK(plain == wide);
    }
  };
  check(std::uint32_t{});
  check(std::uint16_t{});
}
#endif

}  // namespace vramfit::testing
