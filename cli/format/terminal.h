// What the user's terminal can show. Colours only on a terminal and never with NO_COLOR; block characters only in a
// UTF-8 locale.
#pragma once

#include <string>
#include <string_view>

#include "base/text/units.h"

namespace vramfit {

struct Terminal {
  bool color = false, utf8 = false;
};

/// From the environment and whether stdout is a terminal.
Terminal detect_terminal();

/// Columns of the terminal: COLUMNS, else those of stdout or stderr, else 80; at least 40.
int terminal_width();

enum class Style { plain, bold, dim, good, warning, bad };

/// `text` in a style, or unchanged without colour.
std::string styled(const Terminal& terminal, Style style, std::string_view text);

/// A bar of at most `cells` cells for a share in [0, 1].
std::string bar(const Terminal& terminal, double share, int cells);

/// bar() with spaces up to `cells` cells.
std::string padded_bar(const Terminal& terminal, double share, int cells);

/// "83.2": GiB with one digit after the point, for lines that name the unit once.
std::string gib(Bytes bytes);

/// "8.03 B", "134.5 M": a count of parameters.
std::string short_count(std::int64_t count);

}  // namespace vramfit
