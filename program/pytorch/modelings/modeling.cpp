#include "program/pytorch/modelings/modeling.h"

#include "program/pytorch/modelings/torchtitan.h"
#include "program/pytorch/modelings/transformers.h"

namespace vramfit::eager {

std::unique_ptr<Model> make_model(const Graph& graph, const Job& job, Torch& torch) {
  if (has_trainer(job)) return std::make_unique<Transformers>(graph, job, torch);
  return std::make_unique<Torchtitan>(graph, job, torch);
}

}  // namespace vramfit::eager
