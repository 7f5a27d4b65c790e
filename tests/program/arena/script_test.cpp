#include "program/arena/script.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <map>
#include <string>

#include "base/error.h"
#include "program/make_program.h"
#include "program/readers/expand.h"
#include "program/readers/peaks.h"
#include "tests/support/hand_program.h"
#include "tests/support/random_jobs.h"

namespace vramfit::arena {

namespace {

using program::Program;
using testing::HandProgram;
using testing::ResolvedJob;
using Kind = program::Section::Kind;

constexpr std::int64_t kLittleEffort = 200'000;

/// Runs a program's requests as a rank does, step after step, at the offsets of its script.
class Player {
 public:
  Player(const Program& program, const Script& script)
      : program_(program), script_(script), live_(program::buffer_numbers(program), -1) {}

  /// "" if each request finds the bytes that the script has for it, in a range that is free.
  std::string play(int steps) {
    for (int step = 0; step <= steps; ++step) {
      for (std::size_t i = 0; i < program_.sections.size(); ++i) {
        const program::Section& section = program_.sections[i];
        if ((section.kind == Kind::load) != (step == 0)) continue;
        for (std::int64_t time = 0; time < section.times; ++time) {
          next_ = script_.sections[i];
          read_section(program_, section, *this);
        }
      }
    }
    return fault_;
  }

  void read(const program::Allocate& what, const program::Place& place) { allocate(what.buffer, place); }
  void read(const program::Free& what, const program::Place& place) { free(what.buffer, place); }
  void read(const program::Run& run, const program::Place& place) {
    const std::size_t first = next_;
    for (std::int64_t time = 0; time < run.times; ++time) {
      next_ = first;
      for (std::uint32_t i = 0; i < run.inside.count; ++i) {
        const program::Inside& step = place.code.inside[run.inside.first + i];
        step.what == program::Inside::What::allocate ? allocate(step.buffer, place) : free(step.buffer, place);
      }
    }
  }

 private:
  void allocate(int buffer, const program::Place& place) {
    const program::Buffer& made = place.buffer(buffer);
    if (made.space != program::Space::device) return;
    const Script::Request& request = script_.requests.at(next_++);
    const std::int64_t from = request.offset.n, to = from + made.bytes.n;
    const auto after = taken_.lower_bound(from);
    const bool overlaps =
        (after != taken_.end() && after->first < to) || (after != taken_.begin() && std::prev(after)->second > from);
    if (fault_.empty() && (overlaps || request.bytes != made.bytes || to > script_.size.n)) {
      fault_ = fmt::format("{} at {} of {} bytes", label_text(program_, place.segment_of(buffer), made.label), from,
                           made.bytes.n);
    }
    if (made.bytes.n > 0) taken_[from] = to;
    live_[static_cast<std::size_t>(place.number(buffer))] = from;
  }
  void free(int buffer, const program::Place& place) {
    if (place.buffer(buffer).space == program::Space::device)
      taken_.erase(live_[static_cast<std::size_t>(place.number(buffer))]);
  }

  const Program& program_;
  const Script& script_;
  std::vector<std::int64_t> live_;  // offsets, by number of the buffer
  std::map<std::int64_t, std::int64_t> taken_;
  std::size_t next_ = 0;
  std::string fault_;
};

std::string fault_of_script(const ResolvedJob& drawn) {
  if (drawn.job.runtime != Runtime::vramfit) return "";
  const Program program = program::make_program({.graph = drawn.graph,
                                                 .job = drawn.job,
                                                 .device = drawn.cluster.card.device,
                                                 .coords = {},
                                                 .run = {.clip = drawn.clip, .saves = true, .saves_full = true}});
  const Script script = script_of(program, kDeviceGranule, kLittleEffort);
  // Sections that save may hold more than a step; without them the bound is what lives at once.
  if (script.bound < folded_peaks(program, kDeviceGranule).rounded) return "the bound is below the folded peak";
  if (script.size < script.bound) return "the block is smaller than its bound";
  return Player(program, script).play(3);
}

}  // namespace

TEST_CASE("a buffer that a middle micro-batch frees and makes again lies where it lay") {
  HandProgram hand;
  hand.resident("shard", 4096);
  const int sum = hand.buffer("sum", 1024);
  const int next = hand.buffer("next", 2048);
  hand.begin(Kind::first).allocate(sum);
  hand.begin(Kind::middle).allocate(next).free(sum).allocate(sum).free(next);
  hand.begin(Kind::last).free(sum);
  Program program = hand.take();
  for (program::Section& section : program.sections) section.times = section.kind == Kind::middle ? 3 : 1;
  const Script script = script_of(program, kDeviceGranule);
  CHECK(script.sections == std::vector<std::size_t>{0, 1, 2, 4});
  CHECK(script.requests.size() == 4);
  CHECK(script.requests[3].offset == script.requests[1].offset);
  CHECK(script.size == Bytes{4096 + 1024 + 2048});
  CHECK(Player(program, script).play(3) == "");
}

TEST_CASE("what a call asks for inside has offsets too, and memory of another stream is refused") {
  HandProgram hand;
  hand.resident("shard", 512);
  program::Buffer elsewhere;
  elsewhere.stream = Stream::all_gather;
  const int side = hand.buffer("side", 512, elsewhere);
  hand.begin(Kind::last).allocate(side).free(side);
  CHECK_THROWS_AS(script_of(hand.take(), kDeviceGranule), NotModelled);
}

TEST_CASE("each request of random jobs finds its range free, in every step and micro-batch") {
  const testing::Trial trial = testing::try_random_jobs(120, 7000, fault_of_script);
  CHECK(trial.failure == "");
}

TEST_SUITE("full") {
  TEST_CASE("each request of 1,500 random jobs finds its range free, in every step and micro-batch") {
    const testing::Trial trial = testing::try_random_jobs(1500, 300'000, fault_of_script);
    CHECK(trial.failure == "");
  }
}

}  // namespace vramfit::arena
