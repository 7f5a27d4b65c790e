// Everything that watches one rank's run, as its flags ask for: progress, metrics, trace, memory snapshot.
#pragma once

#include <memory>
#include <string>

#include "executor/observe/chrome_trace.h"
#include "executor/observe/metrics.h"
#include "executor/observe/observer.h"
#include "executor/observe/progress.h"
#include "executor/sharding/process_groups.h"
#include "job/cluster/device.h"
#include "job/run/run_options.h"
#include "program/files/plan_reader.h"

namespace vramfit {

struct ObservedRun {
  const RunOptions& options;
  const PlanFile& plan;
  const Graph& graph;
  const RankPlace& place;
  const Device& device;
  bool phantom = false;
  bool reports = false;  // this rank speaks for all: it shows progress and writes metrics
};

class RunObservers final : public TrainObserver {
 public:
  /// Opens what is written to; throws FaultError. The device is open and no tensor has been made on it.
  explicit RunObservers(const ObservedRun& run);

  /// Before the first step; throws FaultError when the metrics can't be written.
  void begin(std::int64_t first_step);
  /// After the last step, or when a step failed, while what was trained still lives: writes trace and snapshot. What
  /// can't be written is a warning.
  void finish();
  /// The table of phases, where it is wanted.
  void show_phases(const RankEstimate& measured) const;

  void step_begins(std::int64_t step) override;
  void step_ends(const StepResult& result) override;
  void instruction_begins(const Instruction& instruction, Phase phase) override;
  void instruction_ends() override;
  void op_begins(int segment, int op) override;
  void op_ends() override;
  std::int64_t collective_begins(std::string_view what, std::string_view group, Bytes bytes) override;
  void collective_ends(std::int64_t id) override;

 private:
  StepReport report_of(const StepResult& result) const;
  void write_snapshot();
  std::string file_of_rank(const std::string& path) const;

  ObservedRun run_;
  RunFacts facts_;
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<MetricsFile> metrics_;
  std::unique_ptr<ChromeTrace> trace_;
  std::string trace_path_, snapshot_path_;  // this rank's; "": none
  bool tracing_ = false;                    // the current step is one of those
};

/// "trace.json" of rank 3 of several: "trace.rank3.json", so that what opens a file by its ending still does. A pipe or
/// a device can't hold several: it gets rank 0's, and the others' path is "".
std::string path_of_rank(const std::string& path, int rank, int ranks);

}  // namespace vramfit
