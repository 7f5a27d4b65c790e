#include "program/readers/least_reserved.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "program/readers/expand.h"

namespace vramfit {

namespace {

using namespace program;  // NOLINT(google-build-using-namespace): the program's own words

/// What each stream has, and what was reserved for it since the cache was emptied.
class Streams {
 public:
  template <ChangesMemory What>
  void read(const What& what, const Place& place) {
    for_each_event(place.code, what, [&](int buffer, int sign) { add(place.buffer(buffer), sign); });
  }
  void read(const EmptyCache& /*what*/, const Place& /*place*/) {
    reserved_ = 0;
    for (OfStream& stream : streams_) reserved_ += stream.reserved = stream.live;
  }

  Bytes peak() const { return Bytes{peak_}; }

 private:
  struct OfStream {
    std::int64_t live = 0, reserved = 0;
  };

  void add(const Buffer& buffer, std::int64_t sign) {
    if (buffer.space != Space::device) return;
    OfStream& stream = streams_[static_cast<std::size_t>(buffer.stream)];
    stream.live = checked_add(stream.live, sign * buffer.bytes.n);
    if (stream.live <= stream.reserved) return;
    reserved_ = checked_add(reserved_, stream.live - stream.reserved);
    stream.reserved = stream.live;
    peak_ = std::max(peak_, reserved_);
  }

  std::array<OfStream, kStreams> streams_{};
  std::int64_t reserved_ = 0, peak_ = 0;
};

}  // namespace

Bytes least_reserved(const Program& program) {
  Streams streams;
  for (const Section& section : merged_sections(program)) read_section(program, section, streams);
  return streams.peak();
}

}  // namespace vramfit
