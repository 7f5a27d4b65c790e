#include "program/readers/peak_activations.h"

#include <algorithm>
#include <cstdint>

#include "program/readers/activations.h"
#include "program/readers/expand.h"

namespace vramfit {

namespace {

using namespace program;  // NOLINT(google-build-using-namespace): the program's own words

class Activations {
 public:
  template <ChangesMemory What>
  void read(const What& what, const Place& place) {
    for_each_event(place.code, what, [&](int buffer, int sign) { add(place.buffer(buffer), sign); });
  }

  Bytes peak() const { return Bytes{peak_}; }

 private:
  void add(const Buffer& buffer, std::int64_t sign) {
    if (!is_activation(buffer)) return;
    live_ = checked_add(live_, sign * buffer.bytes.n);
    peak_ = std::max(peak_, live_);
  }

  std::int64_t live_ = 0, peak_ = 0;
};

}  // namespace

Bytes peak_activations(const Program& program) {
  Activations activations;
  for (const Section& section : merged_sections(program)) read_section(program, section, activations);
  return activations.peak();
}

}  // namespace vramfit
