// An estimate as text for the user: verdict first, then breakdown, phases, single changes, job flags and assumptions.
#pragma once

#include <string>
#include <string_view>

#include "cli/format/terminal.h"
#include "estimator/estimate.h"

namespace vramfit {

/// "DOES NOT FIT: 83.2 of 79.1 GiB with transformers' Trainer, +4.1 in loss": one line.
std::string verdict_line(const Estimate& estimate, const Terminal& terminal);

/// "at risk".
std::string_view outcome_of(Verdict verdict);

/// "Step 2.68 s (2.31 to 3.22), 6113 tokens/s (764 per GPU), MFU 41.2 %, 0.12 s of it waiting for other ranks
/// (predicted)": one line; empty without a speed.
std::string speed_line(const Estimate& estimate);

/// The worst rank's categories with a bar each.
std::string breakdown_table(const RankEstimate& rank, const Terminal& terminal, bool has_capacity = true);

/// What the rank has in managed memory beside its total; "" where it has none.
std::string managed_line(const RankEstimate& rank, Bytes capacity);

/// The worst rank's peak by phase, first and steady step.
std::string phase_table(const RankEstimate& rank);

/// The single changes with what the job would need, largest saving first; empty without any.
std::string suggestion_lines(const Estimate& estimate, const Terminal& terminal);

/// "Job: " and the flags that make the same estimate again, whatever the command's defaults: one line.
std::string job_line(const Estimate& estimate);

/// "Assumptions:" and a line for each; empty without any.
std::string assumption_lines(const Estimate& estimate);

/// The whole text, ending in a newline.
std::string estimate_text(const Estimate& estimate, const Terminal& terminal);

/// The exit code of a verdict; `strict` makes at_risk a failure.
int exit_code_of(Verdict verdict, bool strict);

}  // namespace vramfit
