// Small programs and their seconds, reckoned by hand in the comments, on a card whose works are their own durations
// (tests/support/unit_card.h).
#include "estimator/time/seconds.h"

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/unit_card.h"

namespace vramfit {
namespace {

using namespace program;  // NOLINT(google-build-using-namespace): the program's own words

constexpr auto kShard = static_cast<std::size_t>(Axis::shard);
using testing::unit_cluster;
const Efficiency kOne = testing::unit_efficiency();

Work bytes(double bytes, std::int64_t launches = 1) { return {.launches = launches, .bytes = bytes}; }

// Writes the instructions of a program of one section, or of a block.
struct Writer {
  Code code;
  int tokens = 0;

  Writer& run(const Work& work, std::int64_t times = 1) {
    code.instructions.emplace_back(
        Run{.accesses = {}, .inside = {}, .work = {static_cast<std::uint32_t>(code.work.size()), 1}, .times = times});
    code.work.push_back(work);
    return *this;
  }
  int start(Collective collective, std::int64_t bytes, Axis axis = Axis::shard) {
    code.instructions.emplace_back(
        Start{.collective = collective, .axis = axis, .accesses = {}, .bytes = Bytes{bytes}, .token = tokens});
    return tokens++;
  }
  Writer& wait(int token) {
    code.instructions.emplace_back(Wait{token});
    return *this;
  }
  Writer& call(int block) {
    code.instructions.emplace_back(Call{.block = block, .segment = 0, .bindings = {}});
    return *this;
  }
};

// Of one section; two ranks share every axis, so that a gather of 2 b bytes takes b seconds.
Program program_of(const Writer& writer, std::int64_t times = 1) {
  const std::size_t size = writer.code.instructions.size();
  return {.labels = {},
          .segments = {"segment"},
          .outputs = {},
          .views = {},
          .main = writer.code,
          .blocks = {},
          .sections = {{times == 1 ? Section::Kind::last : Section::Kind::middle, 0, size, times}},
          .groups = {{{2, 1}, {2, 1}, {2, 1}}},
          .tokens = writer.tokens};
}

StepTime time_of(const Program& program, const Efficiency& efficiency = kOne) {
  return seconds_of(program, unit_cluster(1, 8), efficiency);
}

Efficiency with_launches(double seconds) {
  Efficiency efficiency = kOne;
  efficiency.launch_seconds = seconds;
  return efficiency;
}

}  // namespace

TEST_CASE("1. a kernel takes the longer of its FLOPs and its bytes, at the rate of its dtype and kind") {
  using Unit = Work::Unit;
  Writer w;
  w.run({.unit = Unit::product, .dtype = Dtype::f32, .flops = 6, .bytes = 5});       // 6 / 1
  w.run({.unit = Unit::product, .dtype = Dtype::bf16, .flops = 6, .bytes = 5});      // 6 / 2 < 5 bytes
  w.run({.unit = Unit::product, .dtype = Dtype::f8_e4m3, .flops = 20, .bytes = 3});  // 20 / 4
  w.run({.unit = Unit::attention, .dtype = Dtype::f16, .flops = 7, .bytes = 2});     // 7 / (2 x 0.5)
  const StepTime time = time_of(program_of(w));
  CHECK(time.step_seconds == 6 + 5 + 5 + 7);
  CHECK(time.compute_seconds == 23);
  CHECK(time.idle_seconds == 0);
}

TEST_CASE("2. many short kernels are as slow as the host launches them") {
  Writer w;
  w.run(bytes(1, 10));  // ten kernels of 0.1 s
  // A launch takes 1 s: the tenth is launched after 10 s and runs 0.1 s.
  const StepTime time = time_of(program_of(w), with_launches(1));
  CHECK(time.step_seconds == doctest::Approx(10.1));
  CHECK(time.compute_seconds == 1);
  CHECK(time.idle_seconds == doctest::Approx(9.1));
}

TEST_CASE("2b. a call of PyTorch's library takes the host its own time, whose end launches the first kernel") {
  Writer w;
  w.run(bytes(1)).run(bytes(1, 2));
  for (Instruction& instruction : w.code.instructions) std::get<Run>(instruction).kernel = Kernel::call;
  Efficiency efficiency = with_launches(1);
  efficiency.eager_call_seconds = 5;
  // The first kernel runs from 5 to 6; the second call's two of half a second are launched after 10 and 11.
  CHECK(time_of(program_of(w), efficiency).step_seconds == 11.5);
}

TEST_CASE("3. behind a long kernel, launches cost nothing") {
  Writer w;
  w.run(bytes(20)).run(bytes(4, 4)).run(bytes(1));
  // Launched after 1, 2 to 5 and 6 s; the stream begins after 1 s and is busy from then on: 1 + 20 + 4 + 1.
  CHECK(time_of(program_of(w), with_launches(1)).step_seconds == 26);
}

TEST_CASE("4. a gather that is waited for at once hides behind nothing") {
  Writer w;
  w.run(bytes(3));
  const int gather = w.start(Collective::all_gather, 8);  // from 3 on, 8 x 1/2 = 4 s
  w.wait(gather).run(bytes(5));
  const StepTime time = time_of(program_of(w));
  CHECK(time.step_seconds == 3 + 4 + 5);
  CHECK(time.communication_seconds == 4);
  CHECK(time.idle_seconds == 4);
}

TEST_CASE("5. a gather that is started before a layer hides behind that layer") {
  for (const std::int64_t size : {8, 20}) {
    Writer w;
    w.run(bytes(1));
    const int gather = w.start(Collective::all_gather, size);  // begins after 1 s, takes size / 2
    w.run(bytes(7)).wait(gather).run(bytes(2));
    // 4 s hide behind 7; of 10 s, 3 don't.
    CHECK(time_of(program_of(w)).step_seconds == (size == 8 ? 1 + 7 + 2 : 1 + 10 + 2));
  }
}

TEST_CASE("6. collectives of one axis follow each other, those of two axes don't") {
  for (const Axis second : {Axis::shard, Axis::replicate}) {
    Writer w;
    const int a = w.start(Collective::all_gather, 6);              // 0 to 3
    const int b = w.start(Collective::reduce_scatter, 8, second);  // 3 to 7, or 0 to 4
    w.run(bytes(1)).wait(a).run(bytes(1)).wait(b).run(bytes(1));   // after a: 3 to 4; after b: 7 to 8, or 4 to 5
    CHECK(time_of(program_of(w)).step_seconds == (second == Axis::shard ? 8 : 5));
  }
}

TEST_CASE(
    "7. a ring moves (n - 1) / n of the data in n - 1 steps, a sum twice that, and each collective has its latency") {
  Writer w;
  w.wait(w.start(Collective::all_gather, 100));
  w.wait(w.start(Collective::all_reduce, 100));
  Program program = program_of(w);
  Efficiency efficiency = kOne;
  efficiency.collective_base_seconds = 2;
  efficiency.collective_step_seconds = 0.5;
  program.groups[kShard] = {4, 1};  // 2 + 75 + 3 steps, then 2 + 2 x (75 + 3 steps)
  CHECK(time_of(program, efficiency).step_seconds == 78.5 + 155);
  efficiency.link_share = 0.5;  // sums run on switches that add: their share is another
  CHECK(time_of(program, efficiency).step_seconds == 153.5 + 155);
  efficiency.link_share_all_reduce = 0.25;
  CHECK(time_of(program, efficiency).step_seconds == 153.5 + 605);
  program.groups[kShard] = {1, 1};
  CHECK(time_of(program, efficiency).step_seconds == 0);
}

TEST_CASE("8. across nodes a group uses the rails of all its members on a node, up to the link") {
  Writer w;
  w.wait(w.start(Collective::all_gather, 16));
  Program program = program_of(w);
  const auto seconds = [&](const Group& group, std::int64_t nodes, std::int64_t cards) {
    program.groups[kShard] = group;
    return seconds_of(program, unit_cluster(nodes, cards), kOne).step_seconds;
  };
  CHECK(seconds({8, 1}, 1, 8) == 14);  // 16 x 7/8 over the link
  CHECK(seconds({8, 1}, 4, 2) == 28);  // two rails of 0.25: 14 / 0.5
  CHECK(seconds({8, 1}, 2, 4) == 14);  // four rails are as fast as the link
  CHECK(seconds({2, 8}, 2, 8) == 32);  // replicas: one card of each node, 8 / 0.25
}

TEST_CASE("8b. steps between nodes have a latency of their own, which grows with the nodes") {
  Writer w;
  w.wait(w.start(Collective::all_gather, 0));
  Program program = program_of(w);
  Efficiency efficiency = kOne;
  efficiency.collective_step_seconds = 1;
  efficiency.network_step_seconds = 100;
  const auto seconds = [&](const Group& group, std::int64_t nodes, std::int64_t cards) {
    program.groups[kShard] = group;
    return seconds_of(program, unit_cluster(nodes, cards), efficiency).step_seconds;
  };
  CHECK(seconds({8, 1}, 1, 8) == 7);
  CHECK(seconds({8, 1}, 4, 2) == 3 * 100 + 4);
  CHECK(seconds({32, 1}, 4, 8) == 3 * 100 + 28);
  CHECK(seconds({4, 8}, 4, 8) == 3 * 100);  // replicas: one card of each node
}

TEST_CASE("9. on CPU the host computes itself, and collectives go on beside it") {
  Cluster cluster = unit_cluster(1, 2);
  cluster.card.device.kind = DeviceKind::cpu;
  cluster.card.device.onednn_bf16 = false;
  Writer w;
  const int gather = w.start(Collective::all_gather, 20);  // begins after its launch, 1 s, and takes 10
  w.run(bytes(3, 2));                                      // 2 launches and 3 s: until 6
  w.run({.unit = Work::Unit::product, .dtype = Dtype::bf16, .flops = 1, .bytes = 0});  // 1 / (2 x 0.5), from 7 to 8
  w.wait(gather).run(bytes(1));                                                        // until 11; then 1 + 1
  CHECK(seconds_of(program_of(w), cluster, with_launches(1)).step_seconds == 13);
}

TEST_CASE("10. the update follows what sums are waited for, and a step ends when the last stream does") {
  Writer w;
  w.run(bytes(2));
  const int first = w.start(Collective::all_reduce, 4, Axis::replicate);  // 2 to 6
  w.run(bytes(3));                                                        // until 5
  const int last = w.start(Collective::all_reduce, 2, Axis::replicate);   // 6 to 8
  w.wait(first).wait(last).run(bytes(1));                                 // 8 to 9
  w.start(Collective::all_gather, 6);                                     // 9 to 12: nobody waits for it
  const StepTime time = time_of(program_of(w));
  CHECK(time.step_seconds == 12);
  CHECK(time.compute_seconds == 6);
  CHECK(time.communication_seconds == 4 + 2 + 3);
}

TEST_CASE("11. parts of a run are as many kernels") {
  Writer parts, kernels;
  parts.run(bytes(2, 2), 3);
  for (int i = 0; i < 3; ++i) kernels.run(bytes(2, 2));
  for (const double launch : {0.0, 0.5, 5.0}) {
    CHECK(time_of(program_of(parts), with_launches(launch)).step_seconds ==
          time_of(program_of(kernels), with_launches(launch)).step_seconds);
  }
}

TEST_CASE("12. a middle micro-batch many times: a host that is ahead is caught up with, then sets the pace") {
  Writer w;
  w.run(bytes(2, 3));  // 2 s of kernels, launched in 3
  Program program = program_of(w, 1000);
  program.main.work.push_back(bytes(100));
  program.main.instructions.emplace_back(Run{.accesses = {}, .inside = {}, .work = {1, 1}, .times = 1});
  program.sections.insert(program.sections.begin(), {Section::Kind::first, 1, 2, 1});
  // First: launched after 1 s, done after 101. Of the middle ones, the host has launched the n-th after 1 + 3 n, and
  // the stream, busy without a break until it waits, is done after 101 + 2 n; from n = 100 on the host is behind. The
  // last kernel, of 2/3 s, is launched after 3001.
  CHECK(time_of(program, with_launches(1)).step_seconds == doctest::Approx(3001 + 2.0 / 3));
  program.sections[1].times = 10;
  CHECK(time_of(program, with_launches(1)).step_seconds == 121);
}

TEST_CASE("13. streams run beside each other, from the point of another that they wait for") {
  for (const bool waits : {true, false}) {
    Writer w;
    w.run(bytes(4)).run(bytes(3)).run(bytes(2));  // until 4 beside; until 3; from 4 or from 3 on
    std::vector<Instruction>& code = w.code.instructions;
    std::get<Run>(code[0]).stream = Stream::all_gather;
    if (waits) code.insert(code.begin() + 2, {Record{0, Stream::all_gather}, Wait{0, Stream::compute}});
    w.tokens = 1;
    const StepTime time = time_of(program_of(w));
    CHECK(time.step_seconds == (waits ? 4 + 2 : 3 + 2));
    CHECK(time.compute_seconds == 3 + 2);
  }
}

TEST_CASE("14. a collective begins when the stream that starts it gets there, and only steady steps count") {
  Writer w;
  w.run(bytes(5)).run(bytes(1));
  std::get<Run>(w.code.instructions[1]).stream = Stream::reduce_scatter;
  const int sum = w.start(Collective::reduce_scatter, 8);  // from 1 on, beside the compute stream: until 5
  std::get<Start>(w.code.instructions[2]).stream = Stream::reduce_scatter;
  w.wait(sum).run(bytes(2));
  Program program = program_of(w);
  CHECK(time_of(program).step_seconds == 5 + 2);
  program.sections.push_back(program.sections.front());
  program.sections.front().steps = Section::Steps::first;
  program.sections.back().steps = Section::Steps::later;
  CHECK(time_of(program).step_seconds == 5 + 2);
}

TEST_CASE("15. copies to the host and from it go on beside kernels and each other, at the speed of the host's link") {
  const Work copied{.unit = Work::Unit::host_link, .bytes = 6};
  Writer w;
  w.run(bytes(4)).run(copied).run(copied).run(bytes(5)).run(bytes(3));
  std::vector<Instruction>& code = w.code.instructions;
  std::get<Run>(code[1]).stream = Stream::to_host;    // 4 to 10, once the first kernel is done
  std::get<Run>(code[2]).stream = Stream::to_device;  // 0 to 6
  // The kernel of 5 s follows the first, until 9; the last one waits for what was copied to the host: 10 to 13.
  code.insert(code.begin() + 1, {Record{0, Stream::compute}, Wait{0, Stream::to_host}});
  code.insert(code.end() - 1, {Record{1, Stream::to_host}, Wait{1, Stream::compute}});
  w.tokens = 2;
  const StepTime time = time_of(program_of(w));
  CHECK(time.step_seconds == 13);
  CHECK(time.compute_seconds == 4 + 5 + 3);
  Cluster slow = unit_cluster(1, 8);
  slow.card.pcie_bandwidth = 0.5;  // 12 s each: 4 to 16, then 3
  CHECK(seconds_of(program_of(w), slow, kOne).step_seconds == 19);
}

TEST_CASE("16. an all-to-all takes as long as what is expected of it, not as its bound") {
  Writer w;
  w.wait(w.start(Collective::all_to_all, 100, Axis::expert));
  Program program = program_of(w);
  program.groups[static_cast<std::size_t>(Axis::expert)] = {4, 1};
  CHECK(time_of(program).step_seconds == 75);
  std::get<Start>(program.main.instructions[0]).expected = Bytes{40};
  CHECK(time_of(program).step_seconds == 30);
}

TEST_CASE("calls of blocks, and repeated sections, take as long as all of their instructions, to the last bit") {
  std::mt19937_64 random(1);
  const auto pick = [&](int below) { return static_cast<int>(random() % static_cast<std::uint64_t>(below)); };
  for (int round = 0; round < 200; ++round) {
    Writer block, folded, unrolled;
    for (int i = pick(6); i >= 0; --i) block.run(bytes(pick(1000) / 64.0, pick(4)));
    const int times = 1 + pick(6), calls = 1 + pick(4);
    std::vector<std::pair<Axis, int>> gathers;
    for (int call = 0; call < calls; ++call) gathers.emplace_back(static_cast<Axis>(pick(kAxes)), pick(40));
    const auto write = [&](Writer& to, bool calls_blocks) {
      for (const auto& [axis, size] : gathers) {
        const int token = to.start(Collective::all_gather, size, axis);
        if (calls_blocks) {
          to.call(0);
        } else {
          for (const Work& work : block.code.work) to.run(work);
        }
        if (size % 3 > 0) to.wait(token);
      }
    };
    write(folded, true);
    for (int i = 0; i < times; ++i) write(unrolled, false);
    Program program = program_of(folded, times);
    program.blocks.push_back({block.code, 0});
    const Efficiency efficiency = with_launches(pick(100) / 16.0);
    const StepTime a = time_of(program, efficiency), b = time_of(program_of(unrolled), efficiency);
    CHECK(a.step_seconds == b.step_seconds);
    CHECK(a.compute_seconds == b.compute_seconds);
    CHECK(a.communication_seconds == b.communication_seconds);
  }
}

}  // namespace vramfit
