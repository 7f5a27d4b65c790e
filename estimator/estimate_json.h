// JSON form of estimates (configs/schemas/).
#pragma once

#include <string>

#include "base/json_writer.h"
#include "estimator/estimate.h"

namespace vramfit {

/// vramfit/estimate@1.
std::string estimate_to_json(const Estimate& estimate);

/// Writes an estimate's members from `model` to `worst` into the open object: estimates and plans share them.
void write_estimate_members(JsonWriter& writer, const Estimate& estimate);

}  // namespace vramfit
