// The words of a plan's answer.
#pragma once

#include <string>

#include "planner/plan.h"
#include "planner/search/search.h"

namespace vramfit {

/// By how much `a` exceeds `b`: "2.9 %", "13 %".
std::string percent(double a, double b);

/// Why a job whose worst rank is `rank` doesn't count as fitting: "34.30 of 23.52 GiB", or what else stands against it.
std::string shortage_text(const RankEstimate& rank, Bytes capacity);

/// What the worst rank needs: "21.58 of 23.52 GiB".
std::string needs_text(const Estimate& estimate);

/// "15.28 GiB": rounded up, so that whoever has so much has enough.
std::string enough_gib_text(Bytes needed);

/// The fields of a row that the request fixes, as flags: "--sharding no-shard", or "".
std::string set_flags(const PlanRequest& request, const Dimension& row);

/// " with --sharding no-shard": what the request leaves no choice in, or "".
std::string set_choices(const PlanRequest& request);

}  // namespace vramfit
