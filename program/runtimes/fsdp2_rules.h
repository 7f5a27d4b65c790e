// Which jobs with PyTorch's FSDP2 have rules.
#pragma once

#include "job/cluster/cluster.h"
#include "job/job.h"

namespace vramfit {

/// Throws NotModelled or LibraryFails for one that hasn't any.
void require_fsdp2(const Job& job, const Cluster& cluster);

}  // namespace vramfit
