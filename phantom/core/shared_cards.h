// What every process of the node uses on each card, in a file that they all map: `cards.shared` of the session folder.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "phantom/core/visibility.h"

namespace vramfit::phantom {

/// Takes `bytes` (negative: gives back) for this process if the card still has them, over all living processes.
bool take_from_card(int card, std::int64_t bytes);
/// Over all living processes.
PHANTOM_CORE std::int64_t used_of_card(int card);
/// By the card's place in the node: the processes that use it, and how much each does.
PHANTOM_CORE std::vector<std::pair<std::int32_t, std::int64_t>> users_of_place(int place);
/// By this process alone.
std::int64_t used_by_process(int card);

}  // namespace vramfit::phantom
