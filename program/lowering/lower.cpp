#include "program/lowering/lower.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "program/lowering/calls.h"
#include "program/lowering/save.h"
#include "program/ops/fp8.h"
#include "program/schedules/schedule.h"
#include "program/stages/gradient_mask.h"
#include "program/stages/load_rows.h"

namespace vramfit::program {

namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

constexpr std::size_t kInstructionsOfOne = 4;  // of the schedule, about

/// Micro-batches between the second and the last are as the second.
Job with_one_middle(Job job) {
  job.accumulation = std::min<std::int64_t>(job.accumulation, 3);
  return job;
}

class Lowering {
 public:
  explicit Lowering(const LowerInputs& inputs)
      : in_(inputs),
        job_(with_one_middle(inputs.job)),
        own_layout_(inputs.layout == nullptr ? lay_out_units(inputs.graph, inputs.job) : UnitLayout{}),
        layout_(inputs.layout == nullptr ? own_layout_ : *inputs.layout),
        shape_{job_.micro_batch, job_.sequence},
        is_cuda_(inputs.device.kind == DeviceKind::cuda),
        tapes_(inputs.tapes == nullptr ? make_shared_tapes(tape_inputs(inputs.graph, job_, inputs.device))
                                       : *inputs.tapes),
        labels_(inputs.labels),
        units_inputs_{inputs.graph,       job_.precision, layout_, optimizer_named(job_.optimizer),
                      inputs.device.kind, writer_,        labels_, tokens_},
        calls_({inputs.graph, job_.precision, layout_, shape_, tapes_, units_, writer_, labels_, loss_}) {
    units_.reserve(layout_.units.size());
    for (std::size_t u = 0; u < layout_.units.size(); ++u) units_.emplace_back(units_inputs_, static_cast<int>(u));
    for (const Segment& segment : inputs.graph.segments) {
      segments_.emplace_back();
      segments_.back().values.resize(segment.values.size());
      segments_.back().gradients.resize(segment.values.size());
    }
  }

  Program lower() {
    begin_section(Section::Kind::load);
    load();
    std::vector<bool> has_backward;
    for (const auto& tape : tapes_) has_backward.push_back(tape->has_backward);
    const std::vector<vramfit::Instruction> schedule = make_schedule({.job = job_,
                                                                      .graph = in_.graph,
                                                                      .layout = layout_,
                                                                      .segment_has_backward = has_backward,
                                                                      .clip = in_.run.clip || scales_loss(job_)});
    phase_ = Phase::forward;
    writer_.code().instructions.reserve(kInstructionsOfOne * schedule.size());
    for (const vramfit::Instruction& instruction : schedule) lower(instruction);
    for (const Section::Kind kind : save_->kinds()) {
      begin_section(kind);
      save_->save(kind);
    }
    sections_.back().end = writer_.code().instructions.size();
    writer_.be_quiet(true);  // what load made lives on
    Program program{.labels = {},
                    .segments = {},
                    .outputs = {},
                    .main = std::move(writer_.code()),
                    .blocks = calls_.take(),
                    .sections = std::move(sections_),
                    .groups = groups_of(job_.mesh, layout_.reshard_ranks),
                    .tokens = tokens_,
                    .loss = loss_.buffer(),
                    .gradient_norm = norm_.buffer()};
    program.labels = labels_.take();
    for (const Segment& segment : in_.graph.segments) {
      program.segments.push_back(segment.name);
      program.outputs.push_back(segment.output);
    }
    return program;
  }

 private:
  using Do = vramfit::Do;

  void begin_section(Section::Kind kind) {
    const std::size_t position = writer_.code().instructions.size();
    if (!sections_.empty()) sections_.back().end = position;
    sections_.push_back({.kind = kind, .begin = position, .end = position, .times = 1});
    if (kind == Section::Kind::middle) sections_.back().times = in_.job.accumulation - 2;
  }

  Held workspace(std::string_view label, Bytes bytes, Dtype dtype = Dtype::f32) {
    return writer_.allocate({.bytes = bytes,
                             .label = labels_.number(label),
                             .segment = -1,
                             .category = Category::workspace,
                             .dtype = dtype});
  }

  Held temporary(const char* label, Bytes bytes) {
    return writer_.allocate(
        {.bytes = bytes, .label = labels_.number(label), .segment = -1, .category = Category::temporaries});
  }

  void load_units() {
    const bool stages = job_.load == Load::rank0 && !in_.run.resumes && in_.coords == Coords{};
    const Held staging = writer_.allocate({.bytes = stages ? load_staging(layout_) : Bytes{0},
                                           .label = labels_.number("load: rows of all ranks"),
                                           .segment = -1,
                                           .category = Category::communication});
    for (UnitLowering& unit : units_) unit.load(staging);
  }

  void load_masks() {
    if (job_.gradient_mask != GradientMask::file) return;
    for (std::size_t u = 0; u < layout_.units.size(); ++u) {
      const Unit& unit = layout_.units[u];
      masks_.push_back(writer_.allocate({.bytes = unit.trainable_elements * dtype_bytes(Dtype::u8),
                                         .label = labels_.number({unit.name, ": gradient mask"}),
                                         .segment = -1,
                                         .category = Category::optimizer_state}));
      writer_.run({.kernel = Kernel::load_mask, .unit = static_cast<int>(u)}, {{&masks_.back(), How::write}});
    }
  }

  void load_ropes() {
    for (std::size_t r = 0; r < in_.graph.ropes.size(); ++r) {
      const std::int64_t elements = checked_mul(shape_.sequence, in_.graph.rope_dims[r] / 2);
      const auto table = [&](const char* what) {
        const Dtype dtype = job_.precision.buffer;
        return workspace("rope " + std::to_string(r) + what, elements * dtype_bytes(dtype), dtype);
      };
      const Held cos = table(": cos"), sin = table(": sin");
      writer_.run({.kernel = Kernel::rope_table, .parameter = static_cast<int>(r)},
                  {{&cos, How::write}, {&sin, How::write}});
      workspace_.insert(workspace_.end(), {cos, sin});
    }
  }

  void load_workspaces() {
    if (!is_cuda_) return;
    writer_.begin_inside();
    const Held cublas = workspace("cublas workspace", cublas_workspace(in_.device), Dtype::u8);
    const bool uses_lt = uses_cublaslt(in_.graph, job_.precision, shape_);
    const Held lt = workspace("cublasLt workspace", uses_lt ? kCublasLtWorkspace : Bytes{0}, Dtype::u8);
    // The only one of PyTorch's own: results of a step are read one after the other.
    const Held scalar = pinned("scalar that the host reads", Bytes{4}, Dtype::f32);
    const Range inside = writer_.end_inside();
    writer_.run({.kernel = Kernel::workspaces, .inside = inside}, {{&cublas, How::write}, {&lt, How::write}});
    workspace_.insert(workspace_.end(), {cublas, lt, scalar});
  }

  void load_numbers() {
    loss_ = workspace("loss sum", Bytes{4});
    norm_ = workspace("gradient norm", Bytes{4});
    divisor_ = workspace("clip scale", Bytes{4});
    if (is_cuda_) norm_part_ = workspace("norm part", Bytes{4});
    writer_.run({.kernel = Kernel::zero},
                {{&loss_, How::write}, {&norm_, How::write}, {&divisor_, How::write}, {&norm_part_, How::write}});
    if (!scales_loss(job_)) return;
    scale_ = workspace("loss scale", Bytes{4});
    growth_ = workspace("growth tracker", Bytes{4}, Dtype::i32);
    found_inf_ = workspace("found inf", Bytes{4});
    writer_.run({.kernel = Kernel::load_scale},
                {{&scale_, How::write}, {&growth_, How::write}, {&found_inf_, How::write}});
  }

  Held pinned(const char* label, Bytes bytes, Dtype dtype) {
    return writer_.allocate({.bytes = is_cuda_ ? bytes : Bytes{0},
                             .label = labels_.number(label),
                             .segment = -1,
                             .category = Category::activations,
                             .dtype = dtype,
                             .space = Space::pinned});
  }

  Bytes bytes_of_ids() const { return checked_mul(shape_.batch, shape_.sequence) * dtype_bytes(Dtype::i64); }

  void load() {
    writer_.write(Mark{});
    load_units();
    load_masks();
    load_ropes();
    load_workspaces();
    load_numbers();
    pinned_ = {pinned("inputs: ids, pinned", bytes_of_ids(), Dtype::i64),
               pinned("inputs: labels, pinned", bytes_of_ids(), Dtype::i64)};
    save_.emplace(SaveInputs{in_, layout_, writer_, labels_, tokens_});
  }

  void lower(const vramfit::Instruction& i) {
    begin_section_of(i);
    phase_ = phase_of(i, in_.graph, phase_);
    writer_.write(Mark{.phase = phase_, .is_step = true, .what = i.what, .segment = i.segment, .unit = i.unit});
    switch (i.what) {
      case Do::begin:
        return begin(i.micro_batch);
      case Do::issue:
        return unit(i).issue();
      case Do::wait:
        return unit(i).wait();
      case Do::release:
        return unit(i).release();
      case Do::reshard:
        return unit(i).reshard();
      case Do::forward:
        return forward(i);
      case Do::recompute:
        return call(i.segment, tapes_[at(i.segment)]->recompute);
      case Do::backward:
        return backward(i.segment);
      case Do::accumulate:
        return unit(i).accumulate();
      case Do::reduce:
        return unit(i).reduce();
      case Do::finish:
        return unit(i).finish();
      case Do::sum_replicas:
        return sum_replicas(i.bucket);
      case Do::end:
        return end();
      case Do::mask:
        return mask();
      case Do::clip:
        return clip();
      case Do::step:
        return update();
    }
  }

  void begin_section_of(const vramfit::Instruction& i) {
    const bool updates = i.what == Do::mask || i.what == Do::clip || i.what == Do::step;
    if (updates && sections_.back().kind != Section::Kind::update) begin_section(Section::Kind::update);
    if (i.what != Do::begin) return;
    const bool is_last = i.micro_batch + 1 == job_.accumulation;
    if (is_last) return begin_section(Section::Kind::last);
    begin_section(i.micro_batch == 0 ? Section::Kind::first : Section::Kind::middle);
  }

  UnitLowering& unit(const vramfit::Instruction& i) { return units_[at(i.unit)]; }

  void begin(int micro_batch) {
    if (micro_batch == 0) writer_.run({.kernel = Kernel::zero}, {{&loss_, How::write}});
    for (const char* what : {"inputs: ids", "inputs: labels"}) {
      inputs_.push_back(writer_.allocate({.bytes = bytes_of_ids(),
                                          .label = labels_.number(what),
                                          .segment = -1,
                                          .category = Category::activations,
                                          .dtype = Dtype::i64}));
    }
    writer_.run(
        {.kernel = Kernel::inputs},
        {{&inputs_[0], How::write}, {&inputs_[1], How::write}, {&pinned_[0], How::write}, {&pinned_[1], How::write}},
        Work{.launches = 2, .bytes = 0});  // copied from the host
    set_inputs(inputs_[0], inputs_[1]);
  }

  void end() {
    set_inputs({}, {});
    inputs_.clear();
  }

  void set_inputs(const Held& ids, const Held& labels) {
    segments_.front().values[0] = ids;
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      const int value = in_.graph.segments[s].labels;
      if (value >= 0) segments_[s].values[at(value)] = labels;
    }
  }

  void call(int segment, const std::vector<TapeAction>& actions) {
    calls_.call(segment, actions, segments_[at(segment)]);
  }

  void forward(const vramfit::Instruction& i) {
    const SegmentTape& tape = *tapes_[at(i.segment)];
    call(i.segment, i.checkpointed ? tape.forward_checkpointed : tape.forward);
    if (at(i.segment) + 1 == segments_.size()) return;
    Held& output = segments_[at(i.segment)].values[at(in_.graph.segments[at(i.segment)].output)];
    segments_[at(i.segment) + 1].values[0] = output;
    if (i.checkpointed || !tape.output_is_saved) output.reset();
  }

  void backward(int s) {
    if (at(s) + 1 < segments_.size()) {
      segments_[at(s)].gradients[at(in_.graph.segments[at(s)].output)] = std::move(segments_[at(s) + 1].gradients[0]);
    }
    call(s, tapes_[at(s)]->backward);
  }

  void sum_replicas(const std::vector<int>& bucket) {
    Writer::Operands shards;
    for (const int unit : bucket) shards.emplace_back(&units_[at(unit)].gradient_shard(), How::add);
    replica_sums_.push_back(tokens_);
    writer_.start({.collective = Collective::all_reduce, .axis = Axis::replicate, .accesses = {}, .token = tokens_++},
                  shards);
  }

  void wait_for_replicas() {
    for (const int token : replica_sums_) writer_.write(Wait{token});
    replica_sums_.clear();
  }

  void mask() {
    wait_for_replicas();
    Writer::Operands operands;
    for (const UnitLowering& unit : units_) operands.emplace_back(&unit.gradient_shard(), How::add);
    for (const Held& held : masks_) operands.emplace_back(&held, How::read);
    writer_.begin_inside();
    if (job_.gradient_mask == GradientMask::keep && is_cuda_) {
      const Bytes bytes = mask_part(layout_) * dtype_bytes(Dtype::i64);
      const Held words = temporary("mask: words", bytes);
      const Held bits = temporary("mask: bits", bytes);
    }
    const Range inside = writer_.end_inside();
    writer_.run({.kernel = Kernel::mask, .inside = inside}, operands, mask_work(job_, layout_));
  }

  /// Calls of `kernel` that add the squares of `elements` of a unit's gradient shard each.
  void add_squares(Kernel kernel, int unit, std::int64_t elements, std::int64_t times) {
    if (elements == 0 || times == 0) return;
    writer_.begin_inside();
    if (is_cuda_) {
      const SumScratch scratch = sum_scratch(elements, in_.device);
      const Held partials = temporary("clip: partials", scratch.partials);
      const Held counter = temporary("clip: counter", scratch.counter);
    }
    const Range inside = writer_.end_inside();
    const Bytes bytes = elements * dtype_bytes(layout_.units[at(unit)].gradient);
    writer_.run({.kernel = kernel, .unit = unit, .inside = inside, .times = times},
                {{&units_[at(unit)].gradient_shard(), How::read}, {&norm_, How::add}, {&norm_part_, How::write}},
                Work{.launches = 2, .bytes = static_cast<double>(bytes.n)});
  }

  void clip() {
    wait_for_replicas();
    writer_.run({.kernel = Kernel::norm_begin}, {{&norm_, How::write}});
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (!units_[u].gradient_shard()) continue;
      const std::int64_t elements = layout_.units[u].trainable_elements, part = is_cuda_ ? kNormPart : elements + 1;
      add_squares(Kernel::norm_parts, static_cast<int>(u), part, elements / part);
      add_squares(Kernel::norm_rest, static_cast<int>(u), elements % part, 1);
    }
    if (layout_.shards > 1) {
      const int token = tokens_++;
      writer_.start({.collective = Collective::all_reduce, .axis = Axis::shard, .accesses = {}, .token = token},
                    {{&norm_, How::add}});
      writer_.write(Wait{token});
    }
    writer_.run({.kernel = Kernel::scale},
                {{&norm_, How::add}, {&divisor_, How::write}, {&scale_, How::read}, {&found_inf_, How::write}},
                Work{.launches = 6, .bytes = 12});
  }

  void update() {
    wait_for_replicas();
    const bool divides = in_.run.clip || scales_loss(job_);
    for (UnitLowering& unit : units_) unit.update(divides ? divisor_ : Held{}, found_inf_);
    if (loss_scaling(job_) != LossScale::Kind::dynamic) return;
    writer_.run({.kernel = Kernel::update_scale},
                {{&scale_, How::add}, {&growth_, How::add}, {&found_inf_, How::read}});
  }

  const LowerInputs& in_;
  Job job_;
  UnitLayout own_layout_;
  const UnitLayout& layout_;
  BatchShape shape_;
  bool is_cuda_;
  SharedTapes tapes_;
  Writer writer_;  // outlives what it handed out
  Labels labels_;
  int tokens_ = 0;
  Held loss_;
  UnitsInputs units_inputs_;
  std::vector<UnitLowering> units_;
  Calls calls_;
  std::vector<SegmentState> segments_;
  std::vector<Held> workspace_, inputs_, masks_;
  Held norm_, divisor_, norm_part_, scale_, growth_, found_inf_;
  std::vector<int> replica_sums_;  // tokens
  std::optional<SaveLowering> save_;
  std::vector<Held> pinned_;  // token ids, labels
  std::vector<Section> sections_;
  Phase phase_ = Phase::load;
};

}  // namespace

Program lower(const LowerInputs& inputs) { return Lowering(inputs).lower(); }

}  // namespace vramfit::program
