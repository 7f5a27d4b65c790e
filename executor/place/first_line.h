// LibTorch's errors carry a stack trace after their first line.
#pragma once

#include <exception>
#include <string>

namespace vramfit {

inline std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace vramfit
