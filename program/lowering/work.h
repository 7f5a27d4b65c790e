// The work of a program's blocks under other sizes of a micro-batch.
#pragma once

#include <memory>
#include <vector>

#include "program/program.h"
#include "program/stages/tape.h"

namespace vramfit::program {

/// Gives a program the work of `tapes` (by segment), those of a job that differs from its own in nothing but the rows
/// of a micro-batch: the same instructions with other bytes, of which readers of work need none. Cheaper than lowering.
void set_work(Program& program, const SharedTapes& tapes);

}  // namespace vramfit::program
