// A run's figures as JSON lines (vramfit/metrics@1, configs/schemas/metrics.schema.json): one object per step.
#pragma once

#include <string>

#include "executor/observe/step_report.h"

namespace vramfit {

/// Lines are appended, each by one write, so that `tail -f` and a reader of another process see whole lines. A `run`
/// record begins each run; lines before it about steps from its `first_step` on are superseded.
class MetricsFile {
 public:
  /// Opens the file, which may exist. Throws FaultError when it can't be written.
  explicit MetricsFile(std::string path);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;
  MetricsFile(MetricsFile&&) = delete;
  MetricsFile& operator=(MetricsFile&&) = delete;

  /// Throws FaultError when it can't be written.
  void begin(const RunFacts& facts);
  /// Never throws for want of room: training is worth more. The first failure is told on stderr, and later lines are
  /// tried all the same.
  void step(const RunFacts& facts, const StepReport& report);

 private:
  /// False with errno set; what was written of a line is ended before the next one.
  bool append(const std::string& text);

  std::string path_;
  int file_ = -1;
  bool torn_ = false, warned_ = false;
};

std::string run_line(const RunFacts& facts, double unix_seconds);
std::string step_line(const RunFacts& facts, const StepReport& report);

}  // namespace vramfit
