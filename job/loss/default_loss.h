// How the loss is computed where the user doesn't say.
#pragma once

#include <cstdint>

#include "job/cluster/cluster.h"
#include "job/job.h"
#include "model_specs/spec.h"

namespace vramfit {

/// That --loss chunked:N takes.
inline constexpr std::int64_t kMostLossChunks = 65536;

/// The default for a job whose sequence, micro-batch, precision and runtime are resolved. Chunked, with at most 1024
/// tokens per chunk (512 if the head isn't trained), on GPUs where that needs less memory than full; otherwise full.
void set_default_loss(Job& job, const ModelSpec& spec, const Cluster& cluster);

}  // namespace vramfit
