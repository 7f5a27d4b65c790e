#include "job/default_loss.h"

#include <algorithm>

#include "base/units.h"
#include "model_specs/dtype.h"

namespace vramfit {

namespace {

// Each chunk reads and writes the whole gradient of the head. By the time model, that makes the step of a 0.6B model,
// whose head is a large share of it, 0.7 % longer with 1024 tokens per chunk and 3.4 % with 512 (8xH100, 16384 tokens
// per GPU).
constexpr std::int64_t kTokensPerChunk = 1024;

/// Full loss holds the logits of all tokens, over which their gradient is written, and the gradient of the head in the
/// compute dtype. Chunked loss holds the logits of one chunk, and the gradient of the head, to which every chunk adds,
/// in the reduce dtype. Both are per row of the vocabulary, which therefore doesn't matter.
bool chunks_need_less(const Job& job, std::int64_t tokens, std::int64_t chunks, std::int64_t hidden) {
  const std::int64_t compute = dtype_bytes(job.precision.compute).n, reduce = dtype_bytes(job.precision.reduce).n;
  const std::int64_t logits = checked_mul(tokens - ceil_div(tokens, chunks), compute);
  return logits > checked_mul(hidden, std::max<std::int64_t>(reduce - compute, 0));
}

}  // namespace

bool is_unset_loss(const Job& job) { return job.loss_chunks == 0; }

void unset_loss(Job& job) {
  job.loss = LossKind::full;
  job.loss_chunks = 0;
}

void set_default_loss(Job& job, const ModelSpec& spec, const Cluster& cluster) {
  job.loss = LossKind::full;
  job.loss_chunks = Job{}.loss_chunks;
  const std::int64_t tokens = checked_mul(job.micro_batch, job.sequence);
  const std::int64_t chunks = std::min(ceil_div(tokens, kTokensPerChunk), kMostLossChunks);
  if (cluster.is_cpu() || job.runtime != Runtime::vramfit || chunks < 2) return;
  if (!chunks_need_less(job, tokens, chunks, spec.hidden_size)) return;
  job.loss = LossKind::chunked;
  job.loss_chunks = chunks;
}

}  // namespace vramfit
