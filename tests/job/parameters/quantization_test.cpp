#include "job/parameters/quantization.h"

#include <doctest/doctest.h>

#include <limits>

#include "base/error.h"

namespace vramfit {

namespace {

std::int64_t bytes(const char* name, std::int64_t rows, std::int64_t row_elements) {
  return quantized_bytes(*quantization_named(name), rows, row_elements).n;
}

}  // namespace

TEST_CASE("codes and scales take what bitsandbytes' tensors do") {
  // quantize_4bit(quant_type="nf4") of 1024 x 4096: 2097152 bytes of codes, 65536 scales.
  CHECK(bytes("nf4", 1024, 4096) == 2'097'152 + 4 * 65'536);
  // With compress_statistics: those scales in a byte each, 256 scales of them, and an offset.
  CHECK(bytes("nf4-double", 1024, 4096) == 2'097'152 + 65'536 + 4 * 256 + 4);
  // int8_vectorwise_quant: a byte an element, a scale for each row.
  CHECK(bytes("int8", 1024, 4096) == 4'194'304 + 4 * 1024);
  // torchao's Float8Tensor with PerRow: likewise.
  CHECK(bytes("fp8", 1024, 4096) == 4'194'304 + 4 * 1024);
}

TEST_CASE("a last block that isn't full has a scale of its own, and half a byte is a byte") {
  CHECK(bytes("nf4", 7, 11) == 39 + 4 * 2);
  CHECK(bytes("nf4-double", 7, 11) == 39 + 2 + 4 + 4);
  CHECK(bytes("int8", 7, 11) == 77 + 4 * 7);
  CHECK(bytes("nf4-double", 257, 64) == 8224 + 257 + 4 * 2 + 4);
}

TEST_CASE("a size beyond 64 bits is an error") {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  for (const Quantization& format : kQuantizations) {
    CHECK_THROWS_AS(quantized_bytes(format, most / 2, 3), InputError);
    CHECK_THROWS_AS(quantized_bytes(format, most / 3, 1), InputError);  // bits of its codes
  }
  CHECK(quantization_named("none") == nullptr);
}

}  // namespace vramfit
