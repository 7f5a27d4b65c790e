// A chunked loss whose gradients are made in forward: the op's backward ends the forward pass.
#include <doctest/doctest.h>

#include <algorithm>

#include "program/stages/tape.h"
#include "tests/support/config_file.h"
#include "tests/support/devices.h"

namespace vramfit {

namespace {

using TapeDo = TapeAction::Do;

using testing::kCpu;

/// The segment of head and loss, and its tape.
struct Head {
  explicit Head(bool in_forward)
      : graph(build_graph(testing::small_model("llama"), {.chunks = 3, .gradients_in_forward = in_forward})),
        trainable(graph.parameters.size(), true) {}
  SegmentTape tape() const {
    return make_tapes({.graph = graph, .precision = precision, .device = kCpu, .shape = {1, 8}, .trainable = trainable})
        .back();
  }
  const Segment& segment() const { return graph.segments.back(); }
  int loss() const { return static_cast<int>(segment().ops.size()) - 1; }
  int hidden() const { return segment().ops.back().inputs[0]; }
  void train_nothing_but_head() {
    trainable.assign(trainable.size(), false);
    trainable[static_cast<std::size_t>(segment().ops.back().parameters[0].parameter)] = true;
  }
  Graph graph;
  Precision precision = precision_named("fp32");
  std::vector<bool> trainable;
};

bool has(const std::vector<TapeAction>& actions, TapeDo what, int op_or_value) {
  return std::ranges::any_of(actions, [&](const TapeAction& action) {
    return action.what == what && (what == TapeDo::drop_value ? action.value : action.op) == op_or_value;
  });
}

}  // namespace

TEST_CASE("gradients made in forward leave backward nothing of the loss, and forward drops the hidden states") {
  const Head head(true);
  const SegmentTape tape = head.tape();
  REQUIRE(tape.forward.size() >= 3);
  const std::size_t last = tape.forward.size() - 1;
  CHECK(tape.forward[last - 2].what == TapeDo::run);
  CHECK(tape.forward[last - 1].what == TapeDo::backward);
  CHECK(tape.forward[last - 1].op == head.loss());
  CHECK(tape.forward[last - 1].input_gradients[0].mode == GradientTarget::Mode::fresh);
  CHECK(tape.forward[last - 1].input_gradients[1].mode == GradientTarget::Mode::none);
  CHECK(tape.forward[last].what == TapeDo::drop_value);
  CHECK(tape.forward[last].value == head.hidden());
  CHECK_FALSE(has(tape.backward, TapeDo::backward, head.loss()));
  CHECK(has(tape.backward, TapeDo::backward, head.loss() - 1));  // the norm before it
}

TEST_CASE("gradients made in backward leave forward the hidden states") {
  const Head head(false);
  const SegmentTape tape = head.tape();
  CHECK_FALSE(has(tape.forward, TapeDo::backward, head.loss()));
  CHECK_FALSE(has(tape.forward, TapeDo::drop_value, head.hidden()));
  CHECK(has(tape.backward, TapeDo::backward, head.loss()));
  CHECK(has(tape.backward, TapeDo::drop_value, head.hidden()));
}

TEST_CASE("a head that is all that is trained makes no gradient of hidden states in forward either") {
  Head head(true);
  head.train_nothing_but_head();
  const SegmentTape tape = head.tape();
  REQUIRE(has(tape.forward, TapeDo::backward, head.loss()));
  const auto made = std::ranges::find(tape.forward, TapeDo::backward, &TapeAction::what);
  CHECK(made->input_gradients[0].mode == GradientTarget::Mode::none);
  CHECK(tape.has_backward);
  CHECK(std::ranges::count(tape.backward, TapeDo::backward, &TapeAction::what) == 0);
}

TEST_CASE("where nothing is trained, the loss of such a head is made by forward alone") {
  Head head(true);
  head.trainable.assign(head.trainable.size(), false);
  const SegmentTape tape = head.tape();
  CHECK_FALSE(has(tape.forward, TapeDo::backward, head.loss()));
  CHECK_FALSE(tape.has_backward);
}

}  // namespace vramfit
