#include "program/lowering/lower.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "program/gradient_mask.h"
#include "program/load_rows.h"
#include "program/lowering/calls.h"
#include "program/ops/fp8.h"
#include "program/schedules/schedule.h"
#include "program/trainable.h"

namespace vramfit::program {

namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

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
        layout_(lay_out_units(inputs.graph, inputs.job)),
        shape_{job_.micro_batch, job_.sequence},
        is_cuda_(inputs.device.kind == DeviceKind::cuda),
        tapes_(make_shared_tapes({.graph = inputs.graph,
                                  .precision = job_.precision,
                                  .device = inputs.device,
                                  .attention = job_.attention,
                                  .deterministic = job_.deterministic,
                                  .shape = shape_,
                                  .trainable = trainable_parameters(inputs.graph, inputs.job)})),
        units_inputs_{inputs.graph, job_.precision, layout_, writer_, labels_, tokens_},
        calls_({inputs.graph, job_.precision, layout_, shape_, tapes_, units_, writer_, labels_}) {
    for (const Unit& unit : layout_.units) units_.emplace_back(units_inputs_, unit);
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
                                                                      .clip = in_.clip || scales_loss(job_)});
    phase_ = Phase::forward;
    for (const vramfit::Instruction& instruction : schedule) lower(instruction);
    sections_.back().end = writer_.code().instructions.size();
    writer_.be_quiet(true);  // what load made lives on
    Program program{
        .labels = {},
        .segments = {},
        .main = std::move(writer_.code()),
        .blocks = calls_.take(),
        .sections = std::move(sections_),
        .groups = {{{layout_.shards, 1}, {layout_.reshard_ranks, 1}, {job_.mesh.replicate, job_.mesh.shard}}},
        .tokens = tokens_};
    program.labels = labels_.take();
    for (const Segment& segment : in_.graph.segments) program.segments.push_back(segment.name);
    return program;
  }

 private:
  using Do = vramfit::Do;

  void begin_section(Section::Kind kind) {
    const std::size_t position = writer_.code().instructions.size();
    if (!sections_.empty()) sections_.back().end = position;
    sections_.push_back({.kind = kind, .begin = position, .end = position, .times = 1});
    if (kind == Section::Kind::middle) sections_.back().times = in_.job.accumulation - 2;
    is_marked_ = false;
  }

  void mark(Phase phase) {
    if (is_marked_ && phase == phase_) return;
    writer_.write(Mark{phase});
    phase_ = phase;
    is_marked_ = true;
  }

  Held workspace(const std::string& label, Bytes bytes) {
    return writer_.allocate(
        {.bytes = bytes, .label = labels_.number(label), .segment = -1, .category = Category::workspace});
  }

  Held temporary(const char* label, Bytes bytes) {
    return writer_.allocate(
        {.bytes = bytes, .label = labels_.number(label), .segment = -1, .category = Category::temporaries});
  }

  void load_units() {
    const bool stages = job_.load == Load::rank0 && in_.coords == Coords{};
    const Held staging = writer_.allocate({.bytes = stages ? load_staging(layout_) : Bytes{0},
                                           .label = labels_.number("load: rows of all ranks"),
                                           .segment = -1,
                                           .category = Category::communication});
    for (UnitLowering& unit : units_) unit.load();
  }

  void load_masks() {
    if (job_.gradient_mask != GradientMask::file) return;
    for (const Unit& unit : layout_.units) {
      masks_.push_back(writer_.allocate({.bytes = unit.trainable_elements * dtype_bytes(Dtype::u8),
                                         .label = labels_.number(unit.name + ": gradient mask"),
                                         .segment = -1,
                                         .category = Category::optimizer_state}));
      writer_.run(Kernel::fill, {{&masks_.back(), How::write}});
    }
  }

  void load() {
    mark(Phase::load);
    load_units();
    load_masks();
    for (std::size_t r = 0; r < in_.graph.ropes.size(); ++r) {
      const std::int64_t elements = checked_mul(shape_.sequence, in_.graph.rope_dims[r] / 2);
      for (const char* what : {": cos", ": sin"}) {
        keep(workspace("rope " + std::to_string(r) + what, elements * dtype_bytes(job_.precision.buffer)));
      }
    }
    keep(workspace("cublas workspace", cublas_workspace(in_.device)));
    if (is_cuda_ && uses_cublaslt(in_.graph, job_.precision, shape_)) {
      keep(workspace("cublasLt workspace", kCublasLtWorkspace));
    }
    keep(workspace("loss sum", Bytes{4}));
    norm_ = workspace("gradient norm", Bytes{4});
    divisor_ = workspace("clip scale", Bytes{4});
    writer_.run(Kernel::fill, {{&norm_, How::write}, {&divisor_, How::write}});
    if (is_cuda_) keep(workspace("norm part", Bytes{4}));
    if (!scales_loss(job_)) return;
    for (const char* what : {"loss scale", "growth tracker", "found inf"}) keep(workspace(what, Bytes{4}));
  }

  void keep(Held held) {
    writer_.run(Kernel::fill, {{&held, How::write}});
    workspace_.push_back(std::move(held));
  }

  void lower(const vramfit::Instruction& i) {
    begin_section_of(i);
    mark(phase_of(i, in_.graph, phase_));
    switch (i.what) {
      case Do::begin:
        return begin();
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
        return inputs_.clear();
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

  void begin() {
    for (const char* what : {"inputs: ids", "inputs: labels"}) {
      inputs_.push_back(writer_.allocate({.bytes = checked_mul(shape_.batch, shape_.sequence) * dtype_bytes(Dtype::i64),
                                          .label = labels_.number(what),
                                          .segment = -1,
                                          .category = Category::activations}));
      writer_.run(Kernel::fill, {{&inputs_.back(), How::write}}, {.bytes = 0});  // copied from the host
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
    std::vector<std::pair<const Held*, How>> shards;
    for (const int unit : bucket) shards.emplace_back(&units_[at(unit)].gradient_shard(), How::add);
    replica_sums_.push_back(tokens_);
    writer_.start(Collective::all_reduce, Axis::replicate, writer_.accesses(shards), tokens_++);
  }

  void wait_for_replicas() {
    for (const int token : replica_sums_) writer_.write(Wait{token});
    replica_sums_.clear();
  }

  void mask() {
    wait_for_replicas();
    std::vector<std::pair<const Held*, How>> accesses;
    for (const UnitLowering& unit : units_) accesses.emplace_back(&unit.gradient_shard(), How::add);
    for (const Held& held : masks_) accesses.emplace_back(&held, How::read);
    writer_.begin_inside();
    if (job_.gradient_mask == GradientMask::keep && is_cuda_) {
      const Bytes bytes = mask_part(layout_) * dtype_bytes(Dtype::i64);
      const Held words = temporary("mask: words", bytes);
      const Held bits = temporary("mask: bits", bytes);
    }
    const Range inside = writer_.end_inside();
    const Work work = mask_work();
    writer_.write(Run{.kernel = Kernel::mask,
                      .op = -1,
                      .accesses = writer_.accesses(accesses),
                      .inside = inside,
                      .work = writer_.work({&work, 1})});
  }

  /// A mask from a file is read along with the gradient; drawing one takes about 15 passes over 8 bytes an element,
  /// read and written (executor/gradient_mask.cpp, mask_by_calls).
  Work mask_work() const {
    const bool is_read = job_.gradient_mask == GradientMask::file;
    Work work{.launches = 0};
    for (const Unit& unit : layout_.units) {
      const double each = 2 * static_cast<double>(dtype_bytes(unit.gradient).n) + (is_read ? 1.0 : 15.0 * 16);
      work.bytes += static_cast<double>(unit.trainable_elements) * each;
      if (unit.trainable_elements > 0) work.launches += is_read ? 1 : 16;
    }
    return work;
  }

  /// A call that adds the squares of `elements` of a gradient shard, `times` equal parts one after the other.
  void add_squares(const Unit& unit, const Held& gradients, std::int64_t elements, std::int64_t times) {
    if (elements == 0 || times == 0) return;
    writer_.begin_inside();
    if (is_cuda_) {
      const SumScratch scratch = sum_scratch(elements, in_.device);
      const Held partials = temporary("clip: partials", scratch.partials);
      const Held counter = temporary("clip: counter", scratch.counter);
    }
    const Range inside = writer_.end_inside();
    const Work work{.launches = 2, .bytes = static_cast<double>((elements * dtype_bytes(unit.gradient)).n)};
    writer_.write(Run{.kernel = Kernel::norm,
                      .op = -1,
                      .accesses = writer_.accesses({{&gradients, How::read}, {&norm_, How::add}}),
                      .inside = inside,
                      .work = writer_.work({&work, 1}),
                      .times = times});
  }

  void clip() {
    wait_for_replicas();
    for (std::size_t u = 0; u < units_.size(); ++u) {
      const Held& gradients = units_[u].gradient_shard();
      if (!gradients) continue;
      const Unit& unit = layout_.units[u];
      add_squares(unit, gradients, kNormPart, unit.trainable_elements / kNormPart);
      add_squares(unit, gradients, unit.trainable_elements % kNormPart, 1);
    }
    if (layout_.shards > 1) {
      const int token = tokens_++;
      writer_.start(Collective::all_reduce, Axis::shard, writer_.accesses({{&norm_, How::add}}), token);
      writer_.write(Wait{token});
    }
    writer_.run(Kernel::scale, {{&norm_, How::add}, {&divisor_, How::write}}, {.launches = 6, .bytes = 12});
  }

  void update() {
    wait_for_replicas();
    for (UnitLowering& unit : units_) unit.update();
  }

  const LowerInputs& in_;
  Job job_;
  UnitLayout layout_;
  BatchShape shape_;
  bool is_cuda_;
  std::vector<std::shared_ptr<const SegmentTape>> tapes_;
  Writer writer_;  // outlives what it handed out
  Labels labels_;
  int tokens_ = 0;
  UnitsInputs units_inputs_;
  std::vector<UnitLowering> units_;
  Calls calls_;
  std::vector<SegmentState> segments_;
  std::vector<Held> workspace_, inputs_, masks_;
  Held norm_, divisor_;
  std::vector<int> replica_sums_;  // tokens
  std::vector<Section> sections_;
  Phase phase_ = Phase::load;
  bool is_marked_ = false;  // this section has said which phase it is in
};

}  // namespace

Program lower(const LowerInputs& inputs) { return Lowering(inputs).lower(); }

}  // namespace vramfit::program
