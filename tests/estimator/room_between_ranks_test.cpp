// Programs of ranks that no job has yet, written by hand: two tensor ranks, a pipeline of two stages, experts whose
// tokens are bounded. Bytes, seconds and the check read each; figures are worked out beside them, on the card of
// tests/support/unit_card.h.
#include <doctest/doctest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "estimator/time/seconds.h"
#include "program/readers/check.h"
#include "program/readers/peaks.h"
#include "tests/support/hand_program.h"
#include "tests/support/unit_card.h"

namespace vramfit {
namespace {

using namespace program;  // NOLINT(google-build-using-namespace): the program's own words
using testing::HandProgram;
using Kind = Section::Kind;

const Efficiency kOne = testing::unit_efficiency();

void set_members(Program& program, Axis axis, std::int64_t members) {
  program.groups[static_cast<std::size_t>(axis)] = {members, 1};
}

std::vector<std::size_t> starts_of(const Program& program) {
  std::vector<std::size_t> positions;
  for (std::size_t i = 0; i < program.main.instructions.size(); ++i) {
    if (std::holds_alternative<Start>(program.main.instructions[i])) positions.push_back(i);
  }
  return positions;
}

/// y = (x A) B with x of 4 x 8, A of 8 x 16 split by columns, B of 16 x 8 by rows, all in fp32: each rank's y is a part
/// of a sum, and so is its gradient of x.
Program tensor_rank() {
  HandProgram p;
  const int weights = p.resident("A, B", (8 * 8 + 8 * 8) * 4);
  p.begin(Kind::last);
  const int x = p.buffer("x", 4 * 8 * 4), inner = p.buffer("x A", 4 * 8 * 4), y = p.buffer("y", 4 * 8 * 4);
  const int dx = p.buffer("gradient of x", 4 * 8 * 4);
  const auto sum = [&](int buffer) {
    return p.start({.collective = Collective::all_reduce, .axis = Axis::tensor, .accesses = {}}, {{buffer, How::add}});
  };
  p.allocate(x).run("inputs", {{x, How::write}}, 128);
  p.allocate(inner).run("x A", {{x, How::read}, {weights, How::read}, {inner, How::write}}, 256);
  p.allocate(y).run("(x A) B", {{inner, How::read}, {weights, How::read}, {y, How::write}}, 256);
  p.wait(sum(y)).run("loss", {{y, How::add}}, 128);
  p.allocate(dx).run("backward", {{y, How::read}, {inner, How::read}, {weights, How::add}, {dx, How::write}}, 512);
  const int summed = sum(dx);
  p.free(y).free(inner).free(x).run("norm", {{weights, How::read}}, 64);
  p.wait(summed).run("backward of what is before", {{dx, How::read}}, 128).free(dx);
  Program program = p.take();
  set_members(program, Axis::tensor, 2);
  return program;
}

/// A stage of a pipeline of two, of which each first runs as many forward passes ahead as stages follow it, then
/// forward and backward in turns. Activations have 40 bytes, what is sent 8.
class Stage {
 public:
  Stage(int stage, int micro_batches) : stage_(stage), activations_(static_cast<std::size_t>(micro_batches)) {
    p_.begin(Kind::last);
    int forward_passes = 0;
    for (; forward_passes < 1 - stage; ++forward_passes) forward(forward_passes);
    for (int m = 0; m < micro_batches; ++m) {
      if (forward_passes < micro_batches) forward(forward_passes++);
      backward(m);
    }
  }

  Program take() {
    for (const auto& [token, buffer] : sent_) p_.wait(token).free(buffer);
    Program program = p_.take();
    program.stage = stage_;
    set_members(program, Axis::pipeline, 2);
    return program;
  }

 private:
  int receive(const char* what) {
    const int buffer = p_.buffer(what, 8);
    p_.allocate(buffer);
    const Start start{.collective = Collective::receive, .axis = Axis::pipeline, .accesses = {}, .peer = 1 - stage_};
    p_.wait(p_.start(start, {{buffer, How::write}}));
    return buffer;
  }
  void send(int buffer) {
    const Start start{.collective = Collective::send, .axis = Axis::pipeline, .accesses = {}, .peer = 1 - stage_};
    sent_.emplace_back(p_.start(start, {{buffer, How::read}}), buffer);
  }

  void forward(int m) {
    int& activations = activations_[static_cast<std::size_t>(m)] = p_.buffer("activations", 40);
    std::vector<Access> accesses{{activations, How::write}};
    int input = -1;
    if (stage_ == 1) accesses.push_back({input = receive("input"), How::read});
    p_.allocate(activations);
    const int output = p_.buffer("output", 8);
    if (stage_ == 0) p_.allocate(output), accesses.push_back({output, How::write});
    p_.run("forward", accesses, 2);
    if (input >= 0) p_.free(input);
    if (stage_ == 0) send(output);
  }

  void backward(int m) {
    const int activations = activations_[static_cast<std::size_t>(m)];
    std::vector<Access> accesses{{activations, How::read}};
    int gradient = -1, output = -1;
    if (stage_ == 0) accesses.push_back({gradient = receive("gradient"), How::read});
    if (stage_ == 1) p_.allocate(output = p_.buffer("gradient", 8)), accesses.push_back({output, How::write});
    p_.run("backward", accesses, 4).free(activations);
    if (gradient >= 0) p_.free(gradient);
    if (output >= 0) send(output);
    // The other stage has what belongs to this micro-batch by now.
    if (stage_ == 0) p_.wait(sent_.front().first).free(sent_.front().second), sent_.erase(sent_.begin());
  }

  HandProgram p_;
  int stage_;
  std::vector<int> activations_;           // by micro-batch
  std::vector<std::pair<int, int>> sent_;  // tokens and buffers
};

std::vector<Program> pipeline(int micro_batches) {
  return {Stage(0, micro_batches).take(), Stage(1, micro_batches).take()};
}

/// Eight tokens of 16 bytes go to the two of four experts that want them: 256 bytes in all ranks' mean, but up to twice
/// as many on one rank.
Program experts() {
  HandProgram p;
  const int weights = p.resident("experts", 100);
  p.begin(Kind::last);
  const Buffer routed{.bytes = {}, .expected = Bytes{256}};
  const int tokens = p.buffer("tokens", 8 * 16), sent = p.buffer("routed", 512, routed);
  const int done = p.buffer("of experts", 512, routed);
  const auto exchange = [&](int buffer) {
    return p.start({.collective = Collective::all_to_all, .axis = Axis::expert, .accesses = {}, .expected = Bytes{256}},
                   {{buffer, How::add}});
  };
  p.allocate(tokens).run("router", {{tokens, How::write}}, 128);
  p.allocate(sent).run("permute", {{tokens, How::read}, {sent, How::write}}, 256);
  p.wait(exchange(sent)).allocate(done);
  p.run("experts", {{sent, How::read}, {weights, How::read}, {done, How::write}}, 356);
  p.free(sent).wait(exchange(done)).run("combine", {{done, How::read}, {tokens, How::add}}, 384);
  p.free(done).free(tokens);
  Program program = p.take();
  set_members(program, Axis::expert, 4);
  return program;
}

}  // namespace

TEST_CASE("two tensor ranks: half of the weights each, and what sums wait for is what no kernel hides") {
  const Program program = tensor_rank();
  CHECK(fault_of(program) == std::nullopt);
  CHECK(fault_between(std::vector{program, program}) == std::nullopt);
  // Half of A and of B; x, x A, y and the gradient of x.
  CHECK(folded_peaks(program, Bytes{1}).requested.n == 512 + 4 * 128);
  // Each sum sends 2 x 128 x 1/2 bytes. That of y is waited for; that of dx hides 64 s.
  CHECK(seconds_of(program, testing::unit_cluster(1, 2), kOne).step_seconds ==
        128 + 256 + 256 + 128 + 128 + 512 + 128 + 128);
}

TEST_CASE("ranks that start other collectives on one axis than others of their stage are found") {
  const Program program = tensor_rank();
  Program other = program;
  std::get<Start>(other.main.instructions[starts_of(other)[1]]).collective = Collective::all_to_all;
  CHECK(fault_between(std::vector{program, other}) ==
        "axis tensor: as number 2 some ranks start all_reduce of 128 bytes, others all_to_all of 128 bytes");
  other.main.instructions[starts_of(other)[1]] = Mark{};
  CHECK(fault_between(std::vector{program, other}) ==
        "axis tensor: as number 2 some ranks start all_reduce of 128 bytes, others nothing more");
}

TEST_CASE(
    "a pipeline of two stages takes (micro-batches + stages - 1) x (F + B), and the first keeps two micro-batches") {
  Cluster free_links = testing::unit_cluster(1, 2);
  free_links.card.link_bandwidth = 1e30;
  for (const int micro_batches : {1, 3, 8}) {
    CAPTURE(micro_batches);
    const std::vector<Program> stages = pipeline(micro_batches);
    for (const Program& stage : stages) CHECK(fault_of(stage) == std::nullopt);
    CHECK(fault_between(stages) == std::nullopt);
    const std::vector<StepTime> times = seconds_of(stages, free_links, kOne);
    CHECK(times[0].step_seconds == (micro_batches + 2 - 1) * (2 + 4));
    CHECK(times[1].step_seconds == (micro_batches + 2 - 1) * (2 + 4) - 4);
    CHECK(times[0].compute_seconds == micro_batches * (2 + 4));
    // Stage 0, while it runs backward: activations and outputs of two micro-batches, and a gradient.
    const std::int64_t most = folded_peaks(stages[0], Bytes{1}).requested.n;
    CHECK(most == (micro_batches == 1 ? 40 + 8 + 8 : 2 * 40 + 2 * 8 + 8));
  }
}

TEST_CASE("transfers that take time are waited for where nothing else is left to do") {
  // A send of 8 bytes takes 8 s. Stage 0: F0 0-2, sent 2-10; stage 1: F0 10-12, B0 12-16, sent 16-24; stage 0: B0
  // 24-28.
  const std::vector<StepTime> times = seconds_of(pipeline(1), testing::unit_cluster(1, 2), kOne);
  CHECK(times[0].step_seconds == 28);
  CHECK(times[0].communication_seconds == 8 + 8);
  CHECK(times[0].idle_seconds == 28 - 6);
}

TEST_CASE("stages that wait for each other, or send what the other does not receive, are found") {
  std::vector<Program> stages = pipeline(3);
  // Stage 0 asks for its gradient before it sends what that is the gradient of.
  std::vector<Instruction>& code = stages[0].main.instructions;
  const std::vector<std::size_t> starts = starts_of(stages[0]);
  std::vector<Program> stuck = stages;
  const auto is_receive = [&](std::size_t i) { return std::get<Start>(code[i]).collective == Collective::receive; };
  const std::size_t receive = *std::ranges::find_if(starts, is_receive);
  std::vector<Instruction>& late = stuck[0].main.instructions;
  std::rotate(late.begin() + static_cast<std::ptrdiff_t>(starts[0]),
              late.begin() + static_cast<std::ptrdiff_t>(receive),
              late.begin() + static_cast<std::ptrdiff_t>(receive) + 2);  // the receive and its wait go first
  CHECK(fault_between(stuck) == "stage 0 waits for what never comes");
  CHECK_THROWS_AS(seconds_of(stuck, testing::unit_cluster(1, 2), kOne), std::invalid_argument);
  std::get<Start>(code[starts[0]]).bytes = Bytes{4};
  CHECK(fault_between(stages) == "stage 0 sends 4 bytes to stage 1 as number 1, which receives 8 bytes");
  code[starts[0]] = Mark{};
  CHECK(fault_between(stages) == "stage 0 sends nothing to stage 1 as number 3, which receives 8 bytes");
}

TEST_CASE("experts: verdicts take the bound of what is routed, seconds what is expected of it") {
  const Program program = experts();
  CHECK(fault_of(program) == std::nullopt);
  const FoldedPeaks peaks = folded_peaks(program, Bytes{1});
  CHECK(peaks.requested.n == 100 + 128 + 512 + 512);
  CHECK(peaks.expected.n == 100 + 128 + 256 + 256);
  // Two exchanges of 256 x 3/4 bytes, each waited for at once.
  CHECK(seconds_of(program, testing::unit_cluster(1, 4), kOne).step_seconds == 128 + 256 + 192 + 356 + 192 + 384);
}

TEST_CASE("an all-to-all that ranks can't share, or that expects more than its bound, is found") {
  Program program = experts();
  set_members(program, Axis::expert, 3);
  CHECK(fault_of(program) == "collective: 512 bytes can't be shared between 3 ranks");
  program = experts();
  std::get<Start>(program.main.instructions[starts_of(program)[0]]).expected = Bytes{513};
  CHECK(fault_of(program) == "collective: more is expected than its bound");
}

}  // namespace vramfit
