#include "program/pytorch/modelings/modeling.h"

#include "program/pytorch/modelings/gpt2_graph.h"
#include "program/pytorch/modelings/liger.h"
#include "program/pytorch/modelings/torchtitan.h"
#include "program/pytorch/modelings/torchtune.h"
#include "program/pytorch/modelings/transformers.h"
#include "program/pytorch/modelings/transformers_bert.h"
#include "program/pytorch/modelings/transformers_gpt2.h"
#include "program/stages/trainable.h"

namespace vramfit::eager {

Dtype hidden_dtype(const Graph& graph, const Job& job, int embedding) {
  if (is_fsdp(job.runtime)) return job.precision.compute;
  return held_parameters(graph, job)[static_cast<std::size_t>(embedding)].dtype;
}

ModelBuffers buffers_of(const Graph& graph, const Job& job) {
  if (graph.masked_lm) return {.dtype = Dtype::i64, .elements = bert_buffers(graph, job)};
  if (has_learned_positions(graph)) return {};
  return {.elements = llama_buffers_in_fp32(graph, job)};
}

std::unique_ptr<Model> make_model(const Graph& graph, const Job& job, Torch& torch) {
  if (job.modeling == Modeling::torchtune) return std::make_unique<Torchtune>(graph, job, torch);
  if (!uses_accelerate(job)) return std::make_unique<Torchtitan>(graph, job, torch);
  if (graph.masked_lm || has_learned_positions(graph)) require_no_kernels(job);
  if (graph.masked_lm) return std::make_unique<Bert>(graph, job, torch);
  if (has_learned_positions(graph)) return std::make_unique<Gpt2>(graph, job, torch);
  return std::make_unique<Transformers>(graph, job, torch);
}

}  // namespace vramfit::eager
