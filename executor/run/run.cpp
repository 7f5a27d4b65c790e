#include "executor/run/run.h"

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <optional>

#include "base/error.h"
#include "base/files/file.h"
#include "base/files/result_file.h"
#include "executor/meter/arena.h"
#include "executor/meter/cuda_meter.h"
#include "executor/meter/meter.h"
#include "executor/meter/phantom.h"
#include "executor/observe/run_observers.h"
#include "executor/run/agreement.h"
#include "executor/run/among_others.h"
#include "executor/run/cpu_threads.h"
#include "executor/run/machine_support.h"
#include "executor/run/out_of_memory.h"
#include "executor/run/run_checkpoints.h"
#include "executor/run/run_record.h"
#include "executor/sharding/meeting.h"
#include "executor/training/program_to_train.h"
#include "job/optimizers/optimizers.h"
#include "job/sharding/sharding.h"
#include "program/readers/fingerprint.h"
#include "program/schedules/schedule.h"
#include "program/stages/adapters.h"
#include "program/stages/trainable.h"

namespace vramfit {

namespace {

constexpr std::int64_t kLongestPlan = std::int64_t{64} << 20;
constexpr FileRole kPlanFile{"plan", ExitCode::usage};

/// The plan's nodes are blocks of ranks in order; what its prediction says of links and hosts holds for no other
/// layout.
void check_nodes(const Cluster& cluster, const RankPlace& place) {
  const std::int64_t cards = cluster.cards_per_node;
  const std::string planned = fmt::format("the plan is for {} nodes with {} ranks each", cluster.nodes, cards);
  if (place.local_world > 0 && place.local_world != cards) {
    throw InputError(fmt::format("{}, {} were started on this one ({})", planned, place.local_world, place.launcher));
  }
  if (place.local_rank != place.rank % cards) {
    throw InputError(
        fmt::format("{}, in blocks; rank {} is number {} on its machine: start them with srun "
                    "--distribution=block or mpirun --map-by ppr:{}:node",
                    planned, place.rank, place.local_rank, cards));
  }
}

void check_plan(const PlanFile& plan, const RankPlace& place) {
  if (plan.job.runtime != Runtime::vramfit) {
    throw InputError("the plan is for a PyTorch runtime; vramfit-train runs --runtime vramfit only");
  }
  if (data_ranks(plan.job) != place.world) {
    throw InputError(fmt::format("the plan is for {} ranks, {} were started", data_ranks(plan.job), place.world));
  }
  if (place.world > 1) check_nodes(plan.cluster, place);
}

DeviceKind device_kind(const RunOptions& options, const PlanFile& plan) {
  if (options.device == "phantom") {
    if (plan.cluster.is_cpu())
      throw InputError("--device phantom: the plan is for CPU ranks, and phantom simulates GPUs");
    if (!gpus_are_phantoms())
      throw FaultError("--device phantom: the phantom libraries are not loaded; use `vramfit run --device phantom`");
    return DeviceKind::cuda;
  }
  if (options.device == "cuda") return DeviceKind::cuda;
  if (options.device == "cpu" || plan.cluster.is_cpu()) return DeviceKind::cpu;
  return DeviceKind::cuda;
}

int set_threads(const RunOptions& options, const PlanFile& plan) {
  const int threads = cpu_threads(options.threads, static_cast<int>(plan.cluster.cards_per_node));
  at::set_num_threads(threads);
  return threads;
}

Device open_device(const RunOptions& options, const PlanFile& plan, const RankPlace& place) {
  const DeviceKind kind = device_kind(options, plan);
  const int threads = set_threads(options, plan);
  if (kind == DeviceKind::cuda) {
    if (options.budget.n >= 0) throw InputError("--budget: only for CPU ranks; a GPU is limited by its own memory");
    Device device = open_cuda_device(place.local_rank, plan.job.allocator);
    Meter::instance().install_cuda();
    return device;
  }
  const Bytes planned = plan.cluster.is_cpu() ? plan.cluster.card.memory : Bytes{0};
  Meter::instance().install_cpu(options.budget.n >= 0 ? options.budget : planned);
  Device device = plan.cluster.is_cpu() ? plan.cluster.card.device : Device{};
  device.kind = DeviceKind::cpu;
  device.threads = threads;
  return device;
}

Coords coords_of(const PlanFile& plan, int rank) {
  return {.replicate = rank / plan.job.mesh.shard, .shard = rank % plan.job.mesh.shard};
}

std::int64_t shard_ranks(const Job& job) { return sharding_named(job.sharding).parameters ? job.mesh.shard : 1; }

/// Adapters are read before ranks meet, so that what is wrong with them is said by name.
std::unique_ptr<WeightSource> open_adapters(const RunOptions& options, const PlanFile& plan, const Graph& graph,
                                            std::unique_ptr<WeightSource> base) {
  if (options.adapters.empty()) return base;
  const PeftFolder folder = read_peft_folder(options.adapters);
  check_adapters(folder, plan.job);
  return peft_weights(folder, graph, std::move(base));
}

std::unique_ptr<WeightSource> open_weights(const RunOptions& options, const PlanFile& plan, const Graph& graph,
                                           bool has_values) {
  std::unique_ptr<WeightSource> weights = random_weights(options.train.seed);
  if (options.weights != "random") weights = safetensors_weights(options.weights, graph, std::move(weights));
  weights = open_adapters(options, plan, graph, std::move(weights));
  if (plan.job.lora.has_magnitudes) {
    weights = with_magnitudes(std::move(weights), graph,
                              {.parameters = held_parameters(graph, plan.job),
                               .compute = plan.job.precision.compute,
                               .shards = shard_ranks(plan.job)});
  }
  return has_values ? std::move(weights) : without_values(std::move(weights));
}

std::unique_ptr<Dataset> open_data(const RunOptions& options, const PlanFile& plan, const Graph& graph) {
  if (options.data.empty() && options.device == "phantom") return made_up_dataset(plan.job.sequence);
  DataOptions data;
  data.paths = options.data;
  data.token_bytes = options.token_bytes;
  data.vocab_size = plan.spec.vocab_size;
  data.sequence = plan.job.sequence;
  data.seed = options.train.seed;
  data.masked_lm = graph.masked_lm;
  std::unique_ptr<Dataset> opened = options.data.empty() ? synthetic_dataset(data) : open_dataset(data);
  const std::int64_t ignored = plan.job.loss_terms.ignored_label;
  return ignored == kUnlabelled ? std::move(opened) : without_label(std::move(opened), ignored, data.sequence);
}

std::string data_note(const RunOptions& options) {
  if (!options.data.empty() || options.device == "phantom") return "";
  return "vramfit: no --data: training on synthetic tokens; memory and speed are real, the loss means nothing\n";
}

/// Throws InputError for flags that write or read values.
void check_phantom(const RunOptions& options) {
  const SaveFlags& save = options.save;
  const std::string why = "tensors on phantom GPUs have no values";
  if (!options.dumps.directory.empty()) throw InputError("--dump-state: " + why);
  if (!save.directory.empty() || !save.full.empty()) throw InputError("--save and --save-full: " + why);
  if (!save.adapters.empty()) throw InputError("--save-adapters: " + why);
  if (!save.resume.empty()) throw InputError("--resume: " + why);
}

/// One rank's run; what it has done so far survives an exception.
class RankRun {
 public:
  RankRun(const RunOptions& options, const RankPlace& place, Meeting* meeting)
      : options_(options),
        plan_text_(read_file(options.plan, kPlanFile, kLongestPlan)),
        plan_(plan_from_json(plan_text_, options.plan)),
        place_(place),
        meeting_(meeting) {
    check_plan(plan_, place_);
    clip_as_planned(options_.train, plan_.clip);
    OptimizerOptions& optimizer = options_.train.optimizer;
    optimizer = complete_options(optimizer, plan_.job.optimizer);
  }

  void run() {
    const Graph graph = training_graph(plan_.spec, plan_.job);
    if (!options_.save.adapters.empty()) require_adapters_alone(graph, plan_.job);
    if (options_.dumps.logits && std::holds_alternative<ChunkedLoss>(plan_.job.loss)) {
      throw InputError("--dump-logits: a chunked loss never has all logits at once; give --loss full");
    }
    if (options_.dumps.gradients_step > 0 && plan_.job.optimizer_in_backward) {
      throw InputError(
          "--dump-gradients: an update within backward never has all gradients at once; give "
          "--optimizer-in-backward off");
    }
    const std::unique_ptr<Dataset> data = open_data(options_, plan_, graph);
    const Device device = open_device(options_, plan_, place_);
    device_ = device.kind;
    const std::string notes = check_machine(plan_.job, plan_.cluster, device);
    if (reports()) std::fputs((notes + data_note(options_)).c_str(), stderr);
    if (device.kind == DeviceKind::cuda) progress_.device = gpus_are_phantoms() ? "phantom" : "cuda";
    if (is_phantom()) check_phantom(options_);
    RunObservers observers({.options = options_,
                            .plan = plan_,
                            .graph = graph,
                            .place = place_,
                            .device = device,
                            .phantom = is_phantom(),
                            .reports = reports()});
    std::unique_ptr<WeightSource> weights;
    if (options_.save.resume.empty()) {
      const bool is_sent = plan_.job.load == Load::rank0 && place_.rank != 0;
      weights = is_sent ? sent_weights() : open_weights(options_, plan_, graph, !is_phantom());
    }
    if (weights) progress_.weights = weights->description();  // also of a run that ends before it loads them
    const program::Program lowered = program_to_train({.graph = graph,
                                                       .job = plan_.job,
                                                       .device = device,
                                                       .coords = coords_of(plan_, place_.rank),
                                                       .run = run_effects(options_)});
    progress_.fingerprint = program::fingerprint_of(plan_.job, lowered);
    Meter::instance().enter(Phase::load, 0);  // which making communicators is a part of
    arena_ = open_arena(plan_.job.allocator, lowered, device.kind);
    const auto groups = connect({.place = place_,
                                 .device = device.kind,
                                 .shard_ranks = shard_ranks(plan_.job),
                                 .reshard_ranks = slice_group_ranks(graph, plan_.job),
                                 .agreement = agreement({.plan_text = plan_text_,
                                                         .options = options_,
                                                         .device = device.kind,
                                                         .fingerprint = progress_.fingerprint}),
                                 .timeout = std::chrono::seconds(options_.timeout_seconds),
                                 .meeting = meeting_,
                                 .ghosts = options_.ghosts,
                                 .observer = options_.observe.trace.empty() ? nullptr : &observers});
    RunCheckpoints checkpoints({.options = options_, .plan = plan_, .place = place_, .groups = *groups}, graph, *data);
    WeightSource& source = weights ? *weights : *checkpoints.states();
    progress_.weights = source.description();
    Meter::instance().record_events(!options_.events.empty());
    Trainer trainer({.graph = graph,
                     .job = plan_.job,
                     .device = device,
                     .groups = *groups,
                     .weights = source,
                     .states = checkpoints.states(),
                     .numbers = checkpoints.numbers(),
                     .data = *data,
                     .lowered = lowered,
                     .options = options_.train,
                     .dumps = options_.dumps,
                     .arena = arena_.get(),
                     .card = place_.local_rank,
                     .has_values = !is_phantom(),
                     .observer = &observers});
    train(trainer, checkpoints, observers);
    observers.show_phases(own_measurement().memory);
    checkpoints.finish(trainer);
    std::vector<MeasuredRank> ranks = gather_measured_ranks(*groups, own_measurement());
    if (!options_.events.empty()) write_events(Meter::instance().take_ledger(), options_.events, place_.rank);
    Meter::instance().record_events(false);
    trainer.finish();
    if (reports()) write_record(std::move(ranks));
    groups->world().barrier();
  }

  DeviceKind device() const { return device_; }

  /// Rank 0's own figures up to the moment it ran out.
  void record_out_of_memory(const char* message) {
    progress_.out_of_memory = true;
    progress_.message = message;
    if (reports()) write_record({own_measurement()});
  }

 private:
  void train(Trainer& trainer, RunCheckpoints& checkpoints, RunObservers& observers) {
    trainer.load();
    observers.begin(checkpoints.first_step());
    try {
      train_steps(trainer, checkpoints);
    } catch (...) {
      observers.finish();  // while what there is can still be seen
      throw;
    }
    observers.finish();
  }

  void train_steps(Trainer& trainer, RunCheckpoints& checkpoints) {
    for (std::int64_t step = checkpoints.first_step(); step <= options_.train.steps; ++step) {
      progress_.steps.push_back(trainer.step(step));
      checkpoints.after_step(step, trainer);
      if (step < options_.train.steps) stop_at_retries();
    }
  }

  /// For `vramfit run --replan`, which sets the variable: each retry waits for the GPU, and as memory fragments there
  /// are more.
  void stop_at_retries() {
    const bool asked = std::getenv("VRAMFIT_STOP_AT_RETRIES") != nullptr;  // NOLINT(concurrency-mt-unsafe): read only
    if (!asked || device_ != DeviceKind::cuda) return;
    const std::int64_t retries = device_memory().retries;
    if (retries == 0) return;
    progress_.stopped_at_retries = true;
    throw OutOfMemory(
        fmt::format("nearly out of memory: the allocator released cached memory and tried again, {} time{}", retries,
                    retries == 1 ? "" : "s"));
  }

  bool is_phantom() const { return progress_.device == "phantom"; }
  /// Rank 0 speaks for all, a rank played alone for itself.
  bool reports() const { return place_.rank == 0 || options_.ghosts; }

  MeasuredRank own_measurement() const {
    return measured_rank(place_, coords_of(plan_, place_.rank), device_, arena_.get());
  }

  void write_record(std::vector<MeasuredRank> ranks) const {
    if (options_.output.empty()) return;
    write_file(options_.output, run_to_json(make_run_record(plan_, options_, progress_, std::move(ranks))));
  }

  RunOptions options_;
  std::string plan_text_;
  PlanFile plan_;
  RankPlace place_;
  Meeting* meeting_;
  DeviceKind device_ = DeviceKind::cpu;
  std::shared_ptr<Arena> arena_;
  RunProgress progress_;
};

void run_recording_out_of_memory(RankRun& run) {
  try {
    run.run();
  } catch (const OutOfMemory& error) {
    run.record_out_of_memory(error.what());
    throw;
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (!is_out_of_memory(text)) throw;
    run.record_out_of_memory(text.c_str());
    throw OutOfMemory(text.substr(0, text.find('\n')));
  }
}

}  // namespace

DeviceKind run_rank(const RunOptions& options) {
  const RankPlace place = rank_place(environment_variables());
  const bool alone = place.world == 1 || options.ghosts;
  const auto meeting = alone ? nullptr : meet(place, std::chrono::seconds(options.timeout_seconds));
  DeviceKind device = DeviceKind::cpu;
  const auto run = [&] {
    RankRun rank(options, place, meeting.get());
    run_recording_out_of_memory(rank);
    device = rank.device();
  };
  alone ? run() : run_among_others(meeting->watch(), run);
  return device;
}

}  // namespace vramfit
