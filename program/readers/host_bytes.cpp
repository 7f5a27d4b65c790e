#include "program/readers/host_bytes.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "program/readers/expand.h"

namespace vramfit {

namespace {

using namespace program;  // NOLINT(google-build-using-namespace): the program's own words

using IsCounted = bool (*)(const Buffer&);

bool is_on_host(const Buffer& buffer) { return buffer.space == Space::pinned || buffer.space == Space::host; }
bool is_managed(const Buffer& buffer) { return buffer.space == Space::managed; }

/// What a kernel pins itself comes from PyTorch's pool.
std::int64_t taken_by_kernel(const Buffer& buffer) {
  return buffer.space == Space::pinned ? pinned_by_pool(buffer.bytes).n : buffer.bytes.n;
}

class PeakReader {
 public:
  explicit PeakReader(IsCounted is_counted) : is_counted_(is_counted) {}

  void read(const Mark& mark, const Place& /*place*/) { enter(mark.phase); }
  void read(const Allocate& what, const Place& place) { add(held_by(place.buffer(what.buffer))); }
  void read(const Free& what, const Place& place) { add(-held_by(place.buffer(what.buffer))); }
  void read(const Run& run, const Place& place) {
    for (std::uint32_t i = 0; i < run.inside.count; ++i) {
      const Inside& step = place.code.inside[run.inside.first + i];
      const Buffer& buffer = place.buffer(step.buffer);
      const std::int64_t held = is_counted_(buffer) ? taken_by_kernel(buffer) : 0;
      add(step.what == Inside::What::allocate ? held : -held);
    }
  }
  void begin(const Section& section) {
    const bool is_load = section.kind == Section::Kind::load;
    is_first_ = is_load || (!is_save(section) && section.steps != Section::Steps::later);
    is_later_ = !is_load && section.steps != Section::Steps::first;
    enter(phase_);
  }
  HostUse take() { return {.peak = Bytes{peak_}, .phases = std::move(phases_)}; }

 private:
  void enter(Phase phase) {
    phase_ = phase;
    record();
  }
  void record() {
    if (is_first_) raise(false);
    if (is_later_) raise(true);
  }
  void raise(bool is_steady) {
    const auto known = std::ranges::find_if(
        phases_, [&](const HostPhase& each) { return each.phase == phase_ && each.is_steady == is_steady; });
    if (known == phases_.end()) {
      phases_.push_back({.phase = phase_, .is_steady = is_steady, .peak = Bytes{live_}});
    } else {
      known->peak = std::max(known->peak, Bytes{live_});
    }
  }
  std::int64_t held_by(const Buffer& buffer) const { return is_counted_(buffer) ? buffer.bytes.n : 0; }
  void add(std::int64_t bytes) {
    if (bytes == 0) return;
    live_ = checked_add(live_, bytes);
    peak_ = std::max(peak_, live_);
    if (bytes > 0) record();
  }
  IsCounted is_counted_;
  std::int64_t live_ = 0, peak_ = 0;
  Phase phase_ = Phase::load;
  bool is_first_ = true, is_later_ = false;  // of which steps what is read is
  std::vector<HostPhase> phases_;
};

HostUse use_of(const Program& program, IsCounted is_counted) {
  // Blocks of most programs hold none of it: they need not be read call by call.
  const bool blocks_count = std::ranges::any_of(
      program.blocks, [&](const Block& block) { return std::ranges::any_of(block.code.buffers, is_counted); });
  if (!blocks_count && std::ranges::none_of(program.main.buffers, is_counted)) return {};
  PeakReader reader(is_counted);
  const Place main{.program = program, .code = program.main};
  for (const Section& section : merged_sections(program)) {
    reader.begin(section);
    if (blocks_count) {
      read_section(program, section, reader);
      continue;
    }
    for (std::size_t i = section.begin; i < section.end; ++i) {
      const auto read = [&](const auto& what) {
        if constexpr (requires { reader.read(what, main); }) reader.read(what, main);
      };
      std::visit(read, program.main.instructions[i]);
    }
  }
  return reader.take();
}

}  // namespace

Bytes pinned_by_pool(Bytes bytes) {
  return bytes.n == 0 ? bytes : Bytes{static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(bytes.n)))};
}

HostUse host_use(const Program& program) { return use_of(program, is_on_host); }

Bytes host_bytes(const Program& program) { return host_use(program).peak; }

Bytes managed_bytes(const Program& program) { return use_of(program, is_managed).peak; }

}  // namespace vramfit
