#include "base/text/shell_quoted.h"

namespace vramfit {

std::string shell_quoted(std::string_view word) {
  constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789@%_-+=:,./";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos) return std::string(word);
  std::string text(1, '\'');
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  text += '\'';
  return text;
}

std::string shell_words(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += ' ';
    text += shell_quoted(word);
  }
  return text;
}

}  // namespace vramfit
