// What was measured where memory ran out, beside what the job should need.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/explain/card_use.h"
#include "cli/explain/code_site.h"
#include "estimator/estimate.h"

namespace vramfit {

struct BesideRow {
  std::string what;
  std::optional<Bytes> measured, estimated;
};

struct BesideEstimate {
  Estimate estimate;
  std::vector<BesideRow> rows;
  std::vector<BesideRow> kinds;       // of a snapshot: what asked for memory, beside the categories that it stands for
  std::vector<std::string> findings;  // sentences: what is larger than it should be, and by how much
};

/// Differences up to this share of the estimate are not called larger: messages round to hundredths, and an estimate
/// may be that far off.
inline constexpr double kSaidLarger = 0.01;

/// `snapshot`: null for a message. Where nothing ran out, its peaks are compared; otherwise the moment of the failure.
BesideEstimate beside(Estimate estimate, const CardUse& use, const CodeSite& site, const SnapshotFacts* snapshot);

}  // namespace vramfit
