// A job that a comparison names by its fields, counted: what dump_events and dump_peaks print of.
#pragma once

#include "job/cluster/cluster.h"
#include "job/job.h"
#include "program/ledger/ledger.h"

namespace vramfit::testing {

struct CountedJob {
  Job job;  // resolved
  Cluster cluster;
  Ledger ledger;
  Bytes managed;
};

/// From the arguments CONFIG.JSON CLUSTER STEPS [FIELD=VALUE ...] of a program. Throws InputError and NotModelled.
CountedJob count_from_arguments(int argc, char** argv);

}  // namespace vramfit::testing
