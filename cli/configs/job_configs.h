// `--job FILE` with a file of another tool.
#pragma once

#include "cli/flags/job_flags.h"

namespace vramfit {

/// Reads those of `--job` that are other tools' (cli/configs/import.h): model, stack and number of GPUs where the flags
/// leave them out, and fields for read_job_choice(). Then those of this program (result_jobs.h). Says on stderr what
/// was read. Throws InputError.
void apply_configs(JobFlags& flags);

/// Throws NotModelled if the files ask for something that isn't modelled.
void require_modelled(const JobFlags& flags);

/// "train.yaml:7: use_liger_kernel: true (Liger's kernels)"; "" if everything is modelled.
std::string unmodelled_text(const JobFlags& flags);

}  // namespace vramfit
