// Adapters into the weights of the model that they belong to: W + s B A (Hu et al. 2021, arXiv 2106.09685,
// section 4.1), as PEFT's merge_and_unload() computes it (peft/tuners/lora/layer.py, Linear.get_delta_weight).
#pragma once

#include <cstdint>
#include <string>

#include "base/text/units.h"

namespace vramfit {

struct MergedModel {
  std::int64_t matrices = 0, tensors = 0;  // merged; of the model
  Bytes bytes;                             // of all tensors
};

/// Writes the folder `out` from `base` (a directory, a .safetensors file or an index.json) and PEFT's folder
/// `adapters`: each file of weights with the names, order and dtypes that it has in `base`, and, of a directory, what
/// else a loader reads (configuration, index, tokenizer). Sums are made in fp32 and rounded once, to nearest, to the
/// matrix's dtype. What is in memory at once is one pair of adapters in fp32 and 4 MiB of the matrix. `out` must not be
/// there. It appears when it is whole and on the disk; until then it is called `out`.part. Throws InputError if one of
/// the two is there, or for a configuration that isn't supported; ModelError for weights that don't belong together,
/// are malformed, or become infinite; FaultError if `out` can't be written.
MergedModel merge_adapters(const std::string& base, const std::string& adapters, const std::string& out);

}  // namespace vramfit
