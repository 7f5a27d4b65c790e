// How long the ops of a segment take on a card: FLOPs, bytes and launches. docs/time-model.md derives the formulas and
// says where each constant comes from.
#pragma once

#include "job/cluster.h"
#include "job/job.h"
#include "model_specs/graph.h"

namespace vramfit {

/// At least this long passes from one kernel's launch to the next; on CPU a call costs about the same.
inline constexpr double kLaunchSeconds = 5e-6;

/// What a rank reaches, per second: FLOPs of products and of fused attention, bytes of memory, and bytes in one
/// direction over the link to a card of the node and over its share of the network.
struct Rates {
  double products = 0, attention = 0, memory = 0;
  double link = 0, rail = 0;
};
Rates rates_of(const Job& job, const Cluster& cluster);

/// Seconds bound by FLOPs and seconds bound by memory or launches.
struct Work {
  double compute = 0, memory = 0;
};

/// One micro-batch through a segment.
struct SegmentTime {
  Work forward, backward;
};
SegmentTime segment_time(const Graph& graph, const Segment& segment, const Job& job, const Cluster& cluster);

}  // namespace vramfit
