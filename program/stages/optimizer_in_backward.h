// Which jobs can update a unit while backward goes on (--optimizer-in-backward).
#pragma once

#include "job/job.h"

namespace vramfit {

/// Throws NotModelled for choices that need the gradients of all units at once, or of all micro-batches, which such a
/// job never has.
void require_optimizer_in_backward(const Job& job);

/// Likewise for gradient clipping, which is no part of the job (RunEffects::clip).
void require_optimizer_in_backward(const Job& job, bool clip);

}  // namespace vramfit
