#include "job/loss_options.h"

namespace vramfit {

LossOptions loss_options(const Job& job) {
  const auto* chunked = std::get_if<ChunkedLoss>(&job.loss);
  return {.chunks = chunked != nullptr ? chunked->chunks : 0};
}

}  // namespace vramfit
