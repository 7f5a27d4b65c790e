// What a trainer tells its observers: progress, metrics, traces. This header includes no LibTorch, and observers must
// not allocate tensor memory.
#pragma once

#include <cstdint>
#include <string_view>

#include "program/schedules/schedule.h"

namespace vramfit {

struct StepResult;

/// Every call comes from the training thread. Every begin has an end, unless an exception leaves the step.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  virtual void step_begins(std::int64_t /*step*/) {}
  virtual void step_ends(const StepResult& /*result*/) {}
  virtual void instruction_begins(const Instruction& /*instruction*/, Phase /*phase*/) {}
  virtual void instruction_ends() {}
  /// An op of the segment's list, within the instruction that runs it (forward, recompute or backward).
  virtual void op_begins(int /*segment*/, int /*op*/) {}
  virtual void op_ends() {}
  /// A collective is issued; the id that is returned comes back once it has been waited for. `group`: the axis.
  virtual std::int64_t collective_begins(std::string_view /*what*/, std::string_view /*group*/, Bytes /*bytes*/) {
    return 0;
  }
  virtual void collective_ends(std::int64_t /*id*/) {}
};

}  // namespace vramfit
