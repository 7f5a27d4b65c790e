#include "program/readers/peak_place.h"

#include <fmt/format.h>

#include "program/readers/expand.h"

namespace vramfit {

namespace {

using namespace program;  // NOLINT(google-build-using-namespace): the program's own words

class PeakReader {
 public:
  void read(const Mark& mark, const Place& /*place*/) {
    if (mark.segment >= 0 || mark.phase != now_.phase) now_.segment = mark.segment;
    now_.phase = mark.phase;
  }
  void read(const Allocate& allocation, const Place& place) { add(place.buffer(allocation.buffer), 1); }
  void read(const Free& end, const Place& place) { add(place.buffer(end.buffer), -1); }
  void read(const Run& run, const Place& place) {
    for (std::uint32_t i = 0; i < run.inside.count; ++i) {
      const Inside& inside = place.code.inside[run.inside.first + i];
      add(place.buffer(inside.buffer), inside.what == Inside::What::allocate ? 1 : -1);
    }
  }

  const PeakPlace& most() const { return most_; }

 private:
  void add(const Buffer& buffer, std::int64_t sign) {
    if (buffer.space != Space::device) return;
    now_.requested += sign * buffer.bytes;
    if (now_.requested > most_.requested) most_ = now_;
  }

  PeakPlace now_, most_;
};

}  // namespace

PeakPlace peak_place(const program::Program& program) {
  PeakReader reader;
  for (const Section& section : program.sections) read_section(program, section, reader);
  return reader.most();
}

std::string peak_place_text(const program::Program& program) {
  const PeakPlace place = peak_place(program);
  if (place.segment < 0) return std::string(phase_name(place.phase));
  return fmt::format("{} of {}", phase_name(place.phase), program.segments[static_cast<std::size_t>(place.segment)]);
}

}  // namespace vramfit
