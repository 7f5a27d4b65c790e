// Whether the torch of a Python interpreter can be rehearsed: tried, not guessed.
#pragma once

#include <string>
#include <vector>

namespace vramfit {

struct PythonCheck {
  std::string python, version;         // path, "3.11.2"
  std::string torch, cuda;             // "2.11.0+cu130", "13.0"; "" without
  std::string why_not;                 // "" when a small product ran on a simulated card
  std::string card;                    // the one that it ran on, as torch names it
  std::vector<std::string> stand_ins;  // libraries that answered in a GPU library's place: "cuda13/libcudart.so.13"
};

/// Runs a few lines of Python on one simulated card, at most two minutes. `python` is a path or a name in PATH. Throws
/// InputError when there is no such program, FaultError when the simulated GPUs are not built.
PythonCheck check_python(const std::string& python);

}  // namespace vramfit
