// Everything that watches one rank's run, as its flags ask for: progress, metrics, traces.
#pragma once

#include <memory>

#include "estimator/device.h"
#include "estimator/json/plan_reader.h"
#include "executor/observe/metrics.h"
#include "executor/observe/observer.h"
#include "executor/observe/progress.h"
#include "executor/options.h"
#include "executor/sharding/process_groups.h"

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
  /// Opens what is written to; throws FaultError.
  explicit RunObservers(const ObservedRun& run);

  /// Before the first step; throws FaultError when the metrics can't be written.
  void begin(std::int64_t first_step);
  /// After the last step, or when a step failed. Never throws.
  void finish();

  void step_ends(const StepResult& result) override;

 private:
  StepReport report_of(const StepResult& result) const;

  ObservedRun run_;
  RunFacts facts_;
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<MetricsFile> metrics_;
};

}  // namespace vramfit
