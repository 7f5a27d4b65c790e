// What to run where a cluster is known but no rules answer: what trains, on phantom GPUs.
#pragma once

#include <string>

#include "job/cluster/cluster.h"

namespace vramfit {

/// A program that trains: what starts all its ranks ("axolotl train lora.yml"), and what is one of them ("python -m
/// axolotl.cli.train lora.yml").
struct TrainingProgram {
  std::string all = {}, rank = {};
};

/// The command that answers for somebody's own script on such cards: "vramfit rehearse --gpus 8xH100-80GB -- torchrun
/// --nproc-per-node 8 train.py". Of several nodes one rank is played.
std::string rehearsal_of(const Cluster& cluster);
/// The same for `program`.
std::string rehearsal_of(const Cluster& cluster, const TrainingProgram& program);

}  // namespace vramfit
