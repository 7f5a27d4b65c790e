// What a program asks of an allocator, in order: its ledger without names, for replays.
#pragma once

#include "program/ledger/ledger.h"
#include "program/program.h"

namespace vramfit {

/// Whether requests_of() can tell what the program asks for: all steps are alike, and nothing is kept for good.
bool has_requests(const program::Program& program);

/// The events of ledger_of(), abbreviated, but without labels, and with the number of the program's buffer as the id
/// (program::Place::number). What is allocated again has the same id again, so a pass of a repeat leaves what it found
/// under the ids that it found.
Ledger requests_of(const program::Program& program, int steps);

}  // namespace vramfit
