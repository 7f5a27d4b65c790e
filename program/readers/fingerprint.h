// What all ranks of a job must have in common of its program, as one hash that ranks compare and files carry.
#pragma once

#include <string>

#include "job/job.h"
#include "program/program.h"

namespace vramfit::program {

/// 16 hex digits, equal on every machine: of the job, the sections, and the collectives of each section in their order,
/// with axes, members and sizes. What only one rank does or holds (the rows that rank 0 reads for others) is left out.
std::string fingerprint_of(const Job& job, const Program& program);

}  // namespace vramfit::program
