#include "job/loss/default_loss.h"

#include <algorithm>

#include "base/text/units.h"
#include "job/parameters/glob.h"
#include "model_specs/dtype.h"
#include "model_specs/graph.h"

namespace vramfit {

namespace {

// Each chunk reads and writes the whole gradient of the head. By the time model, that makes the step of a 0.6B model,
// whose head is a large share of it, 0.7 % longer with 1024 tokens per chunk and 3.4 % with 512 (8xH100, 16384 tokens
// per GPU). If the head isn't trained, a chunk only reads it, twice: a third of the traffic in bf16 with fp32
// reduction.
constexpr std::int64_t kTokensPerChunk = 1024, kTokensPerChunkOfFrozenHead = 512;

// num_output_chunks of CEWithChunkedOutputLoss, the loss of its recipes (0.6.1).
constexpr std::int64_t kPartsOfTorchtune = 8;

/// Whether `pattern` of --freeze means the parameter that makes the logits.
bool freezes(const std::string& pattern, const Graph& graph, int parameter) {
  const bool is_head = pattern == "head", is_embedding = pattern == "embeddings";
  if (!is_head && !is_embedding) {
    return matches_glob(pattern, graph.parameters[static_cast<std::size_t>(parameter)].name);
  }
  const auto uses = [&](const Op& op) {
    return std::ranges::find(op.parameters, parameter, &ParameterUse::parameter) != op.parameters.end();
  };
  return std::ranges::any_of(graph.segments, [&](const Segment& segment) {
    const bool is_part = segment.role != SegmentRole::block && (segment.role == SegmentRole::embedding) == is_embedding;
    return is_part && std::ranges::any_of(segment.ops, uses);
  });
}

bool is_head_trained(const Job& job, const ModelSpec& spec) {
  if (job.freeze.empty()) return job.method == Method::full;
  const Graph graph = build_graph(spec, {.chunks = 1});
  const Op& loss = graph.segments.back().ops.back();  // of a chunked loss, which makes the logits too
  const int weight = loss.parameters.front().parameter;
  return std::ranges::none_of(job.freeze, [&](const std::string& p) { return freezes(p, graph, weight); });
}

/// Full loss holds the logits of all tokens, over which their gradient is written, and the gradient of the head in the
/// compute dtype. Chunked loss holds the logits of one chunk, and the gradient of the head, to which every chunk adds,
/// in the reduce dtype. Both are per row of the vocabulary, which therefore doesn't matter. A head that isn't trained
/// has no gradient.
bool chunks_need_less(const Job& job, std::int64_t tokens, std::int64_t chunks, std::int64_t gradient) {
  const std::int64_t compute = dtype_bytes(job.precision.compute).n, reduce = dtype_bytes(job.precision.reduce).n;
  const std::int64_t logits = checked_mul(tokens - ceil_div(tokens, chunks), compute);
  return logits > checked_mul(gradient, std::max<std::int64_t>(reduce - compute, 0));
}

}  // namespace

void set_default_loss(Job& job, const ModelSpec& spec, const Cluster& cluster) {
  job.loss = FullLoss{};
  if (job.modeling == Modeling::torchtune) job.loss = ChunkedLoss{kPartsOfTorchtune};
  const std::int64_t tokens = checked_mul(job.micro_batch, job.sequence);
  if (cluster.is_cpu() || job.runtime != Runtime::vramfit) return;
  const bool is_trained = is_head_trained(job, spec);
  const std::int64_t per_chunk = is_trained ? kTokensPerChunk : kTokensPerChunkOfFrozenHead;
  const std::int64_t chunks = std::min(ceil_div(tokens, per_chunk), kMostLossChunks);
  if (chunks < 2 || !chunks_need_less(job, tokens, chunks, is_trained ? spec.hidden_size : 0)) return;
  job.loss = ChunkedLoss{chunks};
}

}  // namespace vramfit
