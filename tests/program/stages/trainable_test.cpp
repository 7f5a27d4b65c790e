#include <doctest/doctest.h>

#include "base/error.h"
#include "program/stages/trainable.h"
#include "tests/support/tiny_graph.h"

namespace vramfit {

namespace {

using testing::tiny_graph;

/// Names that stay trainable.
std::vector<std::string> trained(const std::vector<std::string>& freeze, bool tied = false) {
  const Graph graph = tiny_graph({.blocks = 3, .tied = tied});
  Job job = testing::tiny_job();
  job.freeze = freeze;
  const std::vector<bool> trainable = trainable_parameters(graph, job);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < trainable.size(); ++i) {
    if (trainable[i]) names.push_back(graph.parameters[i].name);
  }
  return names;
}

std::string error_of(const std::string& pattern) {
  try {
    trained({pattern});
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("parts of a model are frozen by name") {
  CHECK(trained({}) ==
        Names{"embed.weight", "layers.0.proj.weight", "layers.1.proj.weight", "layers.2.proj.weight", "head.weight"});
  CHECK(trained({"layers:1"}) == Names{"embed.weight", "layers.0.proj.weight", "layers.2.proj.weight", "head.weight"});
  CHECK(trained({"layers:0-2"}) == Names{"embed.weight", "head.weight"});
  CHECK(trained({"layers:0-1", "embeddings"}) == Names{"layers.2.proj.weight", "head.weight"});
  CHECK(trained({"head", "layers.?.*"}) == Names{"embed.weight"});
  CHECK(trained({"none"}) == trained({}));
}

TEST_CASE("a tied weight is frozen with either of its parts") {
  const Names layers{"layers.0.proj.weight", "layers.1.proj.weight", "layers.2.proj.weight"};
  CHECK(trained({"embeddings"}, true) == layers);
  CHECK(trained({"head"}, true) == layers);
}

TEST_CASE("a pattern that freezes nothing is an error that says what it could have been") {
  CHECK(error_of("layers.1.proj.wieght").find("did you mean \"layers.1.proj.weight\"?") != std::string::npos);
  CHECK(error_of("embedings").find("did you mean \"embeddings\"?") != std::string::npos);
  CHECK(error_of("layers.[01].*").find("with * and ?") != std::string::npos);
  CHECK(error_of("").find("--freeze") != std::string::npos);
  CHECK(error_of("\x1b[31m").find('\x1b') == std::string::npos);
  CHECK_FALSE(error_of(std::string(4000, '*') + "x").empty());
}

TEST_CASE("layers that the model lacks, and ranges that are none, are refused with what it has") {
  CHECK(error_of("layers:3") == "--freeze layers:3: there is no layer 3; the model has layers 0 to 2");
  CHECK(error_of("layers:2-1") == "--freeze layers:2-1: the range ends before it begins; the model has layers 0 to 2");
  for (const char* pattern : {"layers:", "layers:-", "layers:1-", "layers:-1", "layers:a",
                              "layers:0-99999999999999999999", "layers:0-1-2", "layers:+1", "layers: 1"}) {
    CAPTURE(pattern);
    CHECK(error_of(pattern).find("the model has layers 0 to 2") != std::string::npos);
  }
}

TEST_CASE("freezing everything is an error") {
  CHECK(error_of("*") == "--freeze leaves no parameter to train (freeze less, as layers:FIRST-LAST, or leave it out)");
  CHECK_THROWS_AS(trained({"layers:0-2", "embeddings", "head"}), InputError);
}

}  // namespace vramfit
