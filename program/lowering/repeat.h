// Writes once more what a micro-batch has done, for one that does the same again.
#pragma once

#include <cstddef>
#include <vector>

#include "program/lowering/writer.h"

namespace vramfit::program {

class Repeat {
 public:
  /// What is written from now on can be repeated. `tokens`: how many there are; both outlive this.
  Repeat(Writer& writer, int& tokens);

  /// Whether everything is held as it was: what has been allocated since is free again, and nothing else is.
  bool is_closed() const;
  /// If it is: writes all of it once more, with buffers and tokens of its own.
  void write();

 private:
  struct Shifts;

  Writer& writer_;
  int& tokens_;
  int first_token_;
  std::size_t instructions_, accesses_, inside_, bindings_;  // where it begins
  std::vector<int> owners_;                                  // of the buffers that there were
};

}  // namespace vramfit::program
