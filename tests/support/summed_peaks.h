// What the events of a ledger add up to, one by one, to hold folded peaks to.
#pragma once

#include <string>

#include "program/ledger/ledger.h"
#include "program/readers/peaks.h"

namespace vramfit::testing {

FoldedPeaks summed_peaks(const Ledger& ledger, Bytes granule);

/// The first difference between folded peaks and what the events add up to, by phase and category; "" if none.
std::string difference_of(const FoldedPeaks& folded, const FoldedPeaks& summed);

}  // namespace vramfit::testing
