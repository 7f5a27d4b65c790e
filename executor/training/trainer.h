// Runs a job's schedule on one rank: one short function per instruction.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "executor/checkpoint/snapshot.h"
#include "executor/checkpoint/weights.h"
#include "executor/data/data.h"
#include "executor/optimizers/optimizers.h"
#include "executor/sharding/process_groups.h"
#include "job/cluster/device.h"
#include "job/job.h"
#include "job/run/run_options.h"
#include "model_specs/graph.h"
#include "program/program.h"

namespace vramfit {

class Arena;
struct FileCalls;
struct FinalFolders;
struct StateSource;
class TrainObserver;

struct StepResult {
  std::int64_t step = 0;  // from 1
  double loss = 0;        // of the global batch: sum over label tokens / their number
  double gradient_norm = 0, learning_rate = 0, seconds = 0;
  std::int64_t tokens = 0;  // of the global batch
  double loss_scale = 0;    // of the next step; 0: the loss isn't scaled
  bool skipped = false;     // gradients overflowed, so nothing was changed
};

struct TrainInputs {
  const Graph& graph;
  const Job& job;
  const Device& device;
  ProcessGroups& groups;
  WeightSource& weights;
  StateSource* states = nullptr;                                         // of a checkpoint that is resumed; null: zeros
  const std::vector<std::pair<std::string, double>>* numbers = nullptr;  // likewise (Manifest::numbers)
  const Dataset& data;
  const program::Program& lowered;  // of this rank (executor/training/program_to_train.h)
  TrainOptions options;
  DumpOptions dumps;
  Arena* arena = nullptr;             // of the program's memory (executor/meter/arena.h); null: none
  int card = 0;                       // index of the CUDA device
  bool has_values = true;             // false on phantom GPUs: nothing read from them means anything
  TrainObserver* observer = nullptr;  // told what happens; may be null
};

class Trainer {
 public:
  explicit Trainer(const TrainInputs& inputs);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  Trainer(Trainer&&) = delete;
  Trainer& operator=(Trainer&&) = delete;

  /// Makes shards, states and tables; the meter's phase is `load`.
  void load();
  /// Step `step` (from 1). Throws FaultError when the loss is not a finite number.
  StepResult step(std::int64_t step);
  /// Copies this rank's part of the training state, as it is between two steps, to where the program keeps the copy
  /// (RunEffects::saves).
  void snapshot(Snapshot& into) const;
  /// What a checkpoint's manifest keeps of it: the loss scale. Waits for the device.
  std::vector<std::pair<std::string, double>> numbers() const;
  /// The whole model as transformers reads it, the adapters as PEFT does, or both; a collective call, between two steps
  /// (RunEffects::saves_full and saves_adapters).
  void save_full(FileCalls& files, const FinalFolders& folders) const;
  /// Writes what `dumps` asks for at the end.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vramfit
