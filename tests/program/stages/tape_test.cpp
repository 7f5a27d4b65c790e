#include "program/stages/tape.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/support/devices.h"
#include "tests/support/tiny_graph.h"

namespace vramfit {

namespace {

using testing::tiny_graph;

using testing::kCpu;

struct Tapes {
  Graph graph = tiny_graph({.blocks = 4});
  Precision precision = precision_named("fp32");
  std::vector<bool> trainable = std::vector<bool>(graph.parameters.size(), true);

  std::vector<std::shared_ptr<const SegmentTape>> make() const {
    return make_shared_tapes(
        {.graph = graph, .precision = precision, .device = kCpu, .shape = {1, 8}, .trainable = trainable});
  }
};

std::vector<int> ops_run(const std::vector<TapeAction>& actions, TapeAction::Do what) {
  std::vector<int> ops;
  for (const TapeAction& action : actions) {
    if (action.what == what) ops.push_back(action.op);
  }
  return ops;
}

}  // namespace

TEST_CASE("layers that are built alike share one tape; embedding, head and loss have their own") {
  const auto tapes = Tapes().make();
  REQUIRE(tapes.size() == 7);
  CHECK(tapes[1] == tapes[2]);
  CHECK(tapes[1] == tapes[4]);
  CHECK(tapes[0] != tapes[1]);
  CHECK(tapes[5] != tapes[6]);
}

TEST_CASE("a frozen layer does not share the tape of a trained one, and keeps no input of its linear") {
  Tapes tapes;
  tapes.trainable[2] = false;  // layers.1.proj
  const auto made = tapes.make();
  CHECK(made[1] != made[2]);
  CHECK(made[1] == made[3]);
  CHECK(made[2]->rules[0].saved.empty());
  CHECK(!made[3]->rules[0].saved.empty());
}

TEST_CASE("nothing runs backward below the lowest trainable op") {
  Tapes tapes;
  tapes.trainable[0] = tapes.trainable[1] = false;  // embedding and layers.0
  const auto made = tapes.make();
  CHECK_FALSE(made[0]->has_backward);
  CHECK_FALSE(made[1]->has_backward);
  CHECK(made[2]->has_backward);
  CHECK_FALSE(made[2]->input_wants_gradient);
}

TEST_CASE("backward is forward's list reversed, and recompute leaves out what nobody reads") {
  const auto made = Tapes().make();
  CHECK(ops_run(made[1]->forward, TapeAction::Do::run) == std::vector{0, 1, 2});
  CHECK(ops_run(made[1]->backward, TapeAction::Do::backward) == std::vector{2, 1, 0});
  // Backward reads x and the activation's input; the activation and the addition would only rebuild the output.
  CHECK(ops_run(made[1]->full.recompute, TapeAction::Do::run) == std::vector{0});
}

TEST_CASE("copied tapes are those that are shared") {
  const Tapes tapes;
  const auto shared = tapes.make();
  const std::vector<SegmentTape> copies = make_tapes({.graph = tapes.graph,
                                                      .precision = tapes.precision,
                                                      .device = kCpu,
                                                      .shape = {1, 8},
                                                      .trainable = tapes.trainable});
  REQUIRE(copies.size() == shared.size());
  for (std::size_t i = 0; i < copies.size(); ++i) {
    CHECK(copies[i].forward.size() == shared[i]->forward.size());
    CHECK(copies[i].backward.size() == shared[i]->backward.size());
    CHECK(copies[i].input_wants_gradient == shared[i]->input_wants_gradient);
  }
}

}  // namespace vramfit
