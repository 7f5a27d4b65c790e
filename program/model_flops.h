// FLOPs of ops, and what model FLOPs utilization (MFU) is made of: the FLOPs that training needs at least, and those
// that the hardware offers at most.
#pragma once

#include <string_view>
#include <vector>

#include "job/cluster/cluster.h"
#include "job/job.h"
#include "model_specs/graph.h"
#include "program/ops/rule.h"

namespace vramfit {

/// Matmul and attention FLOPs of one forward pass over one micro-batch on one rank.
double forward_flops(const Graph& graph, const BatchShape& shape);

/// The same of one op, as its row says (program/ops/op_row.h); 0 for ops that are bound by memory.
double forward_flops(const Graph& graph, const Op& op, const BatchShape& shape);

/// Of an op that multiplies by its first parameter, and of one that is attention.
double flops_of_product(const Graph& graph, const Op& op, const BatchShape& shape);
double flops_of_attention(const Graph& graph, const Op& op, const BatchShape& shape);

/// Elements of the weight that a product reads: all of it, or the rows that this op uses.
double used_parameter_elements(const Graph& graph, const Op& op);

/// Rows that attention scores a query against: all before it, at most a window of them.
double attended_rows(const Attributes& attributes, double sequence);

/// Matmul and attention FLOPs of one micro-batch on one rank: forward once, and backward as far as anything is trained
/// (`trainable`, by parameter). An op whose input and weight both need a gradient counts twice its forward.
/// Recomputation is not counted (that would be hardware FLOPs), and a causal mask halves attention.
double training_flops(const Graph& graph, const std::vector<bool>& trainable, const BatchShape& shape);

/// Dense FLOPs per second of a card for matrix products in `compute`; 0 if unknown (CPU ranks).
double peak_flops(const Card& card, Dtype compute);

/// The card in the catalog that CUDA reports under this name; null if there is none.
const Card* card_with_cuda_name(std::string_view name);

}  // namespace vramfit
