// Patterns over parameter names: `*` any run of characters, `?` one character.
#pragma once

#include <string_view>

namespace vramfit {

/// Whether the whole of `text` matches `pattern`; linear in pattern x text, no backtracking blow-up.
bool matches_glob(std::string_view pattern, std::string_view text);

}  // namespace vramfit
