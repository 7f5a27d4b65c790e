#include "planner/dimensions/dimensions.h"

#include <algorithm>

#include "base/text/units.h"
#include "job/loss/default_loss.h"
#include "model_specs/parameters.h"
#include "program/stages/offload.h"

namespace vramfit {

namespace {

constexpr std::int64_t kSmallHead = 12;

}  // namespace

std::span<const Dimension> dimensions() {
  static const std::vector<Dimension> kDimensions{
#define DIMENSION(name) dimension::name(),
#include "planner/dimensions/list.def"
#undef DIMENSION
  };
  return kDimensions;
}

Loss SearchSpace::default_loss(const Job& job) const {
  const auto known = default_losses.find(job.micro_batch);
  if (known != default_losses.end()) return known->second;
  Job usual = job;
  set_default_loss(usual, spec, cluster);
  return default_losses.emplace(job.micro_batch, usual.loss).first->second;
}

bool SearchSpace::has_small_head() const {
  if (parameters == 0) parameters = parameter_count(spec);
  return checked_mul(kSmallHead * spec.vocab_size, spec.hidden_size) < parameters;
}

Bytes SearchSpace::layer_bytes(const Job& job) const {
  if (layer_elements == 0) {
    const std::int64_t tables = spec.tie_word_embeddings ? 1 : 2;
    const std::int64_t layers = parameter_count(spec) - tables * spec.vocab_size * spec.hidden_size;
    layer_elements = std::max<std::int64_t>(1, layers / std::max<std::int64_t>(1, spec.num_hidden_layers));
  }
  return layer_elements * dtype_bytes(job.precision.compute);
}

std::uint32_t kinds_of(const Job& job) {
  std::uint32_t kinds = 0;
  for (const bool kind :
       {job.mesh.shard == 1, job.accumulation == 1, std::holds_alternative<WrapNothing>(job.wrap),
        std::holds_alternative<ChunkedLoss>(job.loss), std::holds_alternative<NoCheckpointing>(job.checkpointing),
        job.backward_prefetch == BackwardPrefetch::none, offload_of(job).activations}) {
    kinds = kinds << 1U | (kind ? 1U : 0U);
  }
  return kinds;
}

}  // namespace vramfit
