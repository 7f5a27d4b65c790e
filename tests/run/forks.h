// Ranks as forks of one process that has LibTorch loaded (train_forks.cpp), for tests of many runs.
#pragma once

#include <cstdio>
#include <string>

#include "tests/support/temporary_directory.h"

namespace vramfit::testing {

/// A folder with vramfit, and a vramfit-train whose runs are forks of one process that lives as long as this one:
/// LibTorch is loaded once, not once a rank.
class TrainForks {
 public:
  /// Forks of a process under the stand-ins play the phantom GPUs of the run that starts them.
  enum class Cards { none, phantom };
  explicit TrainForks(Cards cards);
  ~TrainForks();
  TrainForks(const TrainForks&) = delete;
  TrainForks& operator=(const TrainForks&) = delete;

  /// The program to start; runs that are started from now on are these forks.
  std::string vramfit() const;

 private:
  std::string socket() const { return (directory_.path() / "socket").string(); }

  TemporaryDirectory directory_;
  std::FILE* server_ = nullptr;
};

}  // namespace vramfit::testing
