// Compares two ledgers of the same job, event by event.
#pragma once

#include <functional>
#include <string>

#include "estimator/ledger.h"

namespace vramfit {

struct LedgerDifference {
  bool equal = true;
  std::string first;          // the first difference, by label; empty when equal
  std::int64_t compared = 0;  // allocations compared
  std::int64_t ignored = 0;   // events of labels that `is_scratch` names
};

/// Equal means: the same allocations (label, bytes, phase, step) in the same order, and between any two of them
/// the same frees in any order. Events whose label `is_scratch` accepts are left out on both sides and counted.
LedgerDifference compare_ledgers(const Ledger& predicted, const Ledger& measured,
                                 const std::function<bool(const std::string&)>& is_scratch = {});

}  // namespace vramfit
