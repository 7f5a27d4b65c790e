// JSON form of estimates (configs/schemas/).
#pragma once

#include <span>
#include <string>

#include "base/json_writer.h"
#include "estimator/estimate.h"
#include "estimator/what_if.h"

namespace vramfit {

/// vramfit/estimate@1, with the same job changed, if that was asked for.
std::string estimate_to_json(const Estimate& estimate, std::span<const WhatIf> what_ifs = {});

/// Writes an estimate's members from `model` to `worst` into the open object: estimates and plans share them.
void write_estimate_members(JsonWriter& writer, const Estimate& estimate);

}  // namespace vramfit
