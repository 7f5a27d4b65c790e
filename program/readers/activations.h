// Which buffers are a pass's own.
#pragma once

#include "program/program.h"

namespace vramfit {

/// In the card's own memory, and activations, logits or what the loss makes of them.
inline bool is_activation(const program::Buffer& buffer) {
  const bool counts = buffer.category == Category::activations || buffer.category == Category::logits_and_loss;
  return counts && buffer.space == program::Space::device;
}

}  // namespace vramfit
