// The words of a plan's answer.
#pragma once

#include <string>

#include "planner/plan.h"
#include "planner/search/search.h"

namespace vramfit {

/// By how much `a` exceeds `b`: "2.9 %", "13 %".
std::string percent(double a, double b);

/// Why a job whose worst rank is `rank` doesn't count as fitting: "34.30 GiB of the card's 23.52 GiB", or what else
/// stands against it.
std::string shortage_text(const RankEstimate& rank, const Cluster& cluster);

/// Of a job that keeps so much on the host: "123.54 GiB of host memory a node, which has 10.00 GiB".
std::string host_shortage_text(Bytes host, const Cluster& cluster);

/// What the worst rank needs: "21.58 of 23.52 GiB".
std::string needs_text(const Estimate& estimate);

/// "15.28 GiB": rounded up, so that whoever has so much has enough.
std::string enough_gib_text(Bytes needed);

/// The fields of a row that the request fixes, as flags: "--sharding no-shard", or "". Without those that the objective
/// decides.
std::string set_flags(const PlanRequest& request, const Dimension& row);

/// " with --sharding no-shard": what the request leaves no choice in, or "".
std::string set_choices(const PlanRequest& request);

/// " even with --seq-len 256": what the objective decides, or "".
std::string decided_choices(const PlanRequest& request);

}  // namespace vramfit
