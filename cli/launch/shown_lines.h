// What a rank writes to stderr, as a person sees it: lines, and a progress bar that stays in its place.
#pragma once

#include <string>

namespace vramfit {

/// Columns of the terminal that stderr is; 0 when it is none. At least 80 where the terminal doesn't say.
int terminal_columns();

class ShownLines {
 public:
  /// A line that begins with a carriage return is a bar (executor/observe/progress.cpp): it is written over the one
  /// before it, and left standing when another line comes.
  void show(const std::string& line);
  /// Ends a bar's line.
  void end_line();

 private:
  bool open_ = false;
};

}  // namespace vramfit
