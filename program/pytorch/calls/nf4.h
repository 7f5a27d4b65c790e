// torchao's NF4Tensor of a matrix in 16 bits: codes of 4 bits, scales of 8, and scales of these in the matrix's type.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "model_specs/graph.h"
#include "program/pytorch/calls/torch.h"

namespace vramfit::eager {

/// Bytes of the scales, and of theirs.
using Nf4Scales = std::vector<std::int64_t>;

/// Of a matrix of `elements`. Throws LibraryFails where torchao can't store it.
Nf4Scales nf4_scales(std::string_view name, std::int64_t elements);
/// Of what each of `ranks` has of it. Throws LibraryFails where torchao can't split it.
Nf4Scales nf4_scales_of_rank(const Parameter& matrix, std::int64_t ranks);

/// Such a frozen parameter, which lives as long as what is returned.
std::vector<Tensor> make_nf4(Torch& torch, int parameter, std::int64_t elements, std::string_view name);
/// The same without the codes.
std::vector<Tensor> make_nf4_scales(Torch& torch, const Nf4Scales& bytes, std::string_view name);

}  // namespace vramfit::eager
