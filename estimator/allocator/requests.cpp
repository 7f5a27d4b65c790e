#include "estimator/allocator/requests.h"

#include <algorithm>
#include <variant>

#include "program/readers/expand.h"

namespace vramfit {

namespace {

using namespace program;  // NOLINT(google-build-using-namespace): the program's own words

/// An allocation or a free in a list of instructions: of the list's own buffer, or of one that a call binds to a slot.
struct Step {
  Event event;  // of its own buffer, whose number in the list is the id
  int slot = -1;
  int sign = 1;
};

Event event_of(const Buffer& buffer, std::int64_t sign, std::int64_t id) {
  return {.bytes = sign * buffer.bytes.n,
          .id = id,
          .label = -1,
          .step = 0,
          .category = buffer.category,
          .phase = Phase::load,
          .stream = buffer.stream};
}

bool is_on_card(const Buffer& buffer) { return buffer.space == Space::device; }

class RequestReader {
 public:
  RequestReader(const Program& program, int steps)
      : program_(program), sections_(merged_sections(program)), steps_(steps) {
    const auto first_own = static_cast<std::int64_t>(program.main.buffers.size());  // as program::Place::number
    for (const Block& block : program.blocks) {
      std::vector<Step>& list = blocks_.emplace_back();
      const auto add_step = [&](int buffer, int sign) {
        const Buffer& own = block.code.buffers[static_cast<std::size_t>(buffer)];
        if (buffer < block.slots) {
          list.push_back({.event = {}, .slot = buffer, .sign = sign});
        } else if (is_on_card(own)) {
          list.push_back({.event = event_of(own, sign, first_own + buffer)});
        }
      };
      for (const Instruction& instruction : block.code.instructions) for_each_event(block.code, instruction, add_step);
    }
  }

  Ledger requests() {
    requests_.events.reserve(most_events());
    play(sections_.front(), 0);
    for (int step = 1; step <= steps_; ++step) {
      const bool stands_for_all = step == steps_ && step >= 2;
      const std::size_t begin = requests_.events.size(), repeat = requests_.repeats.size();
      if (stands_for_all) requests_.repeats.push_back({.begin = begin, .end = begin, .times = kForever});
      for (const Section& section : sections_) {
        if (is_in_step(section, step)) play(section, step);
      }
      if (stands_for_all) requests_.repeats[repeat].end = requests_.events.size();
    }
    for (const Section& section : sections_) {
      if (is_save(section)) play(section, steps_);
    }
    return std::move(requests_);
  }

 private:
  /// Room for all of them at once: a list that grows is copied to memory that the kernel has to map first.
  std::size_t most_events() const {
    std::size_t events = 0;
    for (const Section& section : sections_) {
      const bool is_once = section.kind == Section::Kind::load || is_save(section);
      events += most_events(section) * (is_once ? 1 : static_cast<std::size_t>(steps_));
    }
    return events;
  }

  std::size_t most_events(const Section& section) const {
    std::size_t events = 0;
    for (std::size_t i = section.begin; i < section.end; ++i) {
      const Instruction& instruction = program_.main.instructions[i];
      if (const auto* call = std::get_if<Call>(&instruction)) {
        events += blocks_[static_cast<std::size_t>(call->block)].size();
      } else {
        for_each_event(program_.main, instruction, [&](int /*buffer*/, int /*sign*/) { ++events; });
      }
    }
    return events;
  }

  void play(const Section& section, int step) {
    step_ = step;
    const std::size_t begin = requests_.events.size();
    for (std::size_t i = section.begin; i < section.end; ++i) read(program_.main.instructions[i]);
    if (section.times == 1) return;
    requests_.repeats.push_back({.begin = begin, .end = requests_.events.size(), .times = section.times});
  }

  void read(const Instruction& instruction) {
    if (const auto* mark = std::get_if<Mark>(&instruction)) {
      phase_ = mark->phase;
      marked_step_ = step_;
    } else if (const auto* call = std::get_if<Call>(&instruction)) {
      read(*call);
    } else {
      for_each_event(program_.main, instruction, [this](int buffer, int sign) { add(buffer, sign); });
    }
  }

  void read(const Call& call) {
    const int* const bindings = program_.main.bindings.data() + call.bindings.first;
    for (const Step& step : blocks_[static_cast<std::size_t>(call.block)]) {
      if (step.slot >= 0) {
        add(bindings[step.slot], step.sign);
      } else {
        add(step.event);
      }
    }
  }

  void add(int buffer, int sign) {
    const Buffer& own = program_.main.buffers[static_cast<std::size_t>(buffer)];
    if (is_on_card(own)) add(event_of(own, sign, buffer));
  }

  void add(const Event& event) {
    Event& added = requests_.events.emplace_back(event);
    added.phase = phase_;
    added.step = marked_step_;
  }

  const Program& program_;
  std::vector<Section> sections_;
  int steps_;
  std::vector<std::vector<Step>> blocks_;  // what a call of each asks for
  Ledger requests_;
  Phase phase_ = Phase::load;
  int step_ = 0, marked_step_ = 0;  // events have that of the last mark
};

}  // namespace

bool has_requests(const Program& program) {
  return std::ranges::all_of(program.sections, [](const Section& s) { return s.steps == Section::Steps::every; });
}

Ledger requests_of(const Program& program, int steps) { return RequestReader(program, steps).requests(); }

}  // namespace vramfit
