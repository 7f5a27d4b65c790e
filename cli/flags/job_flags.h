// The flags that describe a job, the same on estimate, plan and run. Names and values come from the table of job fields
// (job/fields/job_fields.h); a test freezes them.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "job/cluster/cluster.h"
#include "job/job.h"
#include "job/run/rehearsal_command.h"
#include "job/stacks/stacks.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's own name
class App;
}

namespace vramfit {

struct JobFile;

/// What was typed, unread.
struct JobFlags {
  std::string model, gpus, host_memory, stack, confidence;
  std::vector<std::string> job_files;
  std::vector<std::string> set;                  // "seq_len=4096"
  std::vector<std::vector<std::string>> values;  // one entry a field of job_fields()
  bool has_stack = false;                        // the command has --stack
  // What other tools' files say (cli/configs/job_configs.h): fields and values, what isn't modelled, what is assumed.
  std::vector<std::pair<std::string, std::string>> imported;  // those that the stack has no choice of, too
  bool copies_on_several = false;  // they don't say how many GPUs there are, and on several each has a copy (DDP)
  bool clips = true;               // false: they say that gradients aren't clipped
  TrainingProgram program;         // that trains with them as they are, if any
  // Of a plan, a run or an estimate: what else its figures are for.
  double network_bandwidth = 0;  // where it isn't the cluster's usual one
  std::string save_kind;         // "": none is said
  std::vector<std::string> unmodelled, assumed;
  /// What `job_files` hold, once somebody has read them: they may be pipes.
  mutable std::shared_ptr<const std::vector<JobFile>> read_files = {};
};

inline constexpr const char* kNetworkHelp =
    "Bandwidth between nodes, per direction: 400Gbps/card or 50GB/s/node. Default: what is usual for the GPU";

/// Declares MODEL, --gpus, --job, --set and every job flag; `flags` must outlive the app.
void add_job_flags(CLI::App& command, JobFlags& flags);

struct JobChoice {
  Job job;                         // unresolved_job() with what was set
  std::vector<std::string> fixed;  // names of the fields that were set, in the table's order
};

/// Reads what was imported and the job files, then the flags, then --set; later ones win. Throws InputError.
JobChoice read_job_choice(const JobFlags& flags);

/// --stack, on commands that predict; `by_default` tells what holds without it.
void add_stack_flag(CLI::App& command, JobFlags& flags, const char* by_default);

inline constexpr const char* kUsualByDefault = "transformers if it has rules for the job, else vramfit";
inline constexpr const char* kOwnByDefault =
    "vramfit, with which \"vramfit run\" trains; transformers if --runtime names one of PyTorch's runtimes";

/// The same from a stack's defaults on `cluster`. Its runtime and modeling count as set; other values for them are
/// refused with an InputError.
JobChoice read_job_choice(const JobFlags& flags, const Stack& stack, const Cluster& cluster);

/// "--stack torchtitan on one GPU (--stack transformers and vramfit have rules there)", for what isn't modelled there.
std::string without_rules_text(const Stack& stack, const Cluster& cluster);

/// The choice of a command that needs rules: on the stack that --stack names, if any. Throws NotModelled where the
/// stack has none on `cluster`.
JobChoice read_job_choice_on_stack(const JobFlags& flags, const Cluster& cluster);

/// --confidence, on commands that predict memory.
void add_confidence_flag(CLI::App& command, JobFlags& flags);

/// What --stack names; null without it.
const Stack* stack_of_flag(const JobFlags& flags);

/// Throws InputError where --set says another value than the field's flag, or than another --set.
void require_said_once(const JobFlags& flags);

/// Whether a flag of a field or --set was given.
bool sets_any_field(const JobFlags& flags);

/// Whether any flag that describes a job was given.
bool any_job_flag(const JobFlags& flags);

/// --gpus, --host-memory and --confidence; throws InputError when the first is missing.
Cluster read_cluster_flag(const JobFlags& flags);

}  // namespace vramfit
