// Writes sharded checkpoints in the background: one at a time, from one copy on the host.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <thread>

#include "executor/checkpoint/files.h"
#include "executor/checkpoint/manifest.h"
#include "executor/checkpoint/snapshot.h"
#include "executor/sharding/process_groups.h"
#include "job/job.h"

namespace vramfit {

struct SaverOptions {
  std::string directory;
  std::int64_t keep = 3;  // committed checkpoints that stay
  int rank = 0, world = 1;
  std::chrono::milliseconds timeout{600000};  // how long rank 0 waits for the others' files
};

/// Rank r writes its own file and tells rank 0, which commits when all have. A save that fails is reported by the next
/// call of this class; the committed checkpoints stay as they are.
class Saver {
 public:
  Saver(SaverOptions options, FileCalls& files, ProcessGroups& groups, Job job);
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;
  Saver(Saver&&) = delete;
  Saver& operator=(Saver&&) = delete;

  /// Waits for the previous save, lets `fill` copy the state, and starts to write. `manifest`: all but the files.
  void save(Manifest manifest, const std::function<void(Snapshot&)>& fill);
  /// Throws the error of the last save if it has already failed.
  void check();
  /// Waits until the last save has ended: on rank 0 committed, on others written. Throws what made it fail.
  void wait();

 private:
  void write();
  SavedFile write_part();
  void collect_parts(SavedFile own);
  SavedFile part_of(int rank);

  SaverOptions options_;
  FileCalls& files_;
  ProcessGroups& groups_;
  Job job_;
  Snapshot snapshot_;
  Manifest manifest_;
  std::exception_ptr failure_;
  std::atomic<bool> ended_ = true, given_up_ = false;
  std::thread thread_;
};

}  // namespace vramfit
