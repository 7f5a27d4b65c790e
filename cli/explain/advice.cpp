#include "cli/explain/advice.h"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>

namespace vramfit {
namespace {

constexpr Bytes kZero{0};
constexpr Bytes kMuchOutside{2 * kGiB.n};  // a context and a communicator take less on every card of the catalog
constexpr Bytes kLittle{64 * kMiB.n};

/// What makes a phase smaller, as every library has it.
struct PhaseRow {
  Phase phase;
  std::string_view what, why;
};
constexpr std::array kPhaseRows{
    PhaseRow{Phase::load, "load less: weights of 2 bytes or quantized, or sharded over more GPUs",
             "it ran out while the model was loaded or moved to the card, before any training"},
    PhaseRow{Phase::forward, "gradient checkpointing, then a smaller micro-batch or sequence",
             "it ran out in forward, which keeps activations for backward: they grow with both"},
    PhaseRow{Phase::loss, "a loss in chunks or fused with the head (Liger's), or a smaller micro-batch or sequence",
             "it ran out in the loss: logits have a number for each token and each word of the vocabulary"},
    PhaseRow{Phase::backward, "gradient checkpointing, then a smaller micro-batch or sequence",
             "it ran out in backward, where activations, logits and the first gradients live at once"},
    PhaseRow{Phase::clip, "fewer gradients at once: sharding (FSDP, ZeRO), or fewer trainable parameters",
             "it ran out while gradients were clipped: all of them live then"},
    PhaseRow{Phase::optimizer, "smaller optimizer states: 8 bits, sharded (FSDP, ZeRO) or offloaded, or LoRA",
             "it ran out in the optimizer's step, whose first call makes its states: AdamW's are two numbers for each "
             "trainable parameter"},
    PhaseRow{Phase::evaluation, "a smaller evaluation batch, and predictions moved to the host as they come",
             "it ran out in evaluation or generation"},
    PhaseRow{Phase::checkpoint_save, "a sharded checkpoint instead of a whole one",
             "it ran out while a checkpoint was saved, for which ranks gather parameters"},
};

std::optional<Advice> expand_segments(const CardUse& use) {
  if (!use.unallocated || *use.unallocated < kLittle) return std::nullopt;
  const Bytes unallocated = *use.unallocated;
  const std::string has = fmt::format("{} is reserved by PyTorch and in no tensor", format_size(unallocated));
  if (use.expandable) {
    return Advice{"torch.cuda.empty_cache() won't help: expandable segments are on already",
                  has + "; what is left of it lies between tensors", false};
  }
  const std::string setting = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
  const std::string what = use.is_of_old_torch ? "PyTorch 2.1 or newer, with " + setting : setting;
  if (!use.asked) return Advice{what, has, false};
  if (unallocated >= *use.asked) {
    return Advice{
        what,
        fmt::format("{}, more than the {} asked for, but in pieces that are too small", has, format_size(*use.asked)),
        true};
  }
  const Bytes free = use.available().value_or(kZero);
  if (unallocated + free >= *use.asked) {
    return Advice{what,
                  fmt::format("{}, and {} free: together enough for the {} asked for", has, format_size(free),
                              format_size(*use.asked)),
                  true};
  }
  return Advice{
      what,
      fmt::format("{}; with all of it, {} would still be missing", has, format_size(*use.asked - unallocated - free)),
      false};
}

std::optional<Advice> stop_others(const CardUse& use) {
  if (!use.others || *use.others < kLittle) return std::nullopt;
  const std::optional<Bytes> lacking = use.lacking();
  std::string why = fmt::format("other processes have {} of this card", format_size(*use.others));
  if (use.largest_other > 0) why += fmt::format(", process {} most of it", use.largest_other);
  if (use.own_by_size) why += " (this process was identified only by its size; compare with nvidia-smi)";
  return Advice{"an otherwise empty card", why, lacking && *use.others >= *lacking && !use.limit};
}

std::optional<Advice> look_outside(const CardUse& use) {
  const Bytes outside = use.own_outside.value_or(kZero) + use.rest.value_or(kZero);
  if (outside < kMuchOutside) return std::nullopt;
  const std::string who =
      use.own_outside && use.rest.value_or(kZero) < kMuchOutside
          ? "this process has it: CUDA graphs, NCCL's buffers, or libraries that allocate on their own"
          : "nvidia-smi says whose it is: another process, or libraries of this one";
  return Advice{"less outside PyTorch",
                fmt::format("{} of the card is outside PyTorch's allocator; {}", format_size(outside), who), false};
}

std::optional<Advice> lift_limit(const CardUse& use) {
  if (!use.limit) return std::nullopt;
  const bool enough = use.asked && use.free && *use.free >= *use.asked;
  return Advice{"no memory fraction (torch.cuda.set_per_process_memory_fraction, per_process_memory_fraction)",
                fmt::format("PyTorch may use {} of the card", format_size(*use.limit)), enough};
}

std::optional<Advice> fewer_graphs(const CardUse& use) {
  if (!use.private_pools || *use.private_pools < kLittle) return std::nullopt;
  return Advice{"fewer CUDA graphs", fmt::format("their private pools keep {}", format_size(*use.private_pools)),
                false};
}

std::optional<Advice> shrink_phase(const CodeSite& site) {
  if (!site.phase) return std::nullopt;
  const auto* const row = std::ranges::find(kPhaseRows, *site.phase, &PhaseRow::phase);
  if (row == kPhaseRows.end()) return std::nullopt;
  return Advice{std::string(row->what), std::string(row->why), false};
}

}  // namespace

std::vector<Advice> advice_for(const CardUse& use, const CodeSite& site) {
  std::vector<Advice> list;
  for (const auto& advice : {expand_segments(use), stop_others(use), lift_limit(use), fewer_graphs(use),
                             look_outside(use), shrink_phase(site)}) {
    if (advice) list.push_back(*advice);
  }
  std::stable_partition(list.begin(), list.end(), [](const Advice& advice) { return advice.enough; });
  if (list.empty()) {
    list.push_back({"a comparison with the estimate: vramfit explain FILE MODEL --gpus CLUSTER, and the job's flags",
                    "the figures alone don't say what was too large", false});
  }
  return list;
}

}  // namespace vramfit
