// The text of a cluster, "2x8xH100-80GB": its card, and that of another number of cards.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vramfit {

/// "H100-80GB@95.04GiB,host=1TiB" of "2x8xH100-80GB@95.04GiB,host=1TiB": the card as it was given, and what follows it.
std::string_view card_text(std::string_view cluster);

/// "2x8xH100-80GB"; of one node "8xH100-80GB".
std::string cluster_text(std::int64_t nodes, std::int64_t cards_per_node, std::string_view card);

}  // namespace vramfit
