// What files of other tools say of a job, while they are read: settings with the place that each comes from, and what
// was assumed, isn't modelled, or is ignored.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/configs/syntax/tree.h"

namespace vramfit {

/// A key of a file, with its value.
struct Setting {
  std::string file, key;  // "fsdp_config.fsdp_version"
  const ConfigNode* node = nullptr;

  /// Each throws InputError naming file, line and key if the value is of another kind or out of range. Text that is a
  /// number or a boolean counts as one, as on a command line everything is text.
  std::int64_t whole(std::int64_t least = 0, std::int64_t most = std::int64_t{1} << 40) const;
  double real() const;
  bool flag() const;
  std::string text() const;
  std::vector<std::string> texts() const;  // a list, or a text split at commas

  /// Whether it is false, 0, "none", "no", "" or an empty list or map: what asks for nothing.
  bool is_off() const;
  bool is(std::string_view word) const;  // ignoring case
  [[noreturn]] void fail(const std::string& what) const;
};

/// One line of what is said about files.
struct Finding {
  std::string file;
  int line = 0;  // 0: it is about no line
  std::string key, value, says;
};

/// Names of what is known of a job beside its fields (job/fields/job_fields.h). A field that must be written with its
/// files' other settings in view is derived from these (cli/configs/finish.h).
namespace fact {
inline constexpr std::string_view kModel = "the model";
inline constexpr std::string_view kProcesses = "the number of GPUs";
inline constexpr std::string_view kNodes = "the number of nodes";
inline constexpr std::string_view kPerNode = "the number of GPUs of a node";
inline constexpr std::string_view kVisible = "the number of GPUs that a process sees";
inline constexpr std::string_view kStarter = "what starts the processes";  // "torchrun"
inline constexpr std::string_view kWanted = "the library that is asked for";
inline constexpr std::string_view kAskedModel = "the model that is asked about";
inline constexpr std::string_view kLibrary = "the library";         // a name of stacks()
inline constexpr std::string_view kParallel = "the parallelism";    // none, ddp, fsdp, deepspeed
inline constexpr std::string_view kFsdpVersion = "FSDP's version";  // 1, 2
inline constexpr std::string_view kFsdpStrategy = "FSDP's strategy";
inline constexpr std::string_view kStrategyOfFsdp1 = "a strategy where FSDP2 has a switch";
inline constexpr std::string_view kBackwardPrefetch = "FSDP1's prefetch in backward";      // pre, post, none
inline constexpr std::string_view kForwardPrefetch = "FSDP1's prefetch in forward";        // on, off
inline constexpr std::string_view kOriginalParameters = "FSDP1's original parameters";     // on, off
inline constexpr std::string_view kCodesDtype = "the dtype of codes of 4 bits";            // uint8, bfloat16, ...
inline constexpr std::string_view kLimitsGathers = "FSDP1's limit of gathers in flight";   // on, off
inline constexpr std::string_view kFsdpCheckpointing = "FSDP's own checkpointing";         // on, off
inline constexpr std::string_view kEfficientLoading = "FSDP's loading by rank 0";          // on, off
inline constexpr std::string_view kFindsUnused = "DDP's look for unused parameters";       // on, off, auto
inline constexpr std::string_view kOtherDdp = "another DDP";                               // on: than the usual one
inline constexpr std::string_view kAnyLength = "rows without a limit";                     // on
inline constexpr std::string_view kClipping = "clipping of gradients";                     // on, off
inline constexpr std::string_view kReentrant = "checkpoints that re-enter autograd";       // on, off
inline constexpr std::string_view kFactoryReentrant = "LLaMA-Factory's use_reentrant_gc";  // on, off
inline constexpr std::string_view kCheckpointOptions = "options of checkpoints";           // on: there are some
inline constexpr std::string_view kTrainersCheckpoints = "the Trainer's own checkpoints";  // on, beside LLaMA-Factory's
inline constexpr std::string_view kUnreadFile = "a file that isn't there";                 // its path
inline constexpr std::string_view kTrains = "training";                                    // on: do_train
inline constexpr std::string_view kOtherTask = "evaluation or prediction";                 // the key that asks for it
inline constexpr std::string_view kLaunchedFsdp = "FSDP's version by the launcher";        // 1, 2
inline constexpr std::string_view kAxolotlsDdp = "axolotl's ddp";                          // off
inline constexpr std::string_view kStepRows = "rows of a GPU in a step";
inline constexpr std::string_view kAdapterKernels = "axolotl's kernels of adapters";  // said
inline constexpr std::string_view kRemoteCode = "code of the model's own";            // on
inline constexpr std::string_view kOwnKernels = "axolotl's kernels";                  // as --kernels has them
inline constexpr std::string_view kZeroStage = "ZeRO's stage";
inline constexpr std::string_view kOwnOptimizer = "DeepSpeed's optimizer";  // on: it comes before the Trainer's
inline constexpr std::string_view kPageableStates = "DeepSpeed's states in pageable memory";          // on
inline constexpr std::string_view kPageableParameters = "DeepSpeed's parameters in pageable memory";  // on
inline constexpr std::string_view kMomentum = "SGD's momentum";                                       // on
inline constexpr std::string_view kWeightDecay = "weight decay";                                      // on
inline constexpr std::string_view kMixed = "mixed precision";              // of the launcher: no, bf16, fp16, fp8
inline constexpr std::string_view kMixedHere = "the mixed precision";      // of the program, which comes first
inline constexpr std::string_view kWeights = "the dtype of the weights";   // fp32, bf16, fp16, auto
inline constexpr std::string_view kBf16Off = "bf16";                       // off: the program says so
inline constexpr std::string_view kLora = "LoRA";                          // on, off
inline constexpr std::string_view kReference = "GRPOTrainer's reference";  // on
inline constexpr std::string_view kPacking = "packing of documents";       // on: into rows, from which each sees itself
inline constexpr std::string_view kStrategy = "packing_strategy";          // TRL's
inline constexpr std::string_view kIterations = "num_iterations";
inline constexpr std::string_view kGeneration = "steps_per_generation";
inline constexpr std::string_view kBits = "bits of frozen weights";  // 4, 8
inline constexpr std::string_view kNested = "nested quantization";   // on, off
inline constexpr std::string_view kMinimum = "FSDP's least parameters";
inline constexpr std::string_view kSeveral = "several GPUs";  // ddp: what they are, where no file says how many
inline constexpr std::string_view kReplicas = "replicas";
inline constexpr std::string_view kShards = "shards";
}  // namespace fact

/// The fact of a size that --zero3-sizes names.
std::string zero3_fact(std::string_view size);

class Draft {
 public:
  /// `name` is a fact or a job field. Says "--flag value", or `says`. Takes the place of what was assumed. Throws
  /// InputError naming both places if a file has said another value.
  void set(std::string_view name, const std::string& value, const Setting& by, std::string says = "");
  /// Only if it isn't set yet.
  void assume(std::string_view name, const std::string& value, const std::string& why);

  std::optional<std::string> get(std::string_view name) const;
  bool has(std::string_view name) const { return get(name).has_value(); }
  bool is(std::string_view name, std::string_view value) const { return get(name) == std::string(value); }
  void forget(std::string_view name);
  /// What follows from settings that have lines of their own; no line is added.
  void derive(std::string_view name, const std::string& value);

  void understand(const Setting& by, std::string says);
  void ignore(const Setting& by, std::string_view why);
  void not_modelled(const Setting& by, std::string_view why);
  void not_modelled(std::string why);
  void note(std::string why);

  /// Nothing is to be said of it: it was put there by who reads a command line.
  void pass_over(const Setting& by) { said_.insert(by.node->number); }
  /// Lists the values of a file that nothing was said of, so that no key is dropped in silence. Of a map that is
  /// ignored or not modelled, what is said holds for all that it has.
  void list_unread(const ConfigNode& map, const std::string& file, const std::string& path = "");

  /// A file that a setting names, to be read as well.
  void refer(const Setting& by, const std::string& path);
  /// Those since the last call; the value is the path.
  std::vector<Finding> take_references() { return std::exchange(references_, {}); }

  struct Value {
    std::string value, file, key;  // no file: assumed
    int line = 0;
  };
  const std::map<std::string, Value, std::less<>>& values() const { return values_; }
  std::vector<Finding> understood, assumed, unmodelled, ignored;
  /// Of two different values the first counts, instead of an error: what a command line says comes before its files.
  bool yields = false;
  /// Which FSDP is set up by what names no policy of wrapping: accelerate's then wraps the model alone, the Trainer's
  /// own each layer. Each is said by a file of its own kind, whatever other files say, and the Trainer's comes first.
  bool has_accelerates_default_wrap = false, has_trainers_default_wrap = false;

 private:
  std::map<std::string, Value, std::less<>> values_;
  std::vector<Finding> references_;
  std::set<int> said_, closed_;  // numbers of nodes: those that something was said of, those with all that they have
};

/// Whether one of TRL's trainers trains, as far as files say.
inline bool is_trl(const Draft& draft) {
  const std::string library = draft.get(fact::kLibrary).value_or("");
  return library.starts_with("trl");
}

}  // namespace vramfit
