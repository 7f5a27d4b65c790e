#include "program/arena/script.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/numbers/index.h"
#include "program/readers/expand.h"

namespace vramfit::arena {

namespace {

using namespace program;  // NOLINT(google-build-using-namespace): the program's own words

constexpr std::int64_t kForGood = std::numeric_limits<std::int64_t>::max();

/// Numbers what is alike: a buffer of a block in all its calls; in the main list, what has one category and size.
/// Labels, which a search leaves out, make no difference.
class Kinds {
 public:
  int of(const Buffer& made, int buffer, const Place& place) {
    const bool is_blocks = place.bindings != nullptr && place.is_own(buffer);
    const auto next = static_cast<int>(of_block_.size() + of_main_.size());
    if (is_blocks) return of_block_.emplace(std::pair{&place.code, buffer}, next).first->second;
    return of_main_.emplace(std::pair{made.category, made.bytes}, next).first->second;
  }

 private:
  std::map<std::pair<const Code*, int>, int> of_block_;
  std::map<std::pair<Category, Bytes>, int> of_main_;
};

/// Numbers of buffers that are allocated when a part that repeats begins, and freed within it: what the part leaves in
/// their place is another block, but the next pass finds it where the first one was.
class CarriedReader {
 public:
  explicit CarriedReader(const Program& program)
      : program_(program), carried_(buffer_numbers(program)), is_live_(carried_.size()) {}

  std::vector<bool> carried() {
    bool is_step = false;
    std::vector<bool> at_step;
    for (const Section& section : program_.sections) {
      if (section.kind != Section::Kind::load && !std::exchange(is_step, true)) at_step = is_live_;
      found_by_step_ = is_step ? &at_step : nullptr;
      const std::vector<bool> at_section = is_live_;
      found_by_section_ = section.times > 1 || is_save(section) ? &at_section : nullptr;
      read_section(program_, section, *this);
    }
    return carried_;
  }

  void read(const Allocate& what, const Place& place) { is_live_[at(place.number(what.buffer))] = true; }
  void read(const Free& what, const Place& place) { free(place.number(what.buffer)); }
  void read(const Run& run, const Place& place) {
    for (std::uint32_t i = 0; i < run.inside.count; ++i) {
      const Inside& step = place.code.inside[run.inside.first + i];
      const int number = place.number(step.buffer);
      step.what == Inside::What::allocate ? void(is_live_[at(number)] = true) : free(number);
    }
  }

 private:
  void free(int number) {
    is_live_[at(number)] = false;
    if (found_by_step_ != nullptr && (*found_by_step_)[at(number)]) carried_[at(number)] = true;
    if (found_by_section_ != nullptr && (*found_by_section_)[at(number)]) carried_[at(number)] = true;
  }

  const Program& program_;
  std::vector<bool> carried_, is_live_;
  const std::vector<bool>*found_by_step_ = nullptr, *found_by_section_ = nullptr;
};

/// Lifetimes of load and one step, and of the sections that save, which may follow it.
class LifetimeReader {
 public:
  explicit LifetimeReader(const Program& program)
      : program_(program), carried_(CarriedReader(program).carried()), open_(buffer_numbers(program), -1) {}

  void read_all() {
    for (const Section& section : program_.sections) {
      sections.push_back(requests.size());
      read_section(program_, section, *this);
    }
  }

  void read(const Allocate& what, const Place& place) { allocate(what.buffer, place); }
  void read(const Free& what, const Place& place) { free(what.buffer, place); }
  void read(const Run& run, const Place& place) {
    for (std::uint32_t i = 0; i < run.inside.count; ++i) {
      const Inside& step = place.code.inside[run.inside.first + i];
      step.what == Inside::What::allocate ? allocate(step.buffer, place) : free(step.buffer, place);
    }
  }

  std::vector<Lifetime> lifetimes;
  std::vector<std::size_t> requests;  // the lifetime of each
  std::vector<Bytes> bytes;           // of each request
  std::vector<std::size_t> sections;

 private:
  void allocate(int buffer, const Place& place) {
    const Buffer& made = place.buffer(buffer);
    if (made.space != Space::device) return;
    if (made.stream != Stream::compute) {
      throw NotModelled(fmt::format("--allocator arena with memory of several streams ({})",
                                    label_text(program_, place.segment_of(buffer), made.label)));
    }
    const auto number = at(place.number(buffer));
    if (!carried_[number] || open_[number] < 0) {
      open_[number] = static_cast<std::int64_t>(lifetimes.size());
      const int kind = kinds_.of(made, buffer, place);
      lifetimes.push_back({.bytes = made.bytes, .born = time_, .dies = kForGood, .kind = kind});
    }
    Lifetime& life = lifetimes[static_cast<std::size_t>(open_[number])];
    life.bytes = std::max(life.bytes, made.bytes);
    requests.push_back(static_cast<std::size_t>(open_[number]));
    bytes.push_back(made.bytes);
    ++time_;
  }

  void free(int buffer, const Place& place) {
    if (place.buffer(buffer).space != Space::device) return;
    const auto number = at(place.number(buffer));
    if (carried_[number]) return;  // kept for good
    lifetimes[static_cast<std::size_t>(open_[number])].dies = time_++;
  }

  const Program& program_;
  std::vector<bool> carried_;
  std::vector<std::int64_t> open_;  // by number of the buffer: its latest lifetime
  Kinds kinds_;
  std::int64_t time_ = 0;
};

}  // namespace

std::vector<Lifetime> lifetimes_of(const Program& program) {
  LifetimeReader reader(program);
  reader.read_all();
  return std::move(reader.lifetimes);
}

Bytes most_alive(const Program& program, Bytes granule) { return most_alive(lifetimes_of(program), granule); }

Script script_of(const Program& program, Bytes granule, std::int64_t effort) {
  LifetimeReader reader(program);
  reader.read_all();
  const Packing packing = pack(reader.lifetimes, granule, effort);
  Script script;
  for (std::size_t i = 0; i < reader.requests.size(); ++i) {
    script.requests.push_back({.bytes = reader.bytes[i], .offset = packing.offsets[reader.requests[i]]});
  }
  script.sections = std::move(reader.sections);
  script.granule = granule;
  script.size = packing.size;
  script.bound = packing.bound;
  return script;
}

}  // namespace vramfit::arena
