#include "executor/training/trainer.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "executor/checkpoint/full_torch.h"
#include "executor/checkpoint/snapshot_torch.h"
#include "executor/meter/cuda_meter.h"
#include "executor/meter/meter.h"
#include "executor/observe/dump_torch.h"
#include "executor/observe/observer.h"
#include "executor/sharding/unit_runs_torch.h"
#include "executor/sharding/unit_state_torch.h"
#include "executor/training/clipping_torch.h"
#include "executor/training/fp8_gradients_torch.h"
#include "executor/training/gradient_mask_torch.h"
#include "executor/training/input_staging_torch.h"
#include "executor/training/learning_rate.h"
#include "executor/training/op_runs_torch.h"
#include "executor/training/program_runner_torch.h"
#include "executor/training/rope_tables.h"
#include "executor/training/scaled_masters_torch.h"
#include "executor/training/tensor_torch.h"
#include "job/optimizers/optimizers.h"
#include "program/ops/fp8.h"
#include "program/schedules/schedule.h"
#include "program/stages/offload.h"

namespace vramfit {

namespace {

at::Device place_of(const TrainInputs& inputs) {
  return inputs.device.kind == DeviceKind::cpu ? at::Device(at::kCPU)
                                               : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(inputs.card));
}

/// The CPU updates what lies in host memory.
DeviceKind updating_device(const TrainInputs& inputs) {
  return offload_of(inputs.job).states ? DeviceKind::cpu : inputs.device.kind;
}

}  // namespace

struct Trainer::State {
  explicit State(const TrainInputs& inputs);

  void add_load_runs();
  void add_step_runs();
  void add_save_runs();
  void save_full(FileCalls& files, const FinalFolders& folders);
  void load();
  StepResult run_step(std::int64_t step);
  void run_sections(program::Section::Kind first, program::Section::Kind last);
  void mark(const program::Mark& mark);
  void end_mark();
  void check_mesh() const;
  void check_values(const StepResult& result) const;
  void load_shard(Operands& operands);
  void load_rope_table(Operands& operands);
  void fill_inputs(Operands& operands);
  void mask(Operands& operands);
  void gradients_ready();
  void dump_logits(const Segment& segment, const Value& value, const at::Tensor& tensor) const;
  void dump(PartOf part, bool trainable_only, const std::string& file, double divisor = 1);

  std::int64_t first_row(int rank, int micro_batch) const;
  std::int64_t label_tokens_of_step() const;

  TrainInputs in;
  at::Device place;
  UnitLayout layout;
  const program::Program& lowered;
  StepFacts facts;
  ProgramRunner runner;
  std::vector<UnitState> units;
  UnitRuns unit_runs;
  OpRuns op_runs;
  OptimizerStep optimizer_step;

  LossScaler scaler;
  Clipping clipping;
  GradientMasks masks;
  InputStaging staging;
  std::unique_ptr<RowSupply> supply;        // while weights are loaded
  Snapshot* snapshot = nullptr;             // while one is taken
  std::unique_ptr<FinalFiles> final_files;  // while rank 0 writes them
  std::vector<at::Tensor> loaded_masks, rope_cos, rope_sin;
  OptimizerOptions optimizer_options;
  Phase phase = Phase::load;
  std::int64_t next_micro_batch = 0;
  bool gradients_are_ready = false, is_in_instruction = false;
};

Trainer::State::State(const TrainInputs& inputs)
    : in(inputs),
      place(place_of(inputs)),
      layout(lay_out_units(inputs.graph, inputs.job)),
      lowered(inputs.lowered),
      runner({.lowered = lowered,
              .groups = inputs.groups,
              .device = place,
              .arena = inputs.arena,
              .has_values = inputs.has_values}),
      unit_runs({.graph = inputs.graph,
                 .layout = layout,
                 .optimizer = optimizer_named(inputs.job.optimizer),
                 .kernels = inputs.job.kernels,
                 .shard_rank = inputs.groups.shard().rank()}),
      op_runs({.graph = inputs.graph, .job = inputs.job, .device = inputs.device, .facts = facts, .place = place}),
      optimizer_step(vramfit::optimizer_step(inputs.job, updating_device(inputs))),
      scaler(inputs.job),
      clipping(inputs.options.clip, place, scaler),
      masks({.graph = inputs.graph,
             .job = inputs.job,
             .layout = layout,
             .shard_rank = inputs.groups.shard().rank(),
             .place = place,
             .seed = inputs.options.seed,
             .has_values = inputs.has_values}),
      staging(place),
      loaded_masks(layout.units.size()) {
  check_mesh();
  const std::vector<UnitState::Buffers> buffers = unit_buffers(lowered, layout);
  for (std::size_t u = 0; u < layout.units.size(); ++u) {
    units.emplace_back(layout.units[u], in.job.precision, buffers[u], runner);
  }
  add_load_runs();
  add_unit_runs(runner);
  add_fp8_gradient_runs(runner, layout, in.job.kernels);
  add_scaled_runs(runner, layout, in.job.kernels);
  add_step_runs();
  add_save_runs();
  runner.on_mark = [this](const program::Mark& mark) { this->mark(mark); };
  op_runs.observer = in.observer;
  optimizer_options = complete_options(in.options.optimizer, in.job.optimizer);
  facts.seed = in.options.seed;
  facts.rope_cos = &rope_cos;
  facts.rope_sin = &rope_sin;
}

void Trainer::State::check_mesh() const {
  const bool sharded = layout.shards > 1, grouped = slice_group_ranks(in.graph, in.job) > 0;
  if ((sharded && in.groups.shard().size() != layout.shards) ||
      (grouped && in.groups.reshard().size() != layout.reshard_ranks)) {
    throw InputError("the mesh does not match the ranks that were started");
  }
}

void Trainer::State::add_load_runs() {
  using program::Kernel;
  runner.on(Kernel::load_shard, [this](Operands& o) { load_shard(o); });
  runner.on(Kernel::load_states, [this](Operands& o) { unit_runs.load_states(o, in.states); });
  runner.on(Kernel::load_mask, [this](Operands& o) { loaded_masks[at_index(o.run().unit)] = o[0]; });
  runner.on(Kernel::load_scale, [this](Operands& o) {
    scaler.load({.scale = o[0], .growth_tracker = o[1], .found_inf = o[2]}, in.numbers);
    facts.gradient_scale = scaler.scale();
  });
  runner.on(Kernel::gather_own, [this](Operands& o) { unit_runs.gather_own(o); });
  runner.on(Kernel::rope_table, [this](Operands& o) { load_rope_table(o); });
  runner.on(Kernel::workspaces, [](Operands& o) { make_cublas_handle(o.has(1)); });
}

void Trainer::State::add_step_runs() {
  using program::Kernel;
  runner.on(Kernel::inputs, [this](Operands& o) { fill_inputs(o); });
  runner.on(Kernel::forward, [this](Operands& o) { op_runs.forward(o); });
  runner.on(Kernel::backward, [this](Operands& o) { op_runs.backward(o); });
  runner.on(Kernel::add_loss, [](Operands& o) { o[1].add_(o.view(0)); });
  runner.on(Kernel::mask, [this](Operands& o) { mask(o); });
  runner.on(Kernel::norm_begin, [this](Operands& o) {
    gradients_ready();
    clipping.begin(o);
  });
  runner.on(Kernel::norm_parts, [this](Operands& o) { clipping.add_parts(o); });
  runner.on(Kernel::norm_rest, [this](Operands& o) { clipping.add_rest(o); });
  runner.on(Kernel::scale, [this](Operands& o) { clipping.scale(o); });
  runner.on(Kernel::copy, [this](Operands& o) {
    if (sends_to_update(o.run(), in.job)) gradients_ready();
    copy_buffer(o);
  });
  runner.on(Kernel::update, [this](Operands& o) {
    gradients_ready();
    unit_runs.update(o, {.function = optimizer_step,
                         .options = optimizer_options,
                         .draws = draws_random_numbers(in.job.optimizer),
                         .seed = in.options.seed,
                         .step = facts.step,
                         .overflowed = lowered.found_inf >= 0 && runner.number(lowered.found_inf) != 0});
  });
  runner.on(Kernel::encode, [this](Operands& o) { unit_runs.encode(o); });
  runner.on(Kernel::update_scale, [this](Operands& /*o*/) { scaler.update(); });
}

void Trainer::State::add_save_runs() {
  using program::Kernel;
  runner.on(Kernel::save_states, [this](Operands& o) {
    const SnapshotContext context{.graph = in.graph,
                                  .optimizer = optimizer_named(in.job.optimizer),
                                  .shard_group = in.groups.shard(),
                                  .replicate_group = in.groups.replicate()};
    take_snapshot(context, units, o[0], *snapshot);
  });
  runner.on(Kernel::write_parameter, [this](Operands& o) { final_files->append(o.run().parameter, o.view(0), o[1]); });
}

void Trainer::State::save_full(FileCalls& files, const FinalFolders& folders) {
  const bool writes = in.groups.world().rank() == 0;
  if (writes) final_files = std::make_unique<FinalFiles>(files, folders, in.graph, layout);
  run_sections(program::Section::Kind::save_full, program::Section::Kind::save_full);
  if (writes) final_files->finish();
  final_files.reset();
}

void Trainer::State::load_shard(Operands& operands) {
  // Of a checkpoint each rank reads what it holds.
  const bool is_sent = in.job.load == Load::rank0 && in.states == nullptr;
  if (supply == nullptr) {
    const std::size_t last = operands.size() - 1;
    const at::Tensor* const shared = operands.has(last) ? &operands[last] : nullptr;
    supply = is_sent ? rank0_reads(in.weights,
                                   {.shard = in.groups.shard(), .replicate = in.groups.replicate(), .staging = shared})
                     : each_reads(in.weights, in.groups.shard());
    supply = quantizing_rows(std::move(supply), {in.weights, in.groups.shard(), shared, in.has_values, in.states});
  }
  unit_runs.load_shard(operands, *supply);
}

void Trainer::State::load_rope_table(Operands& operands) {
  const auto r = at_index(operands.run().parameter);
  const std::vector<float> frequencies = rope_frequencies(in.graph.ropes[r], in.graph.rope_dims[r]);
  std::vector<float> cos(static_cast<std::size_t>(in.job.sequence) * frequencies.size()), sin(cos.size());
  fill_rope_table(frequencies, in.job.sequence, cos.data(), sin.data());
  const auto table = [&](std::size_t operand, std::vector<float>& host) {
    const at::Tensor &flat = operands[operand], shaped = operands.view(operand);
    if (flat.defined()) flat.copy_(tensor_over(host.data(), flat.numel(), at::kFloat));
    return shaped;
  };
  rope_cos.push_back(table(0, cos));
  rope_sin.push_back(table(1, sin));
}

void Trainer::State::load() {
  run_sections(program::Section::Kind::load, program::Section::Kind::load);
  supply.reset();
  if (std::holds_alternative<GradientMaskFile>(in.job.gradient_mask)) masks.load(std::move(loaded_masks));
}

void Trainer::State::run_sections(program::Section::Kind first, program::Section::Kind last) {
  for (const program::Section& section : lowered.sections) {
    if (section.kind < first || section.kind > last) continue;
    for (std::int64_t time = 0; time < section.times; ++time) runner.run(section);
  }
  end_mark();
}

void Trainer::State::mark(const program::Mark& mark) {
  end_mark();
  phase = mark.phase;
  if (mark.is_step && mark.what == Do::begin) facts.micro_batch = next_micro_batch++;
  Meter::instance().enter(phase, static_cast<int>(facts.step));
  if (!mark.is_step || in.observer == nullptr) return;
  is_in_instruction = true;
  in.observer->instruction_begins({.what = mark.what,
                                   .segment = mark.segment,
                                   .unit = mark.unit,
                                   .micro_batch = static_cast<int>(facts.micro_batch)},
                                  phase);
}

void Trainer::State::end_mark() {
  if (std::exchange(is_in_instruction, false)) in.observer->instruction_ends();
}

/// Micro-batch m of data rank r in step s (from 0) starts at row ((s * accumulation + m) * ranks + r) * micro-batch.
std::int64_t Trainer::State::first_row(int rank, int micro_batch) const {
  const std::int64_t batch = (facts.step - 1) * in.job.accumulation + micro_batch;
  return (batch * data_ranks(in.job) + rank) * in.job.micro_batch;
}

std::int64_t Trainer::State::label_tokens_of_step() const {
  const std::int64_t rows = in.job.accumulation * data_ranks(in.job) * in.job.micro_batch;
  const std::int64_t first = (facts.step - 1) * rows;
  std::int64_t tokens = 0;
  for (std::int64_t row = first; row < first + rows; ++row) tokens += in.data.label_tokens(row);
  return tokens;
}

StepResult Trainer::State::run_step(std::int64_t step) {
  const auto start = std::chrono::steady_clock::now();
  if (in.observer != nullptr) in.observer->step_begins(step);
  facts.step = step;
  const std::int64_t label_tokens = label_tokens_of_step();
  if (label_tokens == 0) throw FaultError(fmt::format("step {}: no token of the batch has a label", step));
  facts.loss_scale = 1.0 / static_cast<double>(label_tokens);
  optimizer_options.learning_rate =
      learning_rate_at(in.options.optimizer.learning_rate, step, in.options.warmup, in.options.steps);
  gradients_are_ready = false;
  next_micro_batch = 0;
  run_sections(program::Section::Kind::first, program::Section::Kind::update);
  StepResult result;
  result.step = step;
  result.loss = runner.number(lowered.loss);
  result.gradient_norm = runner.number(lowered.gradient_norm);
  if (scaler.is_on()) {
    result.loss_scale = runner.number(lowered.loss_scale);
    result.skipped = runner.number(lowered.found_inf) != 0;
  }
  result.learning_rate = optimizer_options.learning_rate;
  result.tokens = in.job.accumulation * data_ranks(in.job) * in.job.micro_batch * in.job.sequence;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (in.has_values) check_values(result);
  if (in.observer != nullptr) in.observer->step_ends(result);
  return result;
}

/// A skipped step has left the parameters as they were, so a loss without a value does no harm yet. Gradients that
/// overflow at a scale of 2^-14 are not the scale's fault: fp16 no longer holds what they are made of.
void Trainer::State::check_values(const StepResult& result) const {
  constexpr double kLeastScale = 0x1p-14;
  if (result.skipped && scaler.adapts()) {
    if (result.loss_scale >= kLeastScale) return;
    throw FaultError(
        fmt::format("step {}: gradients overflow at a loss scale of {}: fp16 can't hold them; lower --lr or use "
                    "--precision bf16-mixed",
                    result.step, result.loss_scale));
  }
  if (!result.skipped && !std::isfinite(result.gradient_norm)) {
    throw FaultError(fmt::format("step {}: the norm of the gradients is {}; lower --lr, or look at the batch",
                                 result.step, result.gradient_norm));
  }
  if (std::isfinite(result.loss)) return;
  throw FaultError(fmt::format("step {}: the loss is {}; lower --lr or set --clip", result.step, result.loss));
}

void Trainer::State::fill_inputs(Operands& operands) {
  facts.first_global_row = first_row(in.groups.world().rank(), static_cast<int>(facts.micro_batch));
  const auto sequence = static_cast<std::size_t>(in.job.sequence);
  const auto fill = [&](std::span<std::int64_t> to_ids, std::span<std::int64_t> to_labels) {
    for (std::int64_t b = 0; b < in.job.micro_batch; ++b) {
      const auto offset = static_cast<std::size_t>(b) * sequence;
      in.data.row(facts.first_global_row + b, to_ids.subspan(offset, sequence), to_labels.subspan(offset, sequence));
    }
  };
  staging.fill(operands, fill);
  op_runs.on_value = nullptr;
  if (!in.dumps.logits || facts.step != 1) return;
  op_runs.on_value = [this](const Segment& s, const Value& v, const at::Tensor& t) { dump_logits(s, v, t); };
}

void Trainer::State::mask(Operands& operands) {
  std::vector<at::Tensor> gradients;
  for (std::size_t u = 0; u < units.size(); ++u) gradients.push_back(operands[u]);
  masks.apply(facts.step, gradients);
}

/// All contributions of the step are in the gradient shards, and masked, from here on.
void Trainer::State::gradients_ready() {
  if (std::exchange(gradients_are_ready, true)) return;
  if (facts.step == 0 || in.dumps.gradients_step != facts.step || in.dumps.directory.empty()) return;
  dump(kGradients, true, fmt::format("gradients-step{}.safetensors", facts.step),
       scaler.is_on() ? scaler.scale()->item<double>() : 1);
}

void Trainer::State::dump(PartOf part, bool trainable_only, const std::string& file, double divisor) {
  const DumpContext context{
      .graph = in.graph, .shard_group = in.groups.shard(), .writes = in.groups.world().rank() == 0, .divisor = divisor};
  dump_units(context, units, part, trainable_only, in.dumps.directory + "/" + file);
}

void Trainer::State::dump_logits(const Segment& segment, const Value& value, const at::Tensor& tensor) const {
  if (segment.role != SegmentRole::head || &value != &segment.values[at_index(segment.output)]) return;
  dump_tensor("logits", tensor,
              fmt::format("{}/logits-step{}-micro{}-rank{}.safetensors", in.dumps.directory, facts.step,
                          facts.micro_batch, in.groups.world().rank()));
}

Trainer::Trainer(const TrainInputs& inputs) : state_(std::make_unique<State>(inputs)) {}
Trainer::~Trainer() = default;
void Trainer::load() { state_->load(); }
StepResult Trainer::step(std::int64_t step) { return state_->run_step(step); }
void Trainer::snapshot(Snapshot& into) const {
  using Kind = program::Section::Kind;
  state_->snapshot = &into;
  state_->run_sections(Kind::save_sharded, Kind::save_sharded);
}
void Trainer::save_full(FileCalls& files, const FinalFolders& folders) const { state_->save_full(files, folders); }
std::vector<std::pair<std::string, double>> Trainer::numbers() const { return state_->scaler.numbers(); }
void Trainer::finish() {
  if (state_->in.dumps.parameters) state_->dump(kShard, false, "parameters.safetensors");
}

}  // namespace vramfit
