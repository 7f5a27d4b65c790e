// What of the job decides how the model's graph ends.
#pragma once

#include "job/job.h"
#include "model_specs/graph.h"

namespace vramfit {

/// Full and chunked loss have different graphs; nothing else in the job changes the graph.
LossOptions loss_options(const Job& job);

}  // namespace vramfit
