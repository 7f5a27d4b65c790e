// Formats in which weights may be stored: codes of few bits, and scales that blocks of them share. Weights that are
// trained may only where their masters are elsewhere.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/text/units.h"

namespace vramfit {

/// What a code stands for: the place of a number in a table, a whole number, or a number of FP8.
enum class CodeKind : std::uint8_t { normal_float, integer, e4m3 };

/// Sizes are in bits. A rank's rows of a matrix have codes of their own, and scales.
struct Quantization {
  std::string_view name;
  std::int64_t code = 0;         // of one element
  std::int64_t block = 0;        // elements that share a scale; 0: those of a row
  std::int64_t scale = 0;        // of one block
  std::int64_t scale_block = 0;  // scales that share a further scale; 0: they have none
  std::int64_t scale_scale = 0;  // that further one's
  std::int64_t offset = 0;       // one number for all scales
  CodeKind kind = CodeKind::normal_float;
  bool trains = false;  // also matrices that are trained, of which host memory has the masters
};

/// bitsandbytes 0.50.2 makes tensors of these sizes (bitsandbytes/functional.py), but for fp8. Its tables of 16 and 256
/// values are constants of kernels.
inline constexpr std::array kQuantizations{
    // QLoRA (Dettmers et al. 2023), section 3: blocks of 64. quantize_4bit
    Quantization{.name = "nf4", .code = 4, .block = 64, .scale = 32},
    // The same section: scales, less their mean, in 8 bits, in blocks of 256. quantize_4bit(compress_statistics=True)
    Quantization{
        .name = "nf4-double", .code = 4, .block = 64, .scale = 8, .scale_block = 256, .scale_scale = 32, .offset = 32},
    // LLM.int8() (Dettmers et al. 2022), section 3: a scale for each row. int8_vectorwise_quant
    Quantization{.name = "int8", .code = 8, .scale = 32, .kind = CodeKind::integer},
    // torchao 0.18.0's Float8Tensor with PerRow: a scale for each row (torchao/quantization/quant_primitives.py,
    // _choose_scale_float8, _quantize_affine_float8)
    Quantization{.name = "fp8", .code = 8, .scale = 32, .kind = CodeKind::e4m3, .trains = true},
};

/// The row called `name`, which --quantization takes; null for "none".
const Quantization* quantization_named(std::string_view name);

/// What `rows` of `row_elements` take: numbers of 32 bits, scales of 8 bits and codes, each rounded up to whole bytes.
Bytes quantized_bytes(const Quantization& format, std::int64_t rows, std::int64_t row_elements);

}  // namespace vramfit
