// Which line of whose code asked for memory, and what training step it was part of: read from the frames of a Python
// traceback, or from those that a memory snapshot records.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "program/ledger/ledger.h"

namespace vramfit {

/// A frame as a traceback names it. C++ frames of a snapshot have no line.
struct CodeFrame {
  std::string_view file, function;
  std::int64_t line = 0;
};

/// A frame, and what its names say.
struct ReadFrame {
  CodeFrame frame;
  std::optional<Phase> phase;
  bool is_python = false, is_library = false, is_torch = false;
};
ReadFrame read_frame(const CodeFrame& frame);

/// A frame that is kept.
struct CodePlace {
  std::string file, function;  // of a library the file as its package names it: "torch/nn/functional.py"
  std::int64_t line = 0;
  auto operator<=>(const CodePlace&) const = default;
};

struct CodeSite {
  std::optional<Phase> phase;          // none where no frame says
  bool recomputes = false;             // backward computes activations again
  std::optional<CodePlace> own;        // the innermost line outside of all libraries
  std::optional<CodePlace> library;    // the innermost line of a library other than torch
  std::optional<CodePlace> innermost;  // the innermost line of Python
  std::optional<CodePlace> place;      // the innermost of these that isn't torch's; torch's if there is no other
};

/// What the stack was doing. The outermost frame comes first.
CodeSite site_of(std::span<const ReadFrame> frames);

/// "train.py:41 in main", safe to print.
std::string place_text(const CodePlace& place);

/// "backward (activations computed again)", "forward"; "" for none.
std::string phase_text(const CodeSite& site);

}  // namespace vramfit
