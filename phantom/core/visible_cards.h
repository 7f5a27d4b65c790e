// CUDA_VISIBLE_DEVICES: which of the node's cards this process sees, and in which order. A card's number is everywhere
// the one that the program uses; only what processes share is by the card's place in the node.
#pragma once

#include "phantom/core/visibility.h"

namespace vramfit::phantom {

/// How many cards the program sees.
PHANTOM_CORE int card_count();
/// 0 .. cards_per_node - 1, for a card that the program sees.
PHANTOM_CORE int place_of_card(int card);
/// They are found again at the next call.
void forget_visible_cards();

}  // namespace vramfit::phantom
