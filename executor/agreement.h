// The facts of a run that its ranks must agree on, and that a resumed run must have in common with the one that saved.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "executor/options.h"
#include "job/device.h"

namespace vramfit {

/// How the run trains, by flag: every member of TrainOptions. Both lists below begin with it.
std::vector<std::pair<std::string, std::string>> train_facts(const TrainOptions& train);

/// What all ranks must have in common: the plan, the flags that decide what is computed or which collectives are made,
/// the kind of device (it decides who talks: Gloo or NCCL) and this program. A hash each, so that it can be shown.
/// Where a rank writes what it alone writes, and what it may use of its machine, is its own affair.
std::string agreement(const std::string& plan_text, const RunOptions& options, DeviceKind device);

}  // namespace vramfit
