// One run at a time writes into a directory of checkpoints.
#pragma once

#include <string>

#include "executor/checkpoint/open_folder.h"

namespace vramfit {

/// Holds DIR/.vramfit-lock, which says who holds it. The kernel lets go when the process ends, however it ends; a file
/// that a killed run left locks nobody out.
class FolderLock {
 public:
  /// Throws InputError "FLAG DIR: in use by another run (pid 12 on HOST, started ...)" when another process holds it.
  /// Warns, and locks nothing, on a file system that has no locks.
  FolderLock(const OpenFolder& folder, const std::string& flag);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  FolderLock(FolderLock&&) = delete;
  FolderLock& operator=(FolderLock&&) = delete;

 private:
  bool take(const OpenFolder& folder, const std::string& flag);
  void sign() const;

  int folder_ = -1, file_ = -1;  // descriptors; none of the file where locks are missing
};

}  // namespace vramfit
