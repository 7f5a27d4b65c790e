#include "program/lowering/lower.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>

#include "base/numbers/index.h"
#include "job/allocator/allocator_settings.h"
#include "program/lowering/activations.h"
#include "program/lowering/beginning.h"
#include "program/lowering/calls.h"
#include "program/lowering/load.h"
#include "program/lowering/save.h"
#include "program/lowering/update.h"
#include "program/schedules/schedule.h"

namespace vramfit::program {

namespace {

constexpr std::size_t kInstructionsOfOne =
    7;  // of the schedule, about; half as many buffers, two thirds as many accesses
constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

/// Micro-batches between the second and the last are as the second.
Job with_one_middle(Job job) {
  job.accumulation = std::min<std::int64_t>(job.accumulation, 3);
  return job;
}

/// Tapes that no other job shares need no policies but their own job's.
SharedTapes own_tapes(const LowerInputs& inputs) {
  TapeInputs wanted = tape_inputs(inputs.graph, inputs.job, inputs.device);
  if (!is_selective(inputs.job.checkpointing)) wanted.policies.clear();
  return make_shared_tapes(wanted);
}

std::vector<bool> with_backward(const SharedTapes& tapes) {
  std::vector<bool> list;
  for (const auto& tape : tapes) list.push_back(tape->has_backward);
  return list;
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
        tapes_(inputs.tapes == nullptr ? own_tapes(inputs) : *inputs.tapes),
        has_backward_(with_backward(tapes_)),
        writer_(inputs.calls || saves_anything(inputs.run)),
        labels_(inputs.labels ? Labels::Kept::texts : Labels::Kept::nothing),
        views_(inputs.labels),
        unit_views_(views_, layout_, inputs.coords),
        host_(writer_, labels_, tokens_, inputs.device.kind, offload_of(job_)),
        units_inputs_{inputs.graph,
                      job_.precision,
                      layout_,
                      optimizer_named(job_.optimizer),
                      inputs.device.kind,
                      writer_,
                      labels_,
                      tokens_,
                      unit_views_,
                      host_,
                      job_.kernels,
                      job_.mesh.replicate,
                      job_.optimizer_implementation},
        shared_{inputs, job_, layout_, shape_, is_cuda_, writer_, labels_, views_, units_, tokens_, host_},
        calls_(
            {inputs.graph, job_.precision, layout_, shape_, tapes_, units_, writer_, labels_, views_, residents_.loss}),
        activations_({.graph = inputs.graph,
                      .writer = writer_,
                      .views = views_,
                      .host = host_,
                      .leaves = segments_that_leave(job_, inputs.graph, has_backward_)}),
        update_(shared_, residents_),
        segments_(inputs.graph.segments.size()) {
    units_.reserve(layout_.units.size());
    for (std::size_t u = 0; u < layout_.units.size(); ++u) units_.emplace_back(units_inputs_, static_cast<int>(u));
    for (const Segment& segment : inputs.graph.segments) computes_loss_.push_back(is_loss_segment(segment));
  }

  /// `backward_passes`: behind so many of the first micro-batch it ends; kAll: it is whole.
  Program lower(std::size_t backward_passes) {
    std::vector<vramfit::Instruction> schedule = schedule_of_step();
    begin_section(Section::Kind::load);
    LoadLowering(shared_, residents_).load(reduces_again(schedule));
    save_.emplace(SaveInputs{in_, layout_, writer_, labels_, views_, tokens_});
    phase_ = Phase::forward;
    if (backward_passes < kAll) cut(schedule, backward_passes);
    writer_.reserve(kInstructionsOfOne * schedule.size());
    lower(schedule);
    if (backward_passes == kAll) {
      for (const Section::Kind kind : save_->kinds()) {
        begin_section(kind);
        save_->save(kind);
      }
    }
    sections_.back().end = writer_.code().instructions.size();
    load_host_buffers();
    writer_.be_quiet(true);  // what load made lives on
    Program program{.labels = {},
                    .segments = {},
                    .outputs = {},
                    .views = views_.take(),
                    .main = std::move(writer_.code()),
                    .blocks = calls_.take(),
                    .sections = std::move(sections_),
                    .groups = groups_of(job_.mesh, layout_.reshard_ranks),
                    .tokens = tokens_,
                    .loss = residents_.loss.buffer(),
                    .gradient_norm = residents_.norm.buffer(),
                    .loss_scale = residents_.scale.buffer(),
                    .found_inf = residents_.found_inf.buffer()};
    program.labels = labels_.take();
    for (const Segment& segment : in_.graph.segments) {
      program.segments.push_back(segment.name);
      program.outputs.push_back(segment.output);
    }
    return program;
  }

 private:
  using Do = vramfit::Do;

  std::vector<vramfit::Instruction> schedule_of_step() const {
    return make_schedule({.job = job_,
                          .graph = in_.graph,
                          .layout = layout_,
                          .segment_has_backward = has_backward_,
                          .clip = in_.run.clip || scales_loss(job_)});
  }

  /// Whether a unit's gradients are reduced more than once in a step.
  bool reduces_again(const std::vector<vramfit::Instruction>& schedule) const {
    std::vector<bool> reduced(layout_.units.size());
    return std::ranges::any_of(schedule, [&](const vramfit::Instruction& i) {
      if (i.what != Do::reduce) return false;
      const bool again = reduced[at(i.unit)];
      reduced[at(i.unit)] = true;
      return again;
    });
  }

  static void cut(std::vector<vramfit::Instruction>& schedule, std::size_t backward_passes) {
    const auto last = std::ranges::find_if(schedule, [&](const vramfit::Instruction& i) {
      return i.micro_batch > 0 || (i.what == Do::backward && --backward_passes == 0);
    });
    if (last != schedule.end()) schedule.erase(last->micro_batch > 0 ? last : last + 1, schedule.end());
  }

  /// The last micro-batch is the one before it once more, where it does the same from the same state.
  void lower(const std::vector<vramfit::Instruction>& schedule) {
    std::vector<int> owners_before;
    std::size_t middle_begin = 0;
    for (std::size_t i = 0; i < schedule.size(); ++i) {
      if (schedule[i].what == Do::begin && schedule[i].micro_batch > 0) {
        if (middle_begin > 0 && writer_.is_held_as(owners_before) && is_alike(schedule, middle_begin, i)) {
          repeat_section(Section::Kind::last);
          i += i - middle_begin - 1;
          continue;
        }
        owners_before = writer_.owners();
        middle_begin = i;
      }
      lower(schedule[i]);
    }
  }

  /// Whether the schedule from `next` on is that between `begin` and `next` once more.
  static bool is_alike(const std::vector<vramfit::Instruction>& schedule, std::size_t begin, std::size_t next) {
    const auto same = [](const vramfit::Instruction& a, const vramfit::Instruction& b) {
      return a.what == b.what && a.segment == b.segment && a.unit == b.unit && a.checkpointed == b.checkpointed &&
             a.in_group == b.in_group && a.bucket == b.bucket;
    };
    const auto at = [&](std::size_t i) { return schedule.begin() + static_cast<std::ptrdiff_t>(i); };
    return 2 * next - begin <= schedule.size() && std::equal(at(begin), at(next), at(next), same);
  }

  /// Which activations leave is known once a micro-batch has been lowered.
  void load_host_buffers() {
    std::vector<Instruction> allocations;
    for (const int buffer : activations_.host_buffers()) allocations.emplace_back(Allocate{buffer});
    if (allocations.empty()) return;
    std::vector<Instruction>& all = writer_.code().instructions;
    all.insert(all.begin() + static_cast<std::ptrdiff_t>(sections_.front().end), allocations.begin(),
               allocations.end());
    for (Section& section : sections_) {
      if (&section != &sections_.front()) section.begin += allocations.size();
      section.end += allocations.size();
    }
  }

  /// A further section of the instructions of the latest one.
  void repeat_section(Section::Kind kind) {
    const std::size_t begin = sections_.back().begin;
    begin_section(kind);
    sections_.back().begin = begin;
  }

  void begin_section(Section::Kind kind) {
    const std::size_t position = writer_.code().instructions.size();
    if (!sections_.empty()) sections_.back().end = position;
    sections_.push_back({.kind = kind, .begin = position, .end = position, .times = 1});
    if (kind == Section::Kind::middle) sections_.back().times = in_.job.accumulation - 2;
  }

  void lower(const vramfit::Instruction& i) {
    begin_section_of(i);
    phase_ = phase_of(i, i.segment >= 0 && computes_loss_[at(i.segment)], phase_);
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
        if (puts_gradients_first(job_.allocator)) calls_.make_gradient_shard(i.segment);
        activations_.before_backward(i.segment, segments_[at(i.segment)].values);
        return call(i.segment, checkpointed_tape(*tapes_[at(i.segment)], job_).recompute);
      case Do::backward:
        return backward(i.segment);
      case Do::accumulate:
        return unit(i).accumulate();
      case Do::reduce:
        return unit(i).reduce();
      case Do::finish:
        return unit(i).finish();
      case Do::sum_replicas:
        return update_.sum_replicas(i.bucket);
      case Do::end:
        return end();
      case Do::mask:
        return update_.mask();
      case Do::clip:
        return update_.clip();
      case Do::step:
        return i.unit < 0 ? update_.update() : update_.update_in_backward(i.unit);
    }
  }

  void begin_section_of(const vramfit::Instruction& i) {
    const bool updates = i.what == Do::mask || i.what == Do::clip || (i.what == Do::step && i.unit < 0);
    if (updates && sections_.back().kind != Section::Kind::update) begin_section(Section::Kind::update);
    if (i.what != Do::begin) return;
    const bool is_last = i.micro_batch + 1 == job_.accumulation;
    if (is_last) return begin_section(Section::Kind::last);
    begin_section(i.micro_batch == 0 ? Section::Kind::first : Section::Kind::middle);
  }

  UnitLowering& unit(const vramfit::Instruction& i) { return units_[at(i.unit)]; }

  void begin(int micro_batch) {
    if (micro_batch == 0) writer_.run({.kernel = Kernel::zero}, {{&residents_.loss, How::write}});
    for (const char* what : {"inputs: ids", "inputs: labels"}) {
      inputs_.push_back(writer_.allocate({.bytes = bytes_of_ids(shared_),
                                          .label = labels_.number(what),
                                          .segment = -1,
                                          .category = Category::activations,
                                          .dtype = Dtype::i64}));
    }
    writer_.run({.kernel = Kernel::inputs},
                {{&inputs_[0], How::write},
                 {&inputs_[1], How::write},
                 {&residents_.pinned[0], How::write},
                 {&residents_.pinned[1], How::write}},
                Work{.launches = 2, .bytes = 0});  // copied from the host
    set_inputs(inputs_[0], inputs_[1]);
  }

  void end() {
    host_.land();
    set_inputs({}, {});
    inputs_.clear();
  }

  void set_inputs(const Held& ids, const Held& labels) {
    segments_.front().values.set(0, ids);
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      const int value = in_.graph.segments[s].labels;
      if (value >= 0) segments_[s].values.set(value, labels);
    }
  }

  void call(int segment, const std::vector<TapeAction>& actions) {
    calls_.call(segment, actions, segments_[at(segment)]);
  }

  void forward(const vramfit::Instruction& i) {
    const SegmentTape& tape = *tapes_[at(i.segment)];
    call(i.segment, i.checkpointed ? checkpointed_tape(tape, job_).forward : tape.forward);
    HeldValues& values = segments_[at(i.segment)].values;
    if (at(i.segment) + 1 < segments_.size()) {
      const int output = in_.graph.segments[at(i.segment)].output;
      segments_[at(i.segment) + 1].values.set(0, values.of(output));
      if (i.checkpointed || !tape.output_is_saved) values.set(output, {});
    }
    activations_.after_forward(i.segment, values);
  }

  void backward(int s) {
    if (at(s) + 1 < segments_.size()) {
      HeldValues& of_next = segments_[at(s) + 1].gradients;
      segments_[at(s)].gradients.set(in_.graph.segments[at(s)].output, of_next.of(0));
      of_next.set(0, {});
    }
    activations_.before_backward(s, segments_[at(s)].values);
    call(s, tapes_[at(s)]->backward);
  }

  const LowerInputs& in_;
  Job job_;
  UnitLayout own_layout_;
  const UnitLayout& layout_;
  BatchShape shape_;
  bool is_cuda_;
  SharedTapes tapes_;
  std::vector<bool> has_backward_;  // by segment
  Writer writer_;                   // outlives what it handed out
  Labels labels_;
  Views views_;
  UnitViews unit_views_;
  int tokens_ = 0;
  HostSide host_;
  UnitsInputs units_inputs_;
  std::vector<UnitLowering> units_;
  Shared shared_;
  Residents residents_;
  Calls calls_;
  OffloadedActivations activations_;
  UpdateLowering update_;
  std::vector<SegmentState> segments_;
  std::vector<bool> computes_loss_;  // by segment
  std::vector<Held> inputs_;         // token ids, labels
  std::optional<SaveLowering> save_;
  std::vector<Section> sections_;
  Phase phase_ = Phase::load;
};

}  // namespace

Program lower(const LowerInputs& inputs) { return Lowering(inputs).lower(kAll); }

Program lower_beginning(const LowerInputs& inputs, std::size_t backward_passes) {
  return Lowering(inputs).lower(backward_passes);
}

}  // namespace vramfit::program
