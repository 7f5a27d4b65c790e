// Shows what a rank writes to stderr: lines, and a progress bar that is rewritten in place.
#pragma once

#include <string>

namespace vramfit {

/// Columns of the terminal that stderr is; 0 when it is none. At least 80 where the terminal doesn't say.
int terminal_columns();

class ShownLines {
 public:
  /// A line that begins with a carriage return is a bar (executor/observe/progress.cpp): it overwrites the previous
  /// bar, and stays when another line comes. In other lines control characters become '?'.
  void show(const std::string& line);
  /// Ends a bar's line.
  void end_line();

 private:
  bool open_ = false;
};

}  // namespace vramfit
