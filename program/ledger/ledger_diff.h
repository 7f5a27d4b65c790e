// Compares two ledgers of the same job, event by event.
#pragma once

#include <string>

#include "program/ledger/ledger.h"

namespace vramfit {

struct LedgerDifference {
  bool equal = true;
  std::string first;          // the first difference, by label; empty when equal
  std::int64_t compared = 0;  // allocations compared
};

/// Equal means: the same allocations (label, bytes, phase, step) in the same order, and between any two of them
/// the same frees in any order.
LedgerDifference compare_ledgers(const Ledger& predicted, const Ledger& measured);

}  // namespace vramfit
