#include "program/count.h"

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_map>

#include "program/count_unit.h"
#include "program/counted_blocks.h"
#include "program/gradient_mask.h"
#include "program/load_rows.h"
#include "program/ops/fp8.h"
#include "program/pytorch/count_eager.h"
#include "program/schedules/schedule.h"
#include "program/tape.h"
#include "program/units_layout.h"

namespace vramfit {

namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

constexpr int kNoLabel = -1;

/// What is held of one segment while a micro-batch passes through it.
struct SegmentState {
  std::vector<Block> values, gradients;
};

class Counter {
 public:
  Counter(const Graph& graph, const Job& job, const Device& device, const CountOptions& options)
      : graph_(graph),
        job_(abbreviated(job, options)),
        middle_passes_(options.abbreviate ? job.accumulation - 2 : 0),
        layout_(lay_out_units(graph, job)),
        shared_{graph_, job_.precision, layout_, blocks_},
        mask_(job_, layout_, device, blocks_),
        shape_{job.micro_batch, job.sequence},
        options_(options),
        device_(device),
        is_cuda_(device.kind == DeviceKind::cuda) {
    const TapeInputs inputs{.graph = graph,
                            .precision = job_.precision,
                            .device = device,
                            .attention = job.attention,
                            .deterministic = job.deterministic,
                            .shape = shape_,
                            .trainable = trainable_parameters(graph, job)};
    tapes_ = make_shared_tapes(inputs);
    for (const auto& tape : tapes_) segment_has_backward_.push_back(tape->has_backward);
    segments_.resize(graph.segments.size());
    temporary_labels_.resize(graph.segments.size());
    for (const Unit& unit : layout_.units) units_.emplace_back(shared_, unit);
    for (std::size_t s = 0; s < graph.segments.size(); ++s) {
      segments_[s].values.resize(graph.segments[s].values.size());
      segments_[s].gradients.resize(graph.segments[s].values.size());
      value_labels_.emplace_back(graph.segments[s].values.size(), kNoLabel);
      gradient_labels_.emplace_back(graph.segments[s].values.size(), kNoLabel);
    }
  }

  Ledger run() {
    const std::vector<Instruction> schedule = make_schedule({.job = job_,
                                                             .graph = graph_,
                                                             .layout = layout_,
                                                             .segment_has_backward = segment_has_backward_,
                                                             .clip = options_.clip || scales_loss(job_)});
    blocks_.writer().set_phase(Phase::load, 0);
    load();
    for (int step = 1; step <= options_.steps; ++step) {
      const bool stands_for_all = options_.abbreviate && step == options_.steps && step >= 2;
      if (stands_for_all) blocks_.writer().begin_repeat(kForever);
      run_step(schedule, step);
      if (stands_for_all) blocks_.writer().end_repeat();
    }
    return blocks_.take();
  }

 private:
  /// Micro-batches between the second and the last allocate as the second does.
  static Job abbreviated(Job job, const CountOptions& options) {
    if (options.abbreviate) job.accumulation = std::min<std::int64_t>(job.accumulation, 3);
    return job;
  }

  void run_step(const std::vector<Instruction>& schedule, int step) {
    Phase phase = Phase::forward;
    for (const Instruction& instruction : schedule) {
      phase = phase_of(instruction, graph_, phase);
      blocks_.writer().set_phase(phase, step);
      if (instruction.what == Do::begin && middle_passes_ > 1) {
        if (instruction.micro_batch == 1) blocks_.writer().begin_repeat(middle_passes_);
        if (instruction.micro_batch == 2) blocks_.writer().end_repeat();
      }
      execute(instruction);
    }
  }

  void load_units() {
    const Bytes bytes = job_.load == Load::rank0 ? load_staging(layout_) : Bytes{0};
    const Block staging = blocks_.allocate(bytes.n, Dtype::u8, Category::communication, "load: rows of all ranks");
    for (UnitCounter& unit : units_) unit.load();
  }

  void load() {
    load_units();
    mask_.load();
    for (std::size_t r = 0; r < graph_.ropes.size(); ++r) {
      const std::int64_t elements = checked_mul(shape_.sequence, graph_.rope_dims[r] / 2);
      for (const char* what : {": cos", ": sin"}) {
        workspace_.push_back(
            blocks_.allocate(elements, job_.precision.buffer, Category::workspace, "rope " + std::to_string(r) + what));
      }
    }
    make_workspaces();
  }

  void make_workspaces() {
    const auto make = [&](const char* what, Bytes bytes) {
      workspace_.push_back(blocks_.allocate(bytes.n, Dtype::u8, Category::workspace, what));
    };
    make("cublas workspace", cublas_workspace(device_));
    if (is_cuda_ && uses_cublaslt(graph_, job_.precision, shape_)) make("cublasLt workspace", kCublasLtWorkspace);
    for (const char* what : {"loss sum", "gradient norm", "clip scale"}) make(what, Bytes{4});
    if (is_cuda_) make("norm part", Bytes{4});
    if (!scales_loss(job_)) return;
    for (const char* what : {"loss scale", "growth tracker", "found inf"}) make(what, Bytes{4});
  }

  void execute(const Instruction& i) {
    switch (i.what) {
      case Do::begin:
        for (const char* what : {"inputs: ids", "inputs: labels"}) {
          inputs_.push_back(
              blocks_.allocate(checked_mul(shape_.batch, shape_.sequence), Dtype::i64, Category::activations, what));
        }
        return;
      case Do::issue:
      case Do::wait:
        return units_[at(i.unit)].gather();
      case Do::release:
        units_[at(i.unit)].release();
        return;
      case Do::reshard:
        return units_[at(i.unit)].reshard();
      case Do::forward:
        return forward(i);
      case Do::recompute:
        return run_tape(i.segment, tapes_[at(i.segment)]->recompute);
      case Do::backward:
        return backward(i.segment);
      case Do::accumulate:
        return units_[at(i.unit)].accumulate();
      case Do::reduce:
        return units_[at(i.unit)].reduce();
      case Do::finish:
        return units_[at(i.unit)].finish();
      case Do::sum_replicas:
        return;  // in place
      case Do::end:
        inputs_.clear();
        return;
      case Do::mask:
        return mask_.apply();
      case Do::clip:
        return clip();
      case Do::step:
        for (UnitCounter& unit : units_) unit.step();
        return;
    }
  }

  /// The norm of the gradients, part by part of each unit's shard.
  void clip() {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (!is_cuda_ || !units_[u].has_gradient_shard()) continue;
      const std::int64_t elements = layout_.units[u].trainable_elements;
      // Whole parts are alike; the last may be shorter.
      const std::int64_t whole = elements / kNormPart;
      for (std::int64_t first = options_.abbreviate && whole > 1 ? (whole - 1) * kNormPart : 0; first < elements;
           first += kNormPart) {
        const SumScratch scratch = sum_scratch(std::min(kNormPart, elements - first), device_);
        const auto temporary = [&](Bytes bytes, const char* what) {
          return blocks_.allocate(bytes.n, Dtype::u8, Category::temporaries, what);
        };
        const Block partials = temporary(scratch.partials, "clip: partials");
        const Block counter = temporary(scratch.counter, "clip: counter");
      }
    }
  }

  void forward(const Instruction& i) {
    const SegmentTape& tape = *tapes_[at(i.segment)];
    run_tape(i.segment, i.checkpointed ? tape.forward_checkpointed : tape.forward);
    if (at(i.segment) + 1 == segments_.size()) return;
    SegmentState& state = segments_[at(i.segment)];
    Block& output = state.values[at(graph_.segments[at(i.segment)].output)];
    segments_[at(i.segment) + 1].values[0] = output;
    if (i.checkpointed || !tape.output_is_saved) output.reset();
  }

  void backward(int s) {
    const Segment& segment = graph_.segments[at(s)];
    SegmentState& state = segments_[at(s)];
    if (at(s) + 1 < segments_.size()) {
      state.gradients[at(segment.output)] = std::move(segments_[at(s) + 1].gradients[0]);
    }
    run_tape(s, tapes_[at(s)]->backward);
  }

  void run_tape(int s, const std::vector<TapeAction>& actions) {
    SegmentState& state = segments_[at(s)];
    for (const TapeAction& action : actions) {
      switch (action.what) {
        case TapeAction::Do::run:
          run_op(s, action.op);
          break;
        case TapeAction::Do::backward:
          run_backward(s, action);
          break;
        case TapeAction::Do::drop_value:
          state.values[at(action.value)].reset();
          break;
        case TapeAction::Do::drop_gradient:
          state.gradients[at(action.value)].reset();
          break;
      }
    }
  }

  static Category category_of(const Segment& segment, int value) {
    return in_loss_region(segment, value) ? Category::logits_and_loss : Category::activations;
  }

  Block allocate_value(int s, int value, bool gradient) {
    const Segment& segment = graph_.segments[at(s)];
    const Value& v = segment.values[at(value)];
    int& label = (gradient ? gradient_labels_ : value_labels_)[at(s)][at(value)];
    if (label == kNoLabel)
      label = blocks_.writer().add_label(segment.name + "." + v.name + (gradient ? ": gradient" : ""));
    return blocks_.allocate(element_count(v, shape_), value_dtype(v, job_.precision), category_of(segment, value),
                            label);
  }

  /// Rules, and so their steps, are shared by segments that are alike.
  int temporary_label(int s, const Op& op, const Step& step) {
    const auto [entry, is_new] = temporary_labels_[at(s)].try_emplace(&step, kNoLabel);
    if (is_new) {
      entry->second = blocks_.writer().label(graph_.segments[at(s)].name + "." + op.name + ": " + step.name);
    }
    return entry->second;
  }

  /// Temporaries of a kernel, and the outputs or gradients that it allocates itself.
  void run_steps(int s, const Op& op, const std::vector<Step>& steps, const TapeAction* backward_action) {
    SegmentState& state = segments_[at(s)];
    std::vector<std::pair<const std::string*, Block>> temporaries;
    for (const Step& step : steps) {
      switch (step.what) {
        case Step::What::temporary:
          temporaries.emplace_back(&step.name, blocks_.allocate(step.bytes.n, Dtype::u8, Category::temporaries,
                                                                temporary_label(s, op, step)));
          break;
        case Step::What::release:
          std::erase_if(temporaries, [&](const auto& t) { return *t.first == step.name; });
          break;
        case Step::What::output:
          state.values[at(op.outputs[at(step.index)])] = allocate_value(s, op.outputs[at(step.index)], false);
          break;
        case Step::What::input_gradient:
          if (backward_action->input_gradients[at(step.index)].mode == GradientTarget::Mode::fresh) {
            state.gradients[at(op.inputs[at(step.index)])] = allocate_value(s, op.inputs[at(step.index)], true);
          }
          break;
        case Step::What::parameter_gradient:
          break;
      }
    }
    for (auto& temporary : temporaries) temporary.second.reset();
  }

  void run_op(int s, int index) {
    const Op& op = graph_.segments[at(s)].ops[at(index)];
    const Rule& rule = tapes_[at(s)]->rules[at(index)];
    SegmentState& state = segments_[at(s)];
    std::size_t first = 0;
    if (rule.in_place_input >= 0) {
      state.values[at(op.outputs[0])] = std::move(state.values[at(op.inputs[at(rule.in_place_input)])]);
      first = 1;
    }
    if (!rule.outputs_inside) {
      for (std::size_t o = first; o < op.outputs.size(); ++o) {
        state.values[at(op.outputs[o])] = allocate_value(s, op.outputs[o], false);
      }
    }
    run_steps(s, op, rule.forward, nullptr);
  }

  void run_backward(int s, const TapeAction& action) {
    using Mode = GradientTarget::Mode;
    const Op& op = graph_.segments[at(s)].ops[at(action.op)];
    const Rule& rule = tapes_[at(s)]->rules[at(action.op)];
    SegmentState& state = segments_[at(s)];
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const GradientTarget& target = action.input_gradients[i];
      Block& gradient = state.gradients[at(op.inputs[i])];
      if (target.mode == Mode::fresh && !rule.gradients_inside) gradient = allocate_value(s, op.inputs[i], true);
      if (target.mode == Mode::take_output_gradient) gradient = state.gradients[at(target.value)];
      if (target.mode == Mode::take_saved) gradient = state.values[at(target.value)];
    }
    for (std::size_t p = 0; p < op.parameters.size(); ++p) {
      if (!action.needs.parameters[p]) continue;
      const int parameter = op.parameters[p].parameter;
      units_[at(layout_.unit_of_parameter[at(parameter)])].make_gradient(op.kind, parameter);
    }
    run_steps(s, op, rule.backward, &action);
  }

  const Graph& graph_;
  Job job_;
  std::int64_t middle_passes_;  // that micro-batch 1 stands for
  UnitLayout layout_;
  CountedBlocks blocks_;  // outlives what it handed out
  CountedUnits shared_;
  MaskCounter mask_;
  BatchShape shape_;
  CountOptions options_;
  const Device& device_;
  bool is_cuda_;
  std::vector<std::shared_ptr<const SegmentTape>> tapes_;
  std::vector<bool> segment_has_backward_;
  std::vector<std::vector<int>> value_labels_, gradient_labels_;
  std::vector<std::unordered_map<const Step*, int>> temporary_labels_;  // by segment
  std::vector<SegmentState> segments_;
  std::vector<UnitCounter> units_;
  std::vector<Block> workspace_, inputs_;

 public:
  ~Counter() = default;
  Counter(const Counter&) = delete;
  Counter& operator=(const Counter&) = delete;
  Counter(Counter&&) = delete;
  Counter& operator=(Counter&&) = delete;
};

}  // namespace

Ledger count(const Graph& graph, const Job& job, const Device& device, const Coords& coords,
             const CountOptions& options) {
  if (job.runtime == Runtime::pytorch_fsdp2) return eager::count_eager(graph, job, device, options);
  Job counted = job;
  // Shards are padded to equal sizes, so ranks of this runtime allocate alike, but for what rank 0 reads for the
  // others.
  if (coords != Coords{}) counted.load = Load::each;
  return Counter(graph, counted, device, options).run();
}

}  // namespace vramfit
