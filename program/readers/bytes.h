// Reads a program for bytes: the events of its allocations in one space, in order.
#pragma once

#include "program/ledger/ledger.h"
#include "program/program.h"

namespace vramfit {

struct BytesOptions {
  int steps = 2;  // training steps after load
  // Record once what repeats: middle micro-batches and all steps from the last on are Repeats of the ledger. Of calls
  // with equal parts one is recorded: each reuses what the one before it freed.
  bool abbreviate = true;
  program::Space space = program::Space::device;  // of the buffers whose events are recorded
};

/// Sections that save follow the last step, once. What is allocated at the end isn't freed.
Ledger ledger_of(const program::Program& program, const BytesOptions& options);

}  // namespace vramfit
