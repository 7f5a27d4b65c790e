// Text that a shell reads back as it was.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vramfit {

/// One word, in single quotes where a shell (bash, zsh) would read it otherwise: `*.q_proj` is a pattern for files.
std::string shell_quoted(std::string_view word);

/// Words with spaces between them, each quoted where necessary.
std::string shell_words(const std::vector<std::string>& words);

}  // namespace vramfit
