#include "job/loss/loss_options.h"

namespace vramfit {

LossOptions loss_options(const Job& job) {
  const auto* chunked = std::get_if<ChunkedLoss>(&job.loss);
  return {.chunks = chunked != nullptr ? chunked->chunks : 0,
          .gradients_in_forward = chunked != nullptr && chunked->in_forward,
          .label_smoothing = job.loss_terms.label_smoothing,
          .z_loss = job.loss_terms.z_loss};
}

}  // namespace vramfit
