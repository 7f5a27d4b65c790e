// What an estimate for a GPU says of where its figures come from.
#pragma once

#include <string>

#include "job/cluster/cluster.h"
#include "job/job.h"

namespace vramfit {

/// "0.67 GiB outside PyTorch's allocator (context, measured on such a card)".
std::string outside_text(Bytes outside_allocator, const Job& job, const Cluster& cluster);

/// "checked against simulation (phantom GPUs), not real hardware", or against what as well.
std::string checked_text(const Job& job, const Cluster& cluster);

}  // namespace vramfit
