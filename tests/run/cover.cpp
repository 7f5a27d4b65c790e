#include "tests/run/cover.h"

#include <algorithm>
#include <array>
#include <random>
#include <string_view>

#include "job/optimizers/optimizers.h"
#include "job/sharding/sharding.h"
#include "model_specs/families/families.h"
#include "program/optimizers/optimizers.h"
#include "tests/support/pairwise.h"
#include "tests/support/paths.h"

namespace vramfit::testing {

namespace {

// Of experts the engine has no kernels.
constexpr std::array<std::string_view, 3> kMixtures{"gpt_oss", "mixtral", "qwen3_moe"};

struct Axis {
  std::string flag;  // "" for the family and the ranks
  std::vector<std::string> values;
};

// Where they stand in axes().
constexpr std::size_t kFamily = 0, kRanks = 1, kSharding = 2, kReshard = 3, kPrecision = 5, kReduce = 6, kLossScale = 8,
                      kAccumulation = 10, kFreeze = 13, kGradientMask = 14, kLoad = 22, kOptimizer = 23, kOffload = 25,
                      kMethod = 26, kDropout = 27, kQuantization = 28, kInBackward = 29, kGradientDtype = 32,
                      kMasterDtype = 33, kState = 34, kRslora = 35;

const std::vector<std::string> kPrefetches{"backward=post,forward=1", "backward=pre,forward=2",
                                           "backward=none,forward=0", "backward=post,forward=3,limit=2",
                                           "backward=pre,forward=1,limit=1"};

std::vector<Axis> axes() {
  return {{"", runnable_families()},
          {"", {"1", "2", "4"}},
          {"--sharding", sharding_names()},
          {"--reshard", {"default", "last-kept", "always", "never", "2"}},
          {"--checkpointing", {"none", "full", "every:2", "selective", "selective:linear/3,attention", "budget:40%"}},
          {"--precision", {"fp32", "bf16-mixed", "bf16-pure", "fp16-mixed", "fp8"}},
          {"--reduce-dtype", {"fp32", "bf16", "fp16"}},
          {"--buffer-dtype", {"fp32", "bf16", "fp16"}},
          {"--loss-scale", {"auto", "none", "1024"}},
          {"--loss", {"full", "chunked:3", "chunked-forward:3"}},
          {"--grad-accum", {"1", "2", "3"}},
          {"--accumulate", {"sharded", "unsharded"}},
          {"--bucket-bytes", {"26214400", "2000"}},
          {"--freeze", {"none", "layers:0", "*att*", "layers:0,embeddings", "head"}},
          {"--gradient-mask", {"none", "keep:0.4"}},
          {"--threads", {"1", "2"}},
          {"--wrap", {"layer", "layers:2", "none", "size:6000", "size:18000", "pattern:*att*n*,*.1"}},
          {"--wrap-embeddings", {"on", "off"}},
          {"--prefetch", kPrefetches},
          {"--reduce-finish", {"early", "end"}},
          {"--reshard-head", {"off", "on"}},
          {"--attention", {"auto", "math"}},
          {"--load", {"each", "rank0"}},
          {"--optimizer", listed_optimizers()},
          {"--frozen-dtype", {"", "fp32", "bf16", "fp16"}},
          {"--offload", offload_kinds()},
          {"--method", {"full", "lora", kDora}},
          {"--lora-dropout", {"0", "0.25"}},
          {"--quantization", {"none", "nf4", "nf4-double", "int8", "fp8"}},
          {"--optimizer-in-backward", {"off", "on"}},
          {"--label-smoothing", {"0", "0.1"}},
          {"--z-loss", {"0", "1e-4"}},
          {"--gradient-dtype", {"", "fp8", "fp8-sent"}},
          {"--master-dtype", {"", "fp16"}},
          {"--state-dtype", {"", "fp32", "bf16"}},
          {"--rslora", {"", "on"}}};
}

bool is_hybrid(const std::string& sharding) { return sharding.starts_with("hybrid"); }

std::string odd_size(std::mt19937_64& random, std::uint64_t least, std::uint64_t range) {
  return std::to_string(least + random() % range);
}

}  // namespace

std::vector<std::string> runnable_families() {
  std::vector<std::string> names;
  for (const Family& family : families()) {
    const bool has_experts = std::ranges::find(kMixtures, family.model_type) != kMixtures.end();
    if (family.graph != nullptr && !has_experts) names.emplace_back(family.model_type);
  }
  return names;
}

std::vector<std::string> sharding_names() {
  std::vector<std::string> names;
  names.reserve(kShardings.size());
  for (const Sharding& sharding : kShardings) {
    if (!sharding.of_deepspeed) names.emplace_back(sharding.name);
  }
  return names;
}

std::vector<std::string> listed_optimizers() {
  std::vector<std::string> names;
  for (const OptimizerName& optimizer : optimizer_names()) names.emplace_back(optimizer.name);
  return names;
}

bool can_update(const std::string& optimizer, const std::string& precision) {
  return !optimizer_named(optimizer).rounds_randomly || precision == "bf16-pure";
}

bool can_keep_states(const std::string& optimizer, const std::string& precision, const std::string& state) {
  const std::string storage = precision == "bf16-pure" ? "bf16" : "fp32";
  return state.empty() || state == storage || optimizer_named(optimizer).takes_other_states;
}

std::string FormsInTurn::next(const std::string& optimizer, const std::string& precision, const std::string& state,
                              const std::string& offload) {
  constexpr std::array<std::string_view, 3> kForms{":foreach", ":loop", ""};
  const std::string storage = precision == "bf16-pure" ? "bf16" : "fp32";
  const bool is_of_one_dtype = state.empty() || state == storage;
  const bool can_choose = optimizer == "adamw" && is_of_one_dtype && (offload == "none" || offload == "activations");
  return optimizer + std::string(can_choose ? kForms[turn_++ % kForms.size()] : "");
}

std::vector<std::string> HalfInTurn::next(const Job& job) {
  const std::string name = job.optimizer.substr(0, job.optimizer.find(':'));
  const Optimizer& row = optimizer_named(name);
  const bool is_of_calls = job.optimizer.ends_with(":foreach") || job.optimizer.ends_with(":loop");
  const bool has_own_states = std::ranges::all_of(row.states, [](const OptimizerState& state) {
    return state.holds == OptimizerState::Holds::updates || state.dtype;
  });
  const bool can_have = !row.rounds_randomly && (row.takes_other_states || has_own_states) && !is_of_calls;
  if (!can_have || !job.master_dtype.empty() || job.updates_in_backward || (has_own_states && !job.state.empty()))
    return {};
  turn_ = !turn_;
  if (!turn_) return {};
  std::vector<std::string> flags{"--storage-dtype", "fp16"};
  if (has_own_states) flags.insert(flags.end(), {"--state-dtype", "fp16"});
  return flags;
}

std::vector<std::string> GradientsInTurn::next(const Job& job) {
  constexpr std::array<std::string_view, 4> kDtypes{"bf16", "fp32", "fp16", ""};
  const std::size_t colon = job.optimizer.find(':');
  const bool is_of_calls = colon != std::string::npos && !job.optimizer.ends_with(":paged");
  if (is_of_calls || !job.gradient_dtype.empty()) return {};
  const std::string_view dtype = kDtypes[turn_++ % kDtypes.size()];
  const std::string_view storage = job.is_half ? "fp16" : job.precision == "bf16-pure" ? "bf16" : "fp32";
  const bool is_scaled_late = dtype == "fp16" && job.updates_in_backward;  // such gradients are of a scaled loss
  if (dtype.empty() || dtype == storage || is_scaled_late) return {};
  return {"--gradient-dtype", std::string(dtype)};
}

std::vector<std::string> offload_kinds() {
  return {"none", "optimizer", "optimizer+gradients", "params,activations", "activations"};
}

bool can_offload(const std::string& optimizer, const std::string& offload, const std::string& ranks,
                 const std::string& sharding) {
  const bool sums = !optimizer_named(optimizer).sums.empty() && ranks != "1" && sharding != "no-shard";
  return offload == "none" || offload == "activations" || !sums;
}

bool can_offload(const std::string& offload, const std::string& ranks, const std::string& sharding, bool is_masked,
                 bool from_rank0) {
  if (offload == "none" || offload == "optimizer" || offload == "activations") return true;
  const bool has_replicas = ranks != "1" && (sharding == "no-shard" || is_hybrid(sharding));
  return !has_replicas && !is_masked && (!offload.starts_with("params") || ranks == "1" || !from_rank0);
}

bool can_update_in_backward(const NeedsAllGradients& job) {
  const bool has_fp16 = job.precision == "fp16-mixed" || job.reduce_dtype == "fp16";
  const bool is_scaled = job.loss_scale != "none" && (job.loss_scale != "auto" || has_fp16);
  return job.grad_accum == "1" && job.gradient_mask == "none" &&
         (job.offload == "none" || job.offload == "activations") && !is_scaled;
}

bool can_adapt(const std::string& method, const std::string& dropout, const std::string& freeze) {
  return method == kDora ? freeze == "none" : method == "lora" || dropout == "0";
}

void add_flag(std::vector<std::string>& flags, const std::string& flag, const std::string& value) {
  // Beside adapters `--freeze none` trains what has them, and is no default.
  if (value.empty() || (flag == "--freeze" && value == "none")) return;
  flags.push_back(flag);
  if (value != kDora) return flags.push_back(value);
  flags.insert(flags.end(), {"lora", "--dora", "on"});
}

bool can_keep_fp8_gradients(const std::string& method, const std::string& gradient_mask, const std::string& offload) {
  return method == "full" && gradient_mask == "none" && (offload == "none" || offload == "activations");
}

bool can_send_fp8_gradients(const std::string& gradient_dtype, int ranks, const std::string& sharding) {
  return gradient_dtype != "fp8-sent" || (sharding != "no-shard" && ranks > (is_hybrid(sharding) ? 2 : 1));
}

bool can_scale_masters(const std::string& method, const std::string& precision, const std::string& offload,
                       bool from_rank0) {
  return method == "full" && precision != "bf16-pure" && (offload == "none" || offload == "activations") && !from_rank0;
}

bool can_quantize(const Quantized& job, bool from_rank0) {
  if (job.quantization == "none") return true;
  if (from_rank0) return false;
  const bool has_frozen_layers = job.method.starts_with("lora") && job.freeze == "none";
  const bool keeps_masters = job.offload.starts_with("optimizer") || job.offload.starts_with("params");
  if (job.quantization == "fp8") return has_frozen_layers || keeps_masters;
  return has_frozen_layers || job.freeze.starts_with("layers") || job.freeze == "*att*";
}

std::string model_path(const std::string& family) { return source_dir() + "/tests/models/" + family + ".json"; }

std::string CoverJob::name() const {
  std::string text = family + " on " + std::to_string(ranks);
  for (const std::string& flag : flags) text += " " + flag;
  return text;
}

std::vector<CoverJob> cover(std::uint64_t seed, std::size_t minimum) {
  const std::vector<Axis> table = axes();
  std::vector<int> sizes;
  sizes.reserve(table.size());
  for (const Axis& axis : table) sizes.push_back(static_cast<int>(axis.values.size()));
  const auto value = [&](const std::vector<int>& row, std::size_t axis) {
    return table[axis].values[static_cast<std::size_t>(row[axis])];
  };
  // A hybrid needs both axes of the mesh; what doesn't reshard has no choice in it; one rank has no group of 2.
  const auto allowed = [&](const std::vector<int>& row) {
    const std::string sharding = value(row, kSharding), reshard = value(row, kReshard);
    if (is_hybrid(sharding) && value(row, kRanks) != "4") return false;
    if (reshard == "2" && value(row, kRanks) == "1") return false;
    const bool is_masked = value(row, kGradientMask) != "none", from_rank0 = value(row, kLoad) == "rank0";
    if (!can_offload(value(row, kOffload), value(row, kRanks), sharding, is_masked, from_rank0)) return false;
    if (!can_update(value(row, kOptimizer), value(row, kPrecision))) return false;
    if (!can_keep_states(value(row, kOptimizer), value(row, kPrecision), value(row, kState))) return false;
    if (!value(row, kRslora).empty() && value(row, kMethod) == "full") return false;
    if (!can_offload(value(row, kOptimizer), value(row, kOffload), value(row, kRanks), sharding)) return false;
    if (!can_adapt(value(row, kMethod), value(row, kDropout), value(row, kFreeze))) return false;
    const Quantized quantized{value(row, kQuantization), value(row, kMethod), value(row, kFreeze),
                              value(row, kOffload)};
    if (!can_quantize(quantized, from_rank0)) return false;
    const bool can_keep = can_keep_fp8_gradients(value(row, kMethod), value(row, kGradientMask), value(row, kOffload));
    if (!value(row, kGradientDtype).empty() && !can_keep) return false;
    if (!can_send_fp8_gradients(value(row, kGradientDtype), std::stoi(value(row, kRanks)), sharding)) return false;
    const bool can_scale =
        can_scale_masters(value(row, kMethod), value(row, kPrecision), value(row, kOffload), from_rank0);
    if (!value(row, kMasterDtype).empty() && !can_scale) return false;
    const NeedsAllGradients gradients{value(row, kAccumulation), value(row, kGradientMask), value(row, kOffload),
                                      value(row, kLossScale),    value(row, kPrecision),    value(row, kReduce)};
    if (value(row, kInBackward) == "on" && !can_update_in_backward(gradients)) return false;
    return reshard == "default" || sharding == "full-shard" || sharding == "hybrid-shard";
  };
  std::mt19937_64 random(seed);
  std::vector<CoverJob> jobs;
  FormsInTurn forms;
  HalfInTurn halves;
  GradientsInTurn gradients;
  for (const std::vector<int>& row : pairwise_cover(sizes, seed, minimum, allowed)) {
    CoverJob job{value(row, kFamily), std::stoi(value(row, kRanks)), {}};
    const std::string optimizer =
        forms.next(value(row, kOptimizer), value(row, kPrecision), value(row, kState), value(row, kOffload));
    for (std::size_t axis = kSharding; axis < table.size(); ++axis) {
      if (table[axis].flag == "--frozen-dtype" && (value(row, axis).empty() || value(row, kFreeze) == "none")) continue;
      if (value(row, axis) == "activations" && jobs.size() % 2 == 1) {
        add_flag(job.flags, table[axis].flag, "activations:every:2");
        continue;
      }
      add_flag(job.flags, table[axis].flag, axis == kOptimizer ? optimizer : value(row, axis));
    }
    const std::vector<std::string> half = halves.next({.optimizer = optimizer,
                                                       .state = value(row, kState),
                                                       .master_dtype = value(row, kMasterDtype),
                                                       .updates_in_backward = value(row, kInBackward) == "on"});
    job.flags.insert(job.flags.end(), half.begin(), half.end());
    const std::vector<std::string> kept = gradients.next({.optimizer = optimizer,
                                                          .precision = value(row, kPrecision),
                                                          .gradient_dtype = value(row, kGradientDtype),
                                                          .is_half = !half.empty(),
                                                          .updates_in_backward = value(row, kInBackward) == "on"});
    job.flags.insert(job.flags.end(), kept.begin(), kept.end());
    // In every second job, and with no axis of its own, which would draw all others anew.
    if (jobs.size() % 2 == 1) add_flag(job.flags, "--allocator", "gradients-first");
    if (value(row, kInBackward) == "on") job.flags.insert(job.flags.end(), {"--clip", "0"});
    if (value(row, kMethod).starts_with("lora"))
      job.flags.insert(job.flags.end(), {"--lora-rank", "3"});  // padded on 2 ranks
    if (is_hybrid(value(row, kSharding))) job.flags.insert(job.flags.end(), {"--mesh", "replicate=2,shard=2"});
    std::string sequence = odd_size(random, 5, 40);
    // FP8 wants rows in multiples of 16; every third such job has others.
    if (value(row, kPrecision) == "fp8" && jobs.size() % 3 != 0) sequence = std::to_string(16 * (1 + jobs.size() % 2));
    job.flags.insert(job.flags.end(), {"--seq-len", sequence, "--micro-batch", odd_size(random, 1, 3)});
    jobs.push_back(job);
  }
  return jobs;
}

}  // namespace vramfit::testing
