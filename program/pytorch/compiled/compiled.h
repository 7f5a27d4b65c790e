// What torch.compile and FP8 products make of the calls of a recorded step: their work, and so their time. Buffers and
// events stay those of the eager step in bf16, so that no reader of bytes may be given such a program.
#pragma once

#include "job/job.h"
#include "program/program.h"

namespace vramfit::eager {

/// Whether PyTorch's runtimes have a job's time but not its memory: --compile on, --precision fp8.
bool is_timed_alone(const Job& job);

/// Changes the work of a program that was recorded from eager_form(job) into that of `job`.
void set_work_of(program::Program& program, const Job& job);

/// The job as it would be without what is_timed_alone() is about.
Job eager_form(const Job& job);

}  // namespace vramfit::eager
