// From a model that predicts tokens to one that gives each row a number, as transformers' ...ForSequenceClassification
// with num_labels=1 does: a row of weights called `score` in place of the output layer.
#pragma once

#include <string_view>
#include <vector>

#include "job/job.h"
#include "model_specs/graph.h"
#include "model_specs/spec.h"

namespace vramfit {

/// The graph with that head. Beside adapters PEFT trains a copy of it (modules_to_save) and keeps the frozen original,
/// which no op reads. Throws NotModelled for a family that has no such class.
Graph with_score_head(Graph graph, const ModelSpec& spec, const Job& job);

/// Whether a parameter of that name is such a copy.
bool is_trained_copy(std::string_view parameter);

/// All parameters of such a head, as the model holds them; of another graph none.
std::vector<int> score_parameters(const Graph& graph);

}  // namespace vramfit
