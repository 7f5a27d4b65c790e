// Formats in which weights that aren't trained may be stored: codes of few bits, and scales that blocks of them share.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/units.h"

namespace vramfit {

/// Sizes are in bits. A rank's rows of a matrix have codes of their own, and scales.
struct Quantization {
  std::string_view name;
  std::int64_t code = 0;         // of one element
  std::int64_t block = 0;        // elements that share a scale; 0: those of a row
  std::int64_t scale = 0;        // of one block
  std::int64_t scale_block = 0;  // scales that share a further scale; 0: they have none
  std::int64_t scale_scale = 0;  // that further one's
  std::int64_t offset = 0;       // one number for all scales
};

/// bitsandbytes 0.50.2 makes tensors of these sizes (bitsandbytes/functional.py). Its tables of 16 and 256 values are
/// constants of kernels.
inline constexpr std::array kQuantizations{
    // QLoRA (Dettmers et al. 2023), section 3: blocks of 64. quantize_4bit
    Quantization{.name = "nf4", .code = 4, .block = 64, .scale = 32},
    // The same section: scales, less their mean, in 8 bits, in blocks of 256. quantize_4bit(compress_statistics=True)
    Quantization{
        .name = "nf4-double", .code = 4, .block = 64, .scale = 8, .scale_block = 256, .scale_scale = 32, .offset = 32},
    // LLM.int8() (Dettmers et al. 2022), section 3: a scale for each row. int8_vectorwise_quant
    Quantization{.name = "int8", .code = 8, .scale = 32},
};

/// The row called `name`, which --quantization takes; null for "none".
const Quantization* quantization_named(std::string_view name);

/// What `rows` of `row_elements` take: numbers of 32 bits, scales of 8 bits and codes, each rounded up to whole bytes.
Bytes quantized_bytes(const Quantization& format, std::int64_t rows, std::int64_t row_elements);

}  // namespace vramfit
