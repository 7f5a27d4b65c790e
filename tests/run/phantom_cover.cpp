#include "tests/run/phantom_cover.h"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "program/optimizers/optimizers.h"
#include "tests/run/forks.h"
#include "tests/support/pairwise.h"
#include "tests/support/paths.h"

namespace vramfit::testing {

namespace {

struct Axis {
  std::string flag;  // "" for what isn't a flag of the job
  std::vector<std::string> values;
};

constexpr const char* kPaged = ":paged";

// Where they stand in axes().
constexpr std::size_t kFamily = 0, kRanks = 1, kCard = 2, kAddresses = 3, kSequence = 4, kSharding = 5, kReshard = 6,
                      kPrecision = 7, kAttention = 8, kAllocator = 9, kCheckpointing = 10, kAccumulation = 12,
                      kLoad = 21, kReduce = 22, kLossScale = 24, kClip = 25, kFreeze = 26, kGradientMask = 27,
                      kOptimizer = 28, kOffload = 29, kMethod = 30, kDropout = 31, kQuantization = 32, kInBackward = 33,
                      kGradientDtype = 36, kMasterDtype = 37, kState = 38, kRslora = 39;

/// All optimizers, and paged those whose states may be in managed memory.
std::vector<std::string> forms_of_optimizers() {
  std::vector<std::string> forms = listed_optimizers();
  for (const std::string& name : listed_optimizers()) {
    const auto known = optimizer_named(name).implementations;
    if (std::ranges::find(known, OptimizerImplementation::paged) != known.end()) forms.push_back(name + kPaged);
  }
  return forms;
}

std::vector<Axis> axes(const CoverCards& cards) {
  return {{"", runnable_families()},
          {"", cards.ranks},
          {"", cards.cards},
          {"", cards.addresses},
          {"--seq-len", {"odd", "32", "96", "1024"}},
          {"--sharding", sharding_names()},
          {"--reshard", {"default", "last-kept", "always", "never", "2", "4"}},
          {"--precision", {"fp32", "bf16-mixed", "bf16-pure", "fp16-mixed", "fp8"}},
          {"--attention", {"auto", "math", "flash", "efficient"}},
          {"--allocator", {"expandable", "native"}},
          {"--checkpointing", {"none", "full", "every:2", "selective", "selective:linear/3,attention", "budget:40%"}},
          {"--loss", {"full", "chunked:3", "chunked-forward:3"}},
          {"--grad-accum", {"1", "2", "3"}},
          {"--wrap", {"layer", "layers:2", "none", "size:6000", "size:18000", "pattern:*att*n*,*.1"}},
          {"--accumulate", {"sharded", "unsharded"}},
          {"--bucket-bytes", {"26214400", "2000"}},
          {"--wrap-embeddings", {"on", "off"}},
          {"--prefetch",
           {"backward=post,forward=1", "backward=pre,forward=2", "backward=none,forward=0",
            "backward=post,forward=3,limit=2", "backward=pre,forward=1,limit=1"}},
          {"--reduce-finish", {"early", "end"}},
          {"--reshard-head", {"off", "on"}},
          {"--set", {"deterministic=off", "deterministic=on"}},
          {"--load", {"each", "rank0"}},
          {"--reduce-dtype", {"fp32", "bf16", "fp16"}},
          {"--buffer-dtype", {"fp32", "bf16", "fp16"}},
          {"--loss-scale", {"auto", "none", "1024"}},
          {"--clip", {"1", "0"}},
          {"--freeze", {"none", "embeddings", "layers:0", "*att*", "layers:0,embeddings", "head"}},
          {"--gradient-mask", {"none", "keep:0.4"}},
          {"--optimizer", forms_of_optimizers()},
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

/// What the job's own checks refuse by name is not drawn.
bool is_allowed(const std::vector<std::string>& row) {
  const bool hybrid = row[kSharding].starts_with("hybrid");
  if (hybrid && row[kRanks] == "1") return false;
  const std::string optimizer = row[kOptimizer].substr(0, row[kOptimizer].find(':'));
  if (!can_update(optimizer, row[kPrecision])) return false;
  if (!can_keep_states(optimizer, row[kPrecision], row[kState])) return false;
  if (!row[kRslora].empty() && row[kMethod] == "full") return false;
  const bool is_paged = row[kOptimizer].ends_with(kPaged);
  if (is_paged && row[kOffload] != "none" && row[kOffload] != "activations") return false;
  if (!can_offload(optimizer, row[kOffload], row[kRanks], row[kSharding])) return false;
  if (!can_adapt(row[kMethod], row[kDropout], row[kFreeze])) return false;
  if (row[kReshard] != "default" && row[kSharding] != "full-shard" && row[kSharding] != "hybrid-shard") return false;
  const int shards = std::stoi(row[kRanks]) / (hybrid ? 2 : 1);
  if ((row[kReshard] == "2" || row[kReshard] == "4") && shards % std::stoi(row[kReshard]) != 0) return false;
  if (row[kPrecision] == "fp8" && row[kCard] == "A100-40GB") return false;  // no such units
  if (row[kCard] == "T4" && (row[kPrecision].starts_with("bf16") || row[kPrecision] == "fp8")) return false;
  const bool is_16_bit = row[kPrecision] != "fp32";
  const bool is_masked = row[kGradientMask] != "none", from_rank0 = row[kLoad] == "rank0";
  if (!can_offload(row[kOffload], row[kRanks], row[kSharding], is_masked, from_rank0)) return false;
  if (!can_quantize({row[kQuantization], row[kMethod], row[kFreeze], row[kOffload]}, from_rank0)) return false;
  const bool can_keep = can_keep_fp8_gradients(row[kMethod], row[kGradientMask], row[kOffload]);
  if (!row[kGradientDtype].empty() && !can_keep) return false;
  if (!can_send_fp8_gradients(row[kGradientDtype], std::stoi(row[kRanks]), row[kSharding])) return false;
  const bool can_scale = can_scale_masters(row[kMethod], row[kPrecision], row[kOffload], from_rank0);
  if (!row[kMasterDtype].empty() && !can_scale) return false;
  const NeedsAllGradients gradients{row[kAccumulation], row[kGradientMask], row[kOffload],
                                    row[kLossScale],    row[kPrecision],    row[kReduce]};
  const bool can_update_early = row[kClip] == "0" && can_update_in_backward(gradients);
  if (row[kInBackward] == "on" && !can_update_early) return false;
  const bool softcap = row[kFamily] == "gemma2";
  const bool has_positions = row[kFamily] == "gpt2" || row[kFamily] == "bert";  // a table of 128
  if (has_positions && row[kSequence] == "1024") return false;
  if (row[kAttention] == "flash" && (!is_16_bit || softcap || row[kCard] == "T4")) return false;
  return row[kAttention] != "efficient" || (!softcap && row[kSequence] != "odd");
}

/// Whether layers are recomputed that write their gradients in place, with expandable segments.
bool may_order(const std::vector<std::string>& row) {
  const bool is_in_place = row[kPrecision] == "fp32" || row[kPrecision] == "bf16-pure";
  const bool is_whole = row[kRanks] == "1" || row[kSharding] == "no-shard";
  return row[kAllocator] == "expandable" && row[kCheckpointing] != "none" && is_in_place && is_whole;
}

}  // namespace

std::vector<PhantomJob> phantom_cover(std::uint64_t seed, std::size_t minimum, const CoverCards& cards) {
  const std::vector<Axis> table = axes(cards);
  std::vector<int> sizes;
  for (const Axis& axis : table) sizes.push_back(static_cast<int>(axis.values.size()));
  const auto texts = [&](const std::vector<int>& row) {
    std::vector<std::string> values;
    for (std::size_t axis = 0; axis < table.size(); ++axis) {
      values.push_back(table[axis].values[static_cast<std::size_t>(row[axis])]);
    }
    return values;
  };
  std::mt19937_64 random(seed);
  std::vector<PhantomJob> jobs;
  FormsInTurn forms;
  HalfInTurn halves;
  GradientsInTurn gradients;
  bool orders = false;
  for (const std::vector<int>& row :
       pairwise_cover(sizes, seed, minimum, [&](const std::vector<int>& r) { return is_allowed(texts(r)); })) {
    std::vector<std::string> values = texts(row);
    const int ranks = std::stoi(values[kRanks]);
    PhantomJob job{{values[kFamily], ranks, {}}, values[kRanks] + "x" + values[kCard], 0, values[kAddresses]};
    job.rank = static_cast<int>(random() % static_cast<std::uint64_t>(ranks));
    values[kOptimizer] = forms.next(values[kOptimizer], values[kPrecision], values[kState], values[kOffload]);
    if (values[kOffload] == "activations" && jobs.size() % 2 == 1) values[kOffload] += ":every:2";
    // No value of the axis, which would draw all jobs anew: in every second job that it may change.
    if (may_order(values)) orders = !orders;
    if (may_order(values) && orders) values[kAllocator] = "gradients-first";
    if (values[kSequence] == "odd") values[kSequence] = std::to_string(5 + random() % 40);
    for (std::size_t axis = kSequence; axis < table.size(); ++axis) {
      add_flag(job.job.flags, table[axis].flag, values[axis]);
    }
    const std::vector<std::string> half = halves.next({.optimizer = values[kOptimizer],
                                                       .state = values[kState],
                                                       .master_dtype = values[kMasterDtype],
                                                       .updates_in_backward = values[kInBackward] == "on"});
    job.job.flags.insert(job.job.flags.end(), half.begin(), half.end());
    const std::vector<std::string> kept = gradients.next({.optimizer = values[kOptimizer],
                                                          .precision = values[kPrecision],
                                                          .gradient_dtype = values[kGradientDtype],
                                                          .is_half = !half.empty(),
                                                          .updates_in_backward = values[kInBackward] == "on"});
    job.job.flags.insert(job.job.flags.end(), kept.begin(), kept.end());
    if (values[kSharding].starts_with("hybrid")) {
      job.job.flags.insert(job.job.flags.end(), {"--mesh", "replicate=2,shard=" + std::to_string(ranks / 2)});
    }
    job.job.flags.insert(job.job.flags.end(), {"--micro-batch", std::to_string(1 + random() % 3)});
    jobs.push_back(job);
  }
  return jobs;
}

bool has_own_kernels() {
  return std::filesystem::exists(std::filesystem::path(bin_dir()).parent_path() / "lib" / "libvramfit_kernels.so");
}

FinishedRun run_on_phantom(const PhantomJob& job, bool all_ranks) {
  const auto directory = std::make_shared<TemporaryDirectory>();
  const std::string place = directory->path().string();
  static const TrainForks forks(TrainForks::Cards::phantom);
  std::vector<std::string> arguments{forks.vramfit(),   "run",     model_path(job.job.family),
                                     "--device",        "phantom", "--gpus",
                                     job.gpus,          "--ranks", all_ranks ? "all" : std::to_string(job.rank),
                                     "--steps",         "2",       "--events",
                                     place + "/events", "-o",      place + "/run.json"};
  arguments.insert(arguments.end(), job.job.flags.begin(), job.job.flags.end());
  setenv("VRAMFIT_PHANTOM_SET", ("addresses=" + job.addresses).c_str(), 1);
  FinishedRun run = run_program(arguments);
  run.directory = directory;
  run.family = job.job.family;
  return run;
}

}  // namespace vramfit::testing
