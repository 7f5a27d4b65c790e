// Cards by name: how a name is looked up, and what to say of one that the catalog does not hold.
#pragma once

#include <string>
#include <string_view>

#include "job/cluster/cluster.h"

namespace vramfit {

/// Lower case without '-', '_' and spaces: "RTX 4090", "rtx-4090" and "RTX4090" are one name.
std::string folded_card_name(std::string_view name);

/// The catalog's card of this name or alias, folded; null when there is none.
const Card* find_card(std::string_view name);

/// What follows the quoted name of an unknown card: " is from AMD: NVIDIA only, today"; the nearest card of the catalog
/// for one that is known by name only; the sizes of a model; or the name that was misspelt. Another model is never
/// taken for a misspelling: RTX4070 is not RTX4090.
std::string unknown_card_hint(std::string_view name);

}  // namespace vramfit
