// What a run does about checkpoints: where it goes on from, when it saves, what it leaves.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "executor/checkpoint/files.h"
#include "executor/checkpoint/folder_lock.h"
#include "executor/checkpoint/resume.h"
#include "executor/checkpoint/saver.h"
#include "executor/data/data.h"
#include "executor/sharding/process_groups.h"
#include "job/run/run_options.h"
#include "program/files/plan_reader.h"

namespace vramfit {

class Trainer;

struct RunCheckpointInputs {
  const RunOptions& options;
  const PlanFile& plan;
  const RankPlace& place;
  ProcessGroups& groups;
};

class RunCheckpoints {
 public:
  /// Finds the checkpoint to resume and makes the directory ready; a collective call. Throws InputError for a directory
  /// that holds another run's checkpoints or that another run is writing to, and as `resume` does.
  RunCheckpoints(const RunCheckpointInputs& inputs, const Graph& graph, const Dataset& data);

  /// Of the checkpoint that is resumed; null in a new run.
  SavedStates* states() { return resumed_.states.get(); }
  /// Likewise what its manifest keeps.
  const std::vector<std::pair<std::string, double>>* numbers() const {
    return resumed_.states ? &resumed_.manifest.numbers : nullptr;
  }
  std::int64_t first_step() const { return resumed_.manifest.step + 1; }

  /// Saves if it is time. Throws when an earlier save failed.
  void after_step(std::int64_t step, const Trainer& trainer);
  /// Waits for the last save; writes the full checkpoint.
  void finish(const Trainer& trainer);

 private:
  void prepare_full(const std::string& directory);
  void prepare_adapters(const std::string& directory);
  void prepare(const std::string& directory);

  const RunOptions& options_;
  const PlanFile& plan_;
  const RankPlace& place_;
  std::unique_ptr<FileCalls> files_;
  std::unique_ptr<FolderLock> lock_, full_lock_, adapter_lock_;  // rank 0's, of --save, --save-full, --save-adapters
  std::vector<std::pair<std::string, std::string>> facts_;
  Resumed resumed_;
  std::unique_ptr<Saver> saver_;
  std::string adapter_config_;
};

/// What a run that resumes must have in common with the one that saved: the model, what is trained and how, the data.
/// World size, mesh, sharding, wrapping and how a batch is cut into micro-batches may differ. Of files what they hold
/// counts, not their paths; the gradient masks' is read by rank 0 for all, a collective call.
std::vector<std::pair<std::string, std::string>> run_facts(const RunCheckpointInputs& inputs, const Graph& graph,
                                                           const Dataset& data);

}  // namespace vramfit
