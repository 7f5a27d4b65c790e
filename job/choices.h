// Choices of a job that have kinds. Each is a variant, so that a figure exists only with the kind that it belongs to.
// The first kind is what a job has if nobody says otherwise.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace vramfit {

/// --reshard: whether a unit's gathered parameters are dropped between forward and backward.
struct ReshardByDefault {};  // all but the root's
struct ReshardLastKept {};   // all but the root's and the last block's
struct ReshardAlways {};
struct ReshardNever {};
struct ReshardGroups {
  std::int64_t ranks = 0;  // that hold a unit among them until backward
};
using Reshard = std::variant<ReshardByDefault, ReshardLastKept, ReshardAlways, ReshardNever, ReshardGroups>;

/// --wrap: which parameters are gathered together.
struct WrapLayers {};
struct WrapBySize {
  std::int64_t least_parameters = 0;
};
struct WrapNothing {};  // one unit for everything
struct WrapByPattern {
  std::vector<std::string> globs;  // over modules
};
struct WrapGroups {
  std::int64_t layers = 2;  // consecutive ones, at least 2; the last group may have fewer
};
using Wrap = std::variant<WrapLayers, WrapBySize, WrapNothing, WrapByPattern, WrapGroups>;

/// Whether units are layers, or groups of them: the wrappings that leave embeddings and head to --wrap-embeddings.
inline bool is_by_layer(const Wrap& wrap) {
  return std::holds_alternative<WrapLayers>(wrap) || std::holds_alternative<WrapGroups>(wrap);
}

/// --checkpointing: which blocks run forward again in backward.
struct NoCheckpointing {};
struct FullCheckpointing {};
struct EveryNth {
  std::int64_t n = 1;  // one block of n
};
/// Ops whose results a block keeps: of those of a kind (model_specs/ops.def) the first, and every `every`-th after it.
struct KeptOps {
  std::string kind;
  std::int64_t every = 1;
  bool operator==(const KeptOps&) const = default;
};
struct SelectiveCheckpointing {
  std::vector<KeptOps> kept;  // none: attention/1 and linear/2, which is torchtitan's policy
  bool operator==(const SelectiveCheckpointing&) const = default;
};
struct BudgetCheckpointing {
  std::int64_t percent = 0;  // of what a block keeps without checkpointing, its input apart, 0 to 100
  bool operator==(const BudgetCheckpointing&) const = default;
};
using Checkpointing =
    std::variant<NoCheckpointing, FullCheckpointing, EveryNth, SelectiveCheckpointing, BudgetCheckpointing>;

/// --loss: whether the logits of all tokens exist at once.
struct FullLoss {};
struct ChunkedLoss {
  std::int64_t chunks = 8;
  bool in_forward = false;  // gradients too are made in the forward pass, before anything is gathered for backward
};
struct UnsetLoss {};  // nobody has chosen yet: only until resolve_job() has been called
using Loss = std::variant<FullLoss, ChunkedLoss, UnsetLoss>;

inline constexpr std::int64_t kUnlabelled = -100;  // the label of a position that has none, as in PyTorch

/// What the loss of a token is besides its cross entropy, and which labels have a loss (docs/engine.md).
struct LossTerms {
  double label_smoothing = 0;                // share of the target that is spread evenly over the vocabulary
  double z_loss = 0;                         // coefficient of the square of the log-sum-exp
  std::int64_t ignored_label = kUnlabelled;  // a token id that is not counted as a label
};

/// --lora-*: the adapters of --method lora and qlora (Hu et al. 2021, arXiv 2106.09685).
struct Lora {
  std::int64_t rank = 0;             // 0: not set
  double alpha = 0;                  // the adapter's output is scaled by alpha / rank; 0: not set
  double dropout = 0;                // probability that an element of the adapter's input is dropped
  std::vector<std::string> targets;  // globs over linears; none: not set
  bool rank_stabilized = false;      // scaled by alpha / sqrt(rank) instead (Kalajdzievski 2023, arXiv 2312.03732)
  bool has_magnitudes = false;  // DoRA: rows of the sum have lengths of their own (Liu et al. 2024, arXiv 2402.09353)
};

/// --gradient-mask: which elements of a gradient are used.
struct NoGradientMask {};
struct RandomGradientMask {
  double keep = 1;  // probability that an element is used
};
struct GradientMaskFile {
  std::string path;
};
using GradientMask = std::variant<NoGradientMask, RandomGradientMask, GradientMaskFile>;

/// --loss-scale: the factor by which the loss is multiplied in backward, so that gradients survive that fp16 would
/// round to zero. They are divided by it before they are clipped and used. A step whose gradients overflow is skipped,
/// as in torch.amp.GradScaler.
struct LossScaleByPrecision {};  // dynamic if an op or a reduction computes in fp16, otherwise none
struct NoLossScale {};
struct FixedLossScale {
  double factor = 1;
};
struct DynamicLossScale {
  double first = 65536;                 // factor of the first step
  std::int64_t growth_interval = 2000;  // steps without an overflow after which it doubles
};
using LossScale = std::variant<LossScaleByPrecision, NoLossScale, FixedLossScale, DynamicLossScale>;

}  // namespace vramfit
