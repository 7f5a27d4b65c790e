#include "executor/trainer.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <span>
#include <utility>

#include "base/error.h"
#include "executor/checkpoint/full_torch.h"
#include "executor/checkpoint/snapshot_torch.h"
#include "executor/clipping_torch.h"
#include "executor/dump_torch.h"
#include "executor/gradient_mask_torch.h"
#include "executor/input_staging_torch.h"
#include "executor/learning_rate.h"
#include "executor/meter/cuda_meter.h"
#include "executor/meter/meter.h"
#include "executor/observe/observer.h"
#include "executor/rope_tables.h"
#include "executor/tape_torch.h"
#include "executor/tensor_torch.h"
#include "program/load_rows.h"
#include "program/ops/fp8.h"
#include "program/schedules/schedule.h"

namespace vramfit {

namespace {

std::size_t at_index(int index) { return static_cast<std::size_t>(index); }

at::Device place_of(const TrainInputs& inputs) {
  return inputs.device.kind == DeviceKind::cpu ? at::Device(at::kCPU)
                                               : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(inputs.card));
}

double read_scalar(const at::Tensor& tensor) { return tensor.item<double>(); }

}  // namespace

struct Trainer::State {
  explicit State(const TrainInputs& inputs);

  void load();
  void load_units();
  StepResult run_step(std::int64_t step);
  void check_values(const StepResult& result) const;
  void execute(const Instruction& instruction);
  void begin(int micro_batch);
  void sum_replicas(const std::vector<int>& bucket);
  void end();
  void wait_for_replicas();
  void gradients_ready();
  void clip();
  void update();
  void dump_logits(const Segment& segment, const Value& value, const at::Tensor& tensor) const;
  void dump(FlatOf flat, bool trainable_only, const std::string& file, double divisor = 1);

  std::int64_t first_row(int rank, int micro_batch) const;
  std::int64_t label_tokens_of_step() const;
  at::Tensor scalar(const char* label) const;
  at::Tensor table(const std::string& label, std::vector<float>& host, std::int64_t columns) const;

  TrainInputs in;
  at::Device place;
  UnitLayout layout;
  std::vector<UnitState> units;
  GradientMasks masks;
  TapeRunner tape;
  std::vector<Instruction> schedule;
  const OptimizerFunctions& optimizer;

  LossScaler scaler;
  Clipping clipping;
  InputStaging staging;
  at::Tensor loss_sum, ids, labels;
  std::vector<at::Tensor> rope_cos, rope_sin;
  std::vector<Pending> replica_sums;
  StepFacts facts;
  OptimizerOptions optimizer_options;
  bool gradients_are_ready = false;
};

Trainer::State::State(const TrainInputs& inputs)
    : in(inputs),
      place(place_of(inputs)),
      layout(lay_out_units(inputs.graph, inputs.job)),
      masks({.graph = inputs.graph,
             .job = inputs.job,
             .layout = layout,
             .units = units,
             .shard_rank = inputs.groups.shard().rank(),
             .place = place,
             .seed = inputs.options.seed,
             .has_values = inputs.has_values}),
      tape({inputs.graph, inputs.job, inputs.device, layout, units, place}),
      optimizer(optimizer_functions(inputs.job.optimizer, inputs.device.kind)),
      scaler(inputs.job, place),
      clipping(inputs.options.clip, inputs.device, place),
      staging(place, inputs.job.micro_batch * inputs.job.sequence) {
  const bool sharded = layout.shards > 1;
  const bool grouped = slice_group_ranks(in.graph, in.job) > 0;
  if ((sharded && in.groups.shard().size() != layout.shards) ||
      (grouped && in.groups.reshard().size() != layout.reshard_ranks)) {
    throw InputError("the mesh does not match the ranks that were started");
  }
  for (const Unit& unit : layout.units) {
    const UnitContext context{.graph = in.graph,
                              .precision = in.job.precision,
                              .layout = layout,
                              .shard_group = in.groups.shard(),
                              .reshard_group = in.groups.reshard(),
                              .device = place};
    units.emplace_back(context, unit);
  }
  std::vector<bool> has_backward;
  for (const SegmentTape& t : tape.tapes()) has_backward.push_back(t.has_backward);
  schedule = make_schedule({.job = in.job,
                            .graph = in.graph,
                            .layout = layout,
                            .segment_has_backward = has_backward,
                            .clip = in.options.clip > 0 || scaler.is_on()});
  tape.observer = in.observer;
  tape.on_loss = [this](const at::Tensor& loss) { loss_sum.add_(loss.view({1})); };
  optimizer_options = in.options.optimizer;
  facts.seed = in.options.seed;
  facts.rope_cos = &rope_cos;
  facts.rope_sin = &rope_sin;
}

at::Tensor Trainer::State::scalar(const char* label) const {
  at::Tensor tensor = allocate_tensor({1}, Dtype::f32, {place, Category::workspace, label});
  tensor.zero_();
  return tensor;
}

at::Tensor Trainer::State::table(const std::string& label, std::vector<float>& host, std::int64_t columns) const {
  at::Tensor tensor =
      allocate_tensor({in.job.sequence, columns}, in.job.precision.buffer, {place, Category::workspace, label});
  if (tensor.defined()) tensor.copy_(at::from_blob(host.data(), {in.job.sequence, columns}, at::kFloat));
  return tensor;
}

void Trainer::State::load_units() {
  // Of a checkpoint each rank reads what it holds.
  const bool is_sent = in.job.load == Load::rank0 && in.states == nullptr;
  const std::unique_ptr<RowSupply> rows = is_sent ? rank0_reads(in.weights, {.shard = in.groups.shard(),
                                                                             .replicate = in.groups.replicate(),
                                                                             .device = place,
                                                                             .staging = load_staging(layout)})
                                                  : each_reads(in.weights, in.groups.shard());
  for (UnitState& unit : units) {
    unit.load(*rows);
    if (in.states != nullptr && unit.step_count().defined()) unit.load_states(*in.states);
  }
}

void Trainer::State::load() {
  Meter::instance().enter(Phase::load, 0);
  load_units();
  masks.load();
  for (std::size_t r = 0; r < in.graph.ropes.size(); ++r) {
    const std::vector<float> frequencies = rope_frequencies(in.graph.ropes[r], in.graph.rope_dims[r]);
    const auto columns = static_cast<std::int64_t>(frequencies.size());
    std::vector<float> cos(static_cast<std::size_t>(in.job.sequence * columns)), sin(cos.size());
    fill_rope_table(frequencies, in.job.sequence, cos.data(), sin.data());
    rope_cos.push_back(table(fmt::format("rope {}: cos", r), cos, columns));
    rope_sin.push_back(table(fmt::format("rope {}: sin", r), sin, columns));
  }
  if (place.is_cuda()) {
    make_cublas_handle(uses_cublaslt(in.graph, in.job.precision, {in.job.micro_batch, in.job.sequence}));
  }
  loss_sum = scalar("loss sum");
  clipping.load();
  scaler.load(in.numbers);
  facts.gradient_scale = scaler.scale();
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
  loss_sum.zero_();
  Phase phase = Phase::forward;
  for (const Instruction& instruction : schedule) {
    phase = phase_of(instruction, in.graph, phase);
    Meter::instance().enter(phase, static_cast<int>(step));
    if (in.observer != nullptr) in.observer->instruction_begins(instruction, phase);
    execute(instruction);
    if (in.observer != nullptr) in.observer->instruction_ends();
  }
  if (const Pending sum = in.groups.world().all_reduce({loss_sum})) sum->wait();
  StepResult result;
  result.step = step;
  result.loss = read_scalar(loss_sum);
  result.gradient_norm = read_scalar(clipping.norm());
  const LossScaler::Report scaling = scaler.report();
  result.loss_scale = scaling.scale;
  result.skipped = scaling.skipped;
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

void Trainer::State::execute(const Instruction& i) {
  switch (i.what) {
    case Do::begin:
      return begin(i.micro_batch);
    case Do::issue:
      return units[at_index(i.unit)].issue();
    case Do::wait:
      return units[at_index(i.unit)].wait();
    case Do::forward:
      return tape.forward(i.segment, i.checkpointed, facts);
    case Do::release:
      return units[at_index(i.unit)].release();
    case Do::reshard:
      return units[at_index(i.unit)].reshard();
    case Do::recompute:
      return tape.recompute(i.segment, facts);
    case Do::backward:
      return tape.backward(i.segment, facts);
    case Do::accumulate:
      return units[at_index(i.unit)].accumulate();
    case Do::reduce:
      return units[at_index(i.unit)].reduce();
    case Do::finish:
      return units[at_index(i.unit)].finish();
    case Do::sum_replicas:
      return sum_replicas(i.bucket);
    case Do::end:
      return end();
    case Do::mask:
      wait_for_replicas();
      return masks.apply(facts.step);
    case Do::clip:
      return clip();
    case Do::step:
      return update();
  }
}

void Trainer::State::begin(int micro_batch) {
  facts.micro_batch = micro_batch;
  facts.first_global_row = first_row(in.groups.world().rank(), micro_batch);
  const auto sequence = static_cast<std::size_t>(in.job.sequence);
  const auto fill = [&](std::span<std::int64_t> to_ids, std::span<std::int64_t> to_labels) {
    for (std::int64_t b = 0; b < in.job.micro_batch; ++b) {
      const auto offset = static_cast<std::size_t>(b) * sequence;
      in.data.row(facts.first_global_row + b, to_ids.subspan(offset, sequence), to_labels.subspan(offset, sequence));
    }
  };
  InputStaging::Inputs inputs = staging.next(fill);
  ids = std::move(inputs.ids);
  labels = std::move(inputs.labels);
  tape.set_inputs(ids, labels);
  tape.on_value = nullptr;
  if (!in.dumps.logits || facts.step != 1) return;
  tape.on_value = [this](const Segment& s, const Value& v, const at::Tensor& t) { dump_logits(s, v, t); };
}

void Trainer::State::sum_replicas(const std::vector<int>& bucket) {
  std::vector<at::Tensor> shards;
  for (const int unit : bucket) shards.push_back(units[at_index(unit)].gradient_shard());
  if (Pending sum = in.groups.replicate().all_reduce(std::move(shards))) replica_sums.push_back(std::move(sum));
}

void Trainer::State::end() {
  tape.set_inputs({}, {});
  ids.reset();
  labels.reset();
}

void Trainer::State::wait_for_replicas() {
  for (const Pending& sum : replica_sums) sum->wait();
  replica_sums.clear();
}

/// All contributions of the step are in the gradient shards from here on.
void Trainer::State::gradients_ready() {
  if (std::exchange(gradients_are_ready, true)) return;
  wait_for_replicas();
  if (in.dumps.gradients_step != facts.step || in.dumps.directory.empty()) return;
  dump(&UnitState::gradient_shard, true, fmt::format("gradients-step{}.safetensors", facts.step),
       scaler.is_on() ? read_scalar(*scaler.scale()) : 1);
}

void Trainer::State::clip() {
  gradients_ready();
  clipping.measure(units, layout.shards > 1 ? &in.groups.shard() : nullptr, scaler);
}

void Trainer::State::update() {
  gradients_ready();
  const bool divides = in.options.clip > 0 || scaler.is_on();
  const GradientFactors factors{.divisor = divides ? &clipping.divisor() : nullptr, .found_inf = scaler.found_inf()};
  for (UnitState& unit : units) unit.step(optimizer, optimizer_options, factors);
  scaler.update();
}

void Trainer::State::dump(FlatOf flat, bool trainable_only, const std::string& file, double divisor) {
  const DumpContext context{
      .graph = in.graph, .shard_group = in.groups.shard(), .writes = in.groups.world().rank() == 0, .divisor = divisor};
  dump_units(context, units, flat, trainable_only, in.dumps.directory + "/" + file);
}

void Trainer::State::dump_logits(const Segment& segment, const Value& value, const at::Tensor& tensor) const {
  if (segment.role != SegmentRole::head || &value != &segment.values[at_index(segment.output)]) return;
  const LabelScope scope(Category::temporaries, "dump");
  const std::string file = fmt::format("{}/logits-step{}-micro{}-rank{}.safetensors", in.dumps.directory, facts.step,
                                       facts.micro_batch, in.groups.world().rank());
  SafetensorsWriter writer(file, {{"logits", tensor.sizes().vec()}});
  writer.append(tensor);
  writer.close();
}

Trainer::Trainer(const TrainInputs& inputs) : state_(std::make_unique<State>(inputs)) {}
Trainer::~Trainer() = default;
void Trainer::load() { state_->load(); }
StepResult Trainer::step(std::int64_t step) { return state_->run_step(step); }
void Trainer::snapshot(Snapshot& into) const {
  const SnapshotContext context{.graph = state_->in.graph,
                                .shard_group = state_->in.groups.shard(),
                                .replicate_group = state_->in.groups.replicate()};
  take_snapshot(context, state_->units, into);
}
void Trainer::save_full(FileCalls& files, const std::string& directory, const std::string& config_json) const {
  const FullCheckpoint full{.graph = state_->in.graph,
                            .shard_group = state_->in.groups.shard(),
                            .writes = state_->in.groups.world().rank() == 0,
                            .directory = directory,
                            .config_json = config_json};
  vramfit::save_full(files, full, state_->units);
}
std::vector<std::pair<std::string, double>> Trainer::numbers() const { return state_->scaler.numbers(); }
void Trainer::finish() {
  if (state_->in.dumps.parameters) state_->dump(&UnitState::shard, false, "parameters.safetensors");
}

}  // namespace vramfit
