#include "cli/format/wrap.h"

#include <algorithm>

namespace vramfit {

std::vector<std::string> wrapped(std::string_view text, std::size_t width) {
  std::vector<std::string> lines{""};
  while (!text.empty()) {
    const std::size_t space = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, space);
    std::string& line = lines.back();
    if (line.empty()) {
      line = word;
    } else if (line.size() + 1 + word.size() <= width) {
      line += ' ';
      line += word;
    } else {
      lines.emplace_back(word);
    }
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return lines;
}

}  // namespace vramfit
