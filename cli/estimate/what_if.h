// `estimate --what-if`: the job again, with fields changed.
#pragma once

#include <string>
#include <vector>

#include "cli/estimate/asked.h"
#include "cli/format/terminal.h"
#include "estimator/changes/what_if.h"

namespace vramfit {

/// Each of `changes` is KEY=VALUE, or several with spaces between them, applied together. KEY is a field of the job
/// ("micro_batch", or as its flag: "--micro-batch"), or gpus, host_memory, network or stack. Each is what the estimate
/// would be with these flags added. A change that isn't modelled is an estimate that says so; an unknown key or value,
/// or one that contradicts what is set, throws an InputError that names the change.
std::vector<WhatIf> what_ifs(const JobQuestion& question, const std::vector<std::string>& changes,
                             const ModelSpec& spec, const Job& before);

/// A table with a line for the job as it is and one for each change, and what memory differs by, part by part.
std::string what_if_text(const Estimate& base, const std::vector<WhatIf>& what_ifs, const Terminal& terminal);

}  // namespace vramfit
