// Checkpoints that re-enter autograd, and DDP that looks for unused parameters or doesn't. That steps are what PyTorch
// does is tested in tests/oracle/hf_trainer, event by event.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/conflict.h"
#include "base/error.h"
#include "program/readers/check.h"
#include "tests/program/pytorch/trl_jobs.h"

namespace vramfit {
namespace {

using testing::Field;
using testing::program_of;
using testing::trl_job;

constexpr const char* kTwo = "2xH100-80GB";

program::Program recorded(std::vector<Field> fields, const std::string& cluster = "1xH100-80GB") {
  fields.insert(fields.begin(), {"checkpointing", "full"});
  return program_of(trl_job("transformers", fields, cluster), cluster);
}

/// How many allocations of a step have a label that ends so.
std::ptrdiff_t runs_of(const program::Program& program, std::string_view label) {
  return std::ranges::count_if(program.main.instructions, [&](const program::Instruction& instruction) {
    const auto* allocate = std::get_if<program::Allocate>(&instruction);
    if (allocate == nullptr) return false;
    const program::Buffer& buffer = program.main.buffers.at(static_cast<std::size_t>(allocate->buffer));
    return program.labels.at(static_cast<std::size_t>(buffer.label)).ends_with(label);
  });
}

TEST_CASE("backward runs all of a layer again, its last product too") {
  const program::Program usual = recorded({}), reentrant = recorded({{"reentrant_checkpoints", "on"}});
  CHECK(!program::fault_of(reentrant));
  CHECK(runs_of(reentrant, "mlp: linear") > runs_of(usual, "mlp: linear"));
}

TEST_CASE("DDP that looks for unused parameters fails on checkpoints that re-enter autograd") {
  const std::vector<Field> lora{{"runtime", "pytorch-ddp"}, {"method", "lora"}, {"reentrant_checkpoints", "on"}};
  const auto with = [&](const char* finds) {
    std::vector<Field> fields = lora;
    fields.push_back({"find_unused_parameters", finds});
    return fields;
  };
  CHECK_THROWS_WITH_AS(recorded(lora, kTwo), doctest::Contains("--find-unused-parameters off"), LibraryFails);
  CHECK_THROWS_WITH_AS(recorded(with("on"), kTwo), doctest::Contains("--find-unused-parameters off"), LibraryFails);
  CHECK(!program::fault_of(recorded(with("off"), kTwo)));
  CHECK(!program::fault_of(recorded({{"runtime", "pytorch-ddp"}, {"reentrant_checkpoints", "on"}}, kTwo)));
  CHECK(!program::fault_of(recorded({{"checkpointing", "none"}, lora[0], lora[1], lora[2]}, kTwo)));
}

TEST_CASE("DDP copies what the model returns where it looks for unused parameters") {
  const auto copies = [](const char* finds) {
    return runs_of(recorded({{"runtime", "pytorch-ddp"}, {"find_unused_parameters", finds}}, kTwo), "loss: clone");
  };
  CHECK(copies("on") > copies("off"));
}

TEST_CASE("other libraries' DDP doesn't look for unused parameters, and may be told so") {
  for (const char* const stack : {"accelerate", "torchtitan", "vramfit"}) {
    CAPTURE(stack);
    const auto told = [&](const char* finds) {
      return program_of(trl_job(stack, {{"find_unused_parameters", finds}}, kTwo), kTwo);
    };
    CHECK(!program::fault_of(told("off")));
    CHECK_THROWS_WITH_AS(told("on"), doctest::Contains("--find-unused-parameters on"), NotModelled);
  }
}

TEST_CASE("other libraries have no checkpoints that re-enter autograd") {
  for (const char* const stack : {"accelerate", "torchtitan", "vramfit"}) {
    CAPTURE(stack);
    const std::vector<Field> fields{{"checkpointing", "full"}, {"reentrant_checkpoints", "on"}};
    CHECK_THROWS_WITH_AS(program_of(trl_job(stack, fields, kTwo), kTwo),
                         doctest::Contains("--reentrant-checkpoints on"), NotModelled);
  }
}

}  // namespace
}  // namespace vramfit
