// Fills in what a job leaves open, from the model and the cluster.
#pragma once

#include <string>
#include <vector>

#include "job/cluster/cluster.h"
#include "job/job.h"
#include "model_specs/spec.h"

namespace vramfit {

/// Fills in sequence, mesh, batch sizes and device-dependent defaults; throws InputError on a contradiction.
/// Unset fields are 0, or precision.name "" (unresolved_job() in job/fields/job_fields.h): mesh by sharding over all
/// cards, precision by device, and of micro-batch, accumulation and global batch those that are missing. Resolving
/// twice changes nothing. `notes` receives one line per default used.
Job resolve_job(Job job, const ModelSpec& spec, const Cluster& cluster, std::vector<std::string>& notes);

/// The part of it that concerns adapters, of a job that is resolved but for them.
void resolve_adapters(Job& job, std::vector<std::string>& notes);

}  // namespace vramfit
