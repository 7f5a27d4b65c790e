// JSON form of estimates (configs/schemas/).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/json/json_writer.h"
#include "estimator/estimate.h"

namespace vramfit {

struct AtPeak;
struct WhatIf;

/// What an estimate was asked for beside itself.
struct EstimateExtras {
  std::span<const WhatIf> what_ifs = {};
  const AtPeak* at_peak = nullptr;
};

/// vramfit/estimate@1.
std::string estimate_to_json(const Estimate& estimate, const EstimateExtras& extras = {});

/// Writes an estimate's members from `model` to `worst` into the open object: estimates and plans share them.
void write_estimate_members(JsonWriter& writer, const Estimate& estimate);

/// Writes "clip" and "save_kind": what was counted besides the job.
void write_run_effects(JsonWriter& writer, const RunEffects& run);

/// Writes a speed as an object, with the figures that it follows from.
void write_speed(JsonWriter& writer, const Speed& speed, const std::vector<Figure>& figures);

/// Writes "bound": what upper bounds are made of, and in how many cases they held.
void write_bound(JsonWriter& writer, const Margins& margins);

}  // namespace vramfit
