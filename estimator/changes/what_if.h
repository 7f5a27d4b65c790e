// The same job with something changed, beside the estimate of the job as it is.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>

#include "base/json/json_writer.h"
#include "estimator/estimate.h"

namespace vramfit {

struct WhatIf {
  std::string change;  // "--micro-batch 4 --checkpointing full"
  Estimate estimate;
};

/// What the worst rank needs more with the change than without; none unless both are modelled.
std::optional<Bytes> total_change(const Estimate& base, const WhatIf& what_if);

/// The same for each part of the total.
std::optional<std::array<Bytes, kBreakdownParts>> breakdown_change(const Estimate& base, const WhatIf& what_if);

/// The member `what_if` of an estimate's open object.
void write_what_ifs(JsonWriter& writer, const Estimate& base, std::span<const WhatIf> what_ifs);

}  // namespace vramfit
