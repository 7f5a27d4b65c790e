// Programs of what no job can ask for yet, written by hand: states in host memory, offloaded activations, adapters on
// 4-bit weights, paged states. Bytes by space, seconds and the check read each; figures are worked out beside them. The
// card is that of tests/support/unit_card.h: a byte takes a second, on the card or over the host's link.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "estimator/time/seconds.h"
#include "program/readers/bytes.h"
#include "program/readers/check.h"
#include "program/readers/host_bytes.h"
#include "program/readers/peaks.h"
#include "tests/support/hand_program.h"
#include "tests/support/summed_peaks.h"
#include "tests/support/unit_card.h"

namespace vramfit {
namespace {

using namespace program;  // NOLINT(google-build-using-namespace): the program's own words
using testing::HandProgram;
using Kind = Section::Kind;

const Buffer kPinned{.bytes = {}, .space = Space::pinned};
const Buffer kGradient{.bytes = {}, .category = Category::gradients};

double step_seconds(const Program& program) {
  return seconds_of(program, testing::unit_cluster(1, 1), testing::unit_efficiency()).step_seconds;
}

/// Of one space, from the events; the folded figure must be the same.
std::int64_t peak_bytes(const Program& program, Space space) {
  std::int64_t live = 0, peak = 0;
  for (const Event& event : ledger_of(program, {.space = space}).events) {
    live += event.bytes;
    peak = std::max(peak, live);
  }
  const FoldedPeaks folded = folded_peaks(program, Bytes{1});
  CHECK(folded.spaces[static_cast<std::size_t>(space)].n == peak);
  return peak;
}

/// How many of the waits can be left out, one at a time, without a fault.
int needless_waits(const Program& program) {
  int needless = 0;
  for (std::size_t i = 0; i < program.main.instructions.size(); ++i) {
    if (!std::holds_alternative<Wait>(program.main.instructions[i])) continue;
    Program without = program;
    without.main.instructions[i] = Mark{};
    needless += fault_of(without) ? 0 : 1;
  }
  return needless;
}

/// Each layer's update follows its backward pass. Its states come from the host while that runs, and go back while the
/// next layer's does.
Program offloaded_states(int layers) {
  HandProgram p;
  std::vector<int> weights, pinned;
  for (int layer = 0; layer < layers; ++layer) {
    weights.push_back(p.resident("weights", 10));
    pinned.push_back(p.resident("states on the host", 20, kPinned));
  }
  p.begin(Kind::last);
  int leaving = -1, left = -1;  // the states that go back, and the token of that
  for (int layer = layers - 1; layer >= 0; --layer) {
    const auto l = static_cast<std::size_t>(layer);
    const int states = p.buffer("states", 20), gradient = p.buffer("gradient", 10, kGradient);
    p.allocate(states).wait_for(Stream::to_device, Stream::compute).copy(pinned[l], states);
    const int arrived = p.record(Stream::to_device);
    p.allocate(gradient).run("backward", {{weights[l], How::read}, {gradient, How::write}}, 30);
    if (leaving >= 0) p.wait(left).free(leaving);
    p.wait(arrived).update({{weights[l], How::add}, {gradient, How::read}, {states, How::add}}, {{.bytes = 10}});
    p.free(gradient).wait_for(Stream::to_host, Stream::compute).copy(states, pinned[l]);
    leaving = states;
    left = p.record(Stream::to_host);
  }
  p.wait(left).free(leaving);
  return p.take();
}

/// Three layers keep 20 bytes each for backward. Those of the first two go to the host while the next layer runs, and
/// come back while backward of the layer after them does.
Program offloaded_activations() {
  HandProgram p;
  std::vector<int> pinned{p.resident("1 on the host", 20, kPinned), p.resident("2 on the host", 20, kPinned)};
  p.begin(Kind::last);
  const int first = p.buffer("1", 20), second = p.buffer("2", 20), third = p.buffer("3", 20);
  const int second_again = p.buffer("2 again", 20), first_again = p.buffer("1 again", 20);
  const auto leave = [&](int activation, int host) {
    p.wait_for(Stream::to_host, Stream::compute).copy(activation, host);
    return p.record(Stream::to_host);
  };
  const auto come_back = [&](int host, int activation) {
    p.allocate(activation).wait_for(Stream::to_device, Stream::compute).copy(host, activation);
    return p.record(Stream::to_device);
  };
  p.allocate(first).run("forward 1", {{first, How::write}}, 20);
  const int first_left = leave(first, pinned[0]);
  p.allocate(second).run("forward 2", {{first, How::read}, {second, How::write}}, 20);
  p.wait(first_left).free(first);
  const int second_left = leave(second, pinned[1]);
  p.allocate(third).run("forward 3", {{second, How::read}, {third, How::write}}, 20);
  p.wait(second_left).free(second);
  const int second_is_back = come_back(pinned[1], second_again);
  p.run("backward 3", {{third, How::read}}, 20).free(third);
  const int first_is_back = come_back(pinned[0], first_again);
  p.wait(second_is_back).run("backward 2", {{second_again, How::read}}, 20).free(second_again);
  p.wait(first_is_back).run("backward 1", {{first_again, How::read}}, 20).free(first_again);
  return p.take();
}

/// y = x W + x A B with W of 64 x 64 in 4 bits, a scale of 8 bits for each 64 of them and one of 32 bits for all
/// scales; A and B of rank 4 in bf16, their two states in fp32; 8 tokens in bf16. W is made again in backward.
Program adapters_on_four_bits() {
  HandProgram p;
  const int codes = p.resident("codes", 64 * 64 / 2), scales = p.resident("scales", 64 * 64 / 64);
  const int scale = p.resident("scale of scales", 4);
  const int adapters = p.resident("A, B", 2 * 64 * 4 * 2), states = p.resident("states", 2 * 64 * 4 * 2 * 4);
  p.begin(Kind::last);
  const int x = p.buffer("x", 8 * 64 * 2), inner = p.buffer("x A", 8 * 4 * 2), y = p.buffer("y", 8 * 64 * 2);
  const auto with_weights = [&](const char* name, std::vector<Access> accesses) {
    const int whole = p.buffer("W", 64 * 64 * 2);
    p.allocate(whole).run("dequantize",
                          {{codes, How::read}, {scales, How::read}, {scale, How::read}, {whole, How::write}},
                          2048 + 64 + 4 + 8192);
    accesses.push_back({whole, How::read});
    p.run(name, accesses, 8192).free(whole);
  };
  p.allocate(x).run("inputs", {{x, How::write}}, 1024);
  p.allocate(y);
  with_weights("x W", {{x, How::read}, {y, How::write}});
  p.allocate(inner).run("x A", {{x, How::read}, {adapters, How::read}, {inner, How::write}}, 1024);
  p.run("+ x A B", {{inner, How::read}, {adapters, How::read}, {y, How::add}}, 1024);
  const int gradient = p.buffer("gradient of A, B", 2 * 64 * 4 * 2, kGradient), dx = p.buffer("gradient of x", 1024);
  p.allocate(gradient).run("backward of A, B",
                           {{y, How::read}, {x, How::read}, {inner, How::read}, {gradient, How::write}}, 2048);
  p.free(x).free(inner).allocate(dx);
  with_weights("backward of W", {{y, How::read}, {dx, How::write}});
  p.free(y).free(dx);
  p.update({{adapters, How::add}, {gradient, How::read}, {states, How::add}}, {{.bytes = 2 * 1024 + 1024 + 2 * 4096}});
  p.free(gradient);
  return p.take();
}

/// States that the driver moves to whoever touches them.
Program paged_states() {
  HandProgram p;
  const int weights = p.resident("weights", 10);
  const int states = p.resident("states", 40, {.bytes = {}, .space = Space::managed});
  p.begin(Kind::last);
  const int gradient = p.buffer("gradient", 10, kGradient);
  p.allocate(gradient).run("backward", {{weights, How::read}, {gradient, How::write}}, 30);
  p.update({{weights, How::add}, {gradient, How::read}, {states, How::add}}, {{.bytes = 110}});
  p.free(gradient);
  return p.take();
}

}  // namespace

TEST_CASE("states that are offloaded behind backward: two layers' are on the card at once, and copies are hidden") {
  const Program program = offloaded_states(4);
  CHECK(fault_of(program) == std::nullopt);
  CHECK(needless_waits(program) == 1);  // before the last free but one, after which nothing is allocated
  // Four layers' weights, two layers' states and a gradient; on the card, all would be 40 + 80 + 10.
  CHECK(peak_bytes(program, Space::device) == 4 * 10 + 2 * 20 + 10);
  CHECK(peak_bytes(program, Space::pinned) == 4 * 20);
  // A layer's copies of 20 s hide behind backward's 30 s; the last layer's states go back when nothing is left to do.
  CHECK(step_seconds(program) == 4 * (30 + 10) + 20);
}

TEST_CASE("activations that are offloaded: two layers' are on the card at once, and copies are hidden") {
  const Program program = offloaded_activations();
  CHECK(fault_of(program) == std::nullopt);
  CHECK(needless_waits(program) == 0);
  CHECK(peak_bytes(program, Space::device) == 2 * 20);  // instead of 3 x 20
  CHECK(peak_bytes(program, Space::pinned) == 2 * 20);
  CHECK(step_seconds(program) == 6 * 20);  // each copy takes as long as the layer it runs beside
}

TEST_CASE("adapters on 4-bit weights: the weights are whole only while a product reads them") {
  const Program program = adapters_on_four_bits();
  CHECK(fault_of(program) == std::nullopt);
  const std::int64_t resident = 2048 + 64 + 4 + 1024 + 4096;
  // In forward x, y and W are there. In backward, y, A's and B's gradient, x's gradient and W.
  CHECK(peak_bytes(program, Space::device) == resident + 1024 + 1024 + 1024 + 8192);
  const double forward = 1024 + (10308 + 8192) + 1024 + 1024, backward = 2048 + (10308 + 8192);
  CHECK(step_seconds(program) == forward + backward + 11264);
}

TEST_CASE("paged states: no part of the card's memory, and where it has no room for them updates wait for the pages") {
  const Program program = paged_states();
  CHECK(fault_of(program) == std::nullopt);
  CHECK(peak_bytes(program, Space::device) == 10 + 10);
  CHECK(peak_bytes(program, Space::managed) == 40);
  CHECK(managed_bytes(program) == Bytes{40});
  CHECK(host_bytes(program) == Bytes{});
  Cluster cluster = testing::unit_cluster(1, 1);
  const auto seconds_with = [&](Bytes memory) {
    cluster.card.memory = memory;
    return seconds_of(program, cluster, testing::unit_efficiency()).step_seconds;
  };
  const Bytes peak{512 + 512};  // as the caching allocator rounds weights and gradient
  CHECK(seconds_with(peak + Bytes{40}) == 30 + 110);
  CHECK(seconds_with(peak + Bytes{39}) == 30 + 80 + 110);
}

TEST_CASE("a kernel that touches host memory is found, and so is an update before its states have arrived") {
  Program program = offloaded_states(2);
  for (Instruction& instruction : program.main.instructions) {
    auto* run = std::get_if<Run>(&instruction);
    if (run != nullptr && run->kernel == Kernel::copy) run->kernel = Kernel::add;
  }
  CHECK(fault_of(program) == "add: touches states on the host, which lies in host memory");
}

}  // namespace vramfit
