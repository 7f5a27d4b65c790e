#include "program/readers/least_reserved.h"

#include <algorithm>
#include <variant>

#include "program/readers/expand.h"

namespace vramfit {

namespace {

using namespace program;  // NOLINT(google-build-using-namespace): the program's own words

struct Reader {
  ReservedSoFar& reserved;
  template <ChangesMemory What>
  void read(const What& what, const Place& place) {
    for_each_event(place.code, what, [&](int buffer, int sign) { reserved.add(place.buffer(buffer), sign); });
  }
  void read(const EmptyCache& /*what*/, const Place& /*place*/) { reserved.empty_cache(); }
};

}  // namespace

void ReservedSoFar::add(const Buffer& buffer, std::int64_t sign) {
  if (buffer.space != Space::device) return;
  OfStream& stream = streams_[static_cast<std::size_t>(buffer.stream)];
  stream.live = checked_add(stream.live, sign * buffer.bytes.n);
  if (stream.live <= stream.reserved) return;
  reserved_ = checked_add(reserved_, stream.live - stream.reserved);
  stream.reserved = stream.live;
  peak_ = std::max(peak_, reserved_);
}

void ReservedSoFar::empty_cache() {
  reserved_ = 0;
  for (OfStream& stream : streams_) reserved_ += stream.reserved = stream.live;
}

void ReservedSoFar::add_new(const Code& main) {
  for (; read_ < main.instructions.size(); ++read_) {
    const Instruction& instruction = main.instructions[read_];
    if (std::holds_alternative<EmptyCache>(instruction)) empty_cache();
    for_each_event(main, instruction,
                   [&](int buffer, int sign) { add(main.buffers[static_cast<std::size_t>(buffer)], sign); });
  }
}

Bytes least_reserved(const Program& program) {
  ReservedSoFar reserved;
  Reader reader{reserved};
  for (const Section& section : merged_sections(program)) read_section(program, section, reader);
  return reserved.peak();
}

}  // namespace vramfit
