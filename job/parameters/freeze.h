#pragma once

#include "job/job.h"

namespace vramfit {

/// `--freeze none`: all weights are trained, beside adapters, too, which no `--freeze` at all would leave alone.
inline bool freezes_nothing(const Job& job) { return job.freeze.size() == 1 && job.freeze.front() == "none"; }

}  // namespace vramfit
