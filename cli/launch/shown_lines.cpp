#include "cli/launch/shown_lines.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/text/suggest.h"

namespace vramfit {

int terminal_columns() {
  if (::isatty(STDERR_FILENO) != 1) return 0;
  winsize size{};
  const bool told = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return told ? size.ws_col : 80;
}

void ShownLines::show(const std::string& line) {
  if (line.starts_with('\r')) {
    std::fputs(line.c_str(), stderr);
    std::fflush(stderr);
    open_ = true;
    return;
  }
  end_line();
  std::string shown = line;
  std::ranges::replace(shown, '\t', ' ');
  std::fprintf(stderr, "%s\n", printable(shown, shown.size()).c_str());
}

void ShownLines::end_line() {
  if (open_) std::fputs("\n", stderr);
  open_ = false;
}

}  // namespace vramfit
