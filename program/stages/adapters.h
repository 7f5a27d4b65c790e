// --method lora and qlora: from a graph to the graph with low-rank adapters beside its linears (Hu et al. 2021, "LoRA:
// Low-Rank Adaptation of Large Language Models", arXiv 2106.09685). docs/lora.md describes them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "job/job.h"
#include "model_specs/graph.h"

namespace vramfit {

/// The graph that a resolved job trains: the model's, with its adapters. Throws as build_graph and with_adapters do.
Graph training_graph(const ModelSpec& spec, const Job& job);

/// Each targeted linear of weight W (O, I) gets parameters MODULE.lora_A.weight (R, I) and MODULE.lora_B.weight (O, R),
/// and an op `lora` after it. Linears that use parts of one matrix share its adapter, each with its rows of B.
/// With DoRA (Liu et al. 2024, arXiv 2402.09353) also MODULE.lora_magnitude_vector (O), and an op `magnitude` after
/// that; with dropout, too, in this project's engine one op `dropped_dora` instead of both. Throws InputError for a
/// target that no linear has.
Graph with_adapters(Graph graph, const Job& job);

/// Whether the job trains adapters.
bool has_adapters(const Job& job);

/// What the adapter's output is multiplied by: alpha / rank, or alpha / sqrt(rank) (rsLoRA).
double adapter_scale(const Lora& lora);

/// How many of an op's parameters, the first ones, an adapter has; 0 for ops that aren't one's.
std::size_t adapter_uses(const Op& op);

/// By parameter: whether an adapter has it.
std::vector<bool> adapter_parameters(const Graph& graph);

/// "model.layers.0.self_attn.q_proj" of the name of a parameter that an adapter has.
std::string_view adapted_module(std::string_view parameter);

/// Of an adapter with magnitudes: their number among the graph's parameters, and that of the matrix whose rows they
/// begin as the norms of, or columns where it lies transposed.
struct ScaledMatrix {
  int magnitudes = -1, matrix = -1;
  bool is_transposed = false;
};
std::vector<ScaledMatrix> scaled_matrices(const Graph& graph);

/// "model.layers.0.self_attn.q_proj" of "model.layers.0.self_attn.q_proj.weight".
std::string_view module_of(std::string_view parameter);

}  // namespace vramfit
