// What a predicted step time means for a reader: tokens per second, use of the card, and how far off it may be.
#pragma once

#include "estimator/time/efficiency.h"
#include "estimator/time/step_time.h"
#include "job/job.h"
#include "model_specs/graph.h"
#include "program/program.h"

namespace vramfit {

struct Speed {
  StepTime time;
  /// Of ten steps that others published, eight took between these: the predicted time by what measured ones were of
  /// their predictions (step_least and step_most of configs/efficiency/). What the CPU computes for the card widens it
  /// by how far the bandwidth of host memory may be off (host_memory_range).
  double least_step_seconds = 0, most_step_seconds = 0;
  double exposed_communication_seconds = 0;  // by which a step would be shorter if collectives took no time
  // Likewise if copies between the card and its host took none, and if what the CPU computes for it didn't (--offload).
  double exposed_copy_seconds = 0, exposed_host_seconds = 0;
  double tokens_per_second = 0;  // of the whole job
  double tokens_per_second_per_card = 0;
  double model_flops_utilization = 0;  // share of the cards' dense peak; 0: not known (CPU ranks)
};

/// Of a resolved job, from its program for that cluster.
Speed speed_of(const program::Program& program, const Graph& graph, const Job& job, const Cluster& cluster,
               const Efficiency& efficiency);

/// FLOPs that training needs in a step of that time (docs/time-model.md), of what the card's matrix units give at most;
/// 0 where that isn't known.
double model_flops_utilization(const Graph& graph, const Job& job, const Card& card, double step_seconds);

}  // namespace vramfit
