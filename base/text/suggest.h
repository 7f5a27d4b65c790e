// "did you mean": the nearest known name to a misspelt one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vramfit {

/// Fewest insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`, ignoring case.
std::size_t edit_distance(std::string_view a, std::string_view b);

/// The known name nearest to `wrong`, or "" if none is near (more than a third of its letters differ).
std::string nearest_name(std::string_view wrong, const std::vector<std::string>& known);

/// "; did you mean \"full-shard\"? (known: ...)". The list is left out when it has more than 12 names.
std::string did_you_mean(std::string_view wrong, const std::vector<std::string>& known);

/// `text` made safe for one line of a terminal: control characters and broken UTF-8 become '?', at most `most` bytes.
std::string printable(std::string_view text, std::size_t most = 200);

/// `text` with every byte that is not part of valid UTF-8 replaced by '?'.
std::string replace_broken_utf8(std::string_view text);

}  // namespace vramfit
