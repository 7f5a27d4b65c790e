// What cuDNN's engine for attention works in.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "phantom/cudnn/descriptors.h"

namespace vramfit::phantom::cudnn {

using Operations = std::vector<std::shared_ptr<const Descriptor>>;

/// Whether a graph is scaled dot product attention, forward or backward: no other has several products.
bool is_attention(const Operations& operations);

/// Of such a graph of 16 bits, as a composite graph of products, as cuDNN 9.19 answers on an H200 for head dims from 64
/// to 256, with and without a mask, dropout and shared heads. What backward needs besides (sums of rows, dQ in fp32)
/// cudnn-frontend, which is real, adds on its own.
std::int64_t attention_workspace(const Operations& operations);

}  // namespace vramfit::phantom::cudnn
