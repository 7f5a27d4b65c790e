// Activation checkpointing inside a block: which results it keeps in forward, and which ops run again before backward.
#pragma once

#include <cstddef>
#include <variant>
#include <vector>

#include "job/choices.h"
#include "program/ops/rule.h"

namespace vramfit {

/// Whether checkpointed blocks keep more than their input.
bool is_selective(const Checkpointing& checkpointing);

/// Throws a Conflict that lists the kinds of ops that blocks have, where a job names one to keep that none has.
void require_kept_kinds(const Graph& graph, const Checkpointing& checkpointing);

/// What is kept besides the block's input.
using KeptPolicy = std::variant<SelectiveCheckpointing, BudgetCheckpointing>;

/// Those that a search chooses from, and after them that of a job, if it is another one.
std::vector<KeptPolicy> kept_policies(const Checkpointing& checkpointing);

/// Whether a job's policy is another one than those that a search chooses from.
bool has_own_policy(const Checkpointing& checkpointing);

/// The place of a job's policy among kept_policies(); is_selective() holds.
std::size_t policy_number(const Checkpointing& checkpointing);

/// A block as its tape sees it. At most 256 values.
struct BlockOps {
  const Segment& segment;
  const std::vector<Rule>& rules;  // per op
  const std::vector<bool>& saved;  // per value: backward reads it
  const Precision& precision;
  const BatchShape& shape;
};

struct Recomputation {
  std::vector<bool> kept;  // per value: forward keeps it until backward; the output is the next segment's affair
  std::vector<bool> runs;  // per op: it runs again
};

/// What recomputing costs, in FLOPs: max(FLOPs, those of the time in which its bytes are moved), kernel by kernel. GPUs
/// make about so many 16-bit FLOPs while they move a byte (A100: 156, H100: 295; configs/gpus.json).
inline constexpr double kFlopsWhileByteMoves = 200;

/// Of a block that keeps its input alone.
Recomputation recompute_all(const BlockOps& block);

/// Of each policy. A result that a later op overwrites is kept as what it has become, and one that neither backward nor
/// a recomputed op reads isn't kept. A budget is spent on the results that save most work, which is exact for blocks of
/// up to 12 ops that make something new, the last one aside; in larger ones they are taken one by one while the budget
/// lasts, the best for its bytes first. A budget for activations is also what PyTorch's partitioner takes
/// (torch._functorch.config, activation_memory_budget).
std::vector<Recomputation> recompute_but(const BlockOps& block, const std::vector<KeptPolicy>& policies);

}  // namespace vramfit
