// Text broken into lines.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vramfit {

/// `text` in lines of at most `width` bytes, broken at spaces; a longer word has a line of its own. At least one line.
std::vector<std::string> wrapped(std::string_view text, std::size_t width);

}  // namespace vramfit
