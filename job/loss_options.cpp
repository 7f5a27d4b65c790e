#include "job/loss_options.h"

namespace vramfit {

LossOptions loss_options(const Job& job) { return {.chunks = job.loss == LossKind::chunked ? job.loss_chunks : 0}; }

}  // namespace vramfit
