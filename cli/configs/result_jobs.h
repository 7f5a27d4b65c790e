// `--job FILE` with a file of this program's own answers.
#pragma once

#include "cli/flags/job_flags.h"

namespace vramfit {

/// Reads those of `--job` that are plans, runs or estimates (vramfit/plan@1, run@1, estimate@1): their job, and their
/// model and cluster where the flags leave them out. On another number of cards without its mesh and global batch, as a
/// line on stderr says. Throws InputError, also for an answer of another kind.
void apply_results(JobFlags& flags);

}  // namespace vramfit
