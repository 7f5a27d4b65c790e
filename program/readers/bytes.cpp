#include "program/readers/bytes.h"

#include "base/numbers/index.h"
#include "program/readers/expand.h"

namespace vramfit {

namespace {

using namespace program;  // NOLINT(google-build-using-namespace): the program's own words

constexpr int kNoLabel = -1;

class BytesReader {
 public:
  BytesReader(const Program& program, const BytesOptions& options)
      : program_(program), options_(options), ids_(buffer_numbers(program), -1) {
    completed_.resize(program.labels.size(), kNoLabel);
    for (const Block& block : program.blocks) {
      for (const Buffer& buffer : block.code.buffers) note_completed(buffer);
    }
    for (const Buffer& buffer : program.main.buffers) {
      if (buffer.segment >= 0) note_completed(buffer);
    }
    labels_.resize(program.labels.size() + program.segments.size() * at(completed_count_), kNoLabel);
  }

  Ledger ledger() {
    play(program_.sections.front(), 0);
    for (int step = 1; step <= options_.steps; ++step) {
      const bool stands_for_all = options_.abbreviate && step == options_.steps && step >= 2;
      if (stands_for_all) writer_.begin_repeat(kForever);
      for (const Section& section : program_.sections) {
        if (is_in_step(section, step)) play(section, step);
      }
      if (stands_for_all) writer_.end_repeat();
    }
    for (const Section& section : program_.sections) {
      if (is_save(section)) play(section, options_.steps);
    }
    return writer_.take();
  }

  void read(const Allocate& what, const Place& place) { allocate(what.buffer, place); }
  void read(const Free& what, const Place& place) { free(what.buffer, place); }
  void read(const Run& run, const Place& place) {
    for (std::int64_t time = 0; time < (options_.abbreviate ? 1 : run.times); ++time) {
      for (std::uint32_t i = 0; i < run.inside.count; ++i) {
        const Inside& step = place.code.inside[run.inside.first + i];
        step.what == Inside::What::allocate ? allocate(step.buffer, place) : free(step.buffer, place);
      }
    }
  }
  void read(const Mark& mark, const Place& /*place*/) { writer_.set_phase(mark.phase, step_); }
  void read(const EmptyCache& /*what*/, const Place& /*place*/) {
    if (options_.space == Space::device) writer_.empty_cache();
  }

 private:
  void play(const Section& section, int step) {
    step_ = step;
    const bool folds = options_.abbreviate && section.times > 1;
    if (folds) writer_.begin_repeat(section.times);
    for (std::int64_t time = 0; time < (folds ? 1 : section.times); ++time) read_section(program_, section, *this);
    if (folds) writer_.end_repeat();
  }

  void allocate(int buffer, const Place& place) {
    const Buffer& made = place.buffer(buffer);
    if (made.space != options_.space) return;
    ids_[at(place.number(buffer))] =
        writer_.allocate(made.bytes, made.category, label(place.segment_of(buffer), made.label), made.stream);
  }

  void free(int buffer, const Place& place) {
    if (place.buffer(buffer).space == options_.space) writer_.free(ids_[at(place.number(buffer))]);
  }

  void note_completed(const Buffer& buffer) {
    if (buffer.label >= 0 && completed_[at(buffer.label)] == kNoLabel)
      completed_[at(buffer.label)] = completed_count_++;
  }

  /// The ledger's label; each is made once.
  int label(int segment, int label) {
    const std::size_t place =
        segment < 0 ? at(label)
                    : program_.labels.size() + at(segment) * at(completed_count_) + at(completed_[at(label)]);
    int& number = labels_[place];
    if (number == kNoLabel) number = writer_.add_label(label_text(program_, segment, label));
    return number;
  }

  const Program& program_;
  const BytesOptions& options_;
  LedgerWriter writer_;
  std::vector<std::int64_t> ids_;  // in the ledger, by number of the buffer
  // Labels that a segment's name completes are numbered: they are few, but units can have tens of thousands of others.
  std::vector<int> completed_;  // by label of the program
  int completed_count_ = 0;
  std::vector<int> labels_;  // by label of the program; then by segment and number of a completed label
  int step_ = 0;
};

}  // namespace

Ledger ledger_of(const Program& program, const BytesOptions& options) { return BytesReader(program, options).ledger(); }

}  // namespace vramfit
