// Parameters stored in fp16 (--storage-dtype fp16).
#include <doctest/doctest.h>

#include <string>

#include "program/readers/check.h"
#include "tests/program/job_programs.h"

namespace vramfit {

using testing::bytes_called;
using testing::job_of;
using testing::layout_of;
using testing::names;
using testing::program_of;
using testing::unit_called;

namespace {

constexpr const char* kHalf = " storage_dtype=fp16";

std::string refusal_of(const std::string& settings) {
  return testing::refusal_of("llama/2 2x2 cuda:90:132 " + settings + kHalf);
}

}  // namespace

TEST_CASE("parameters and gradients in fp16 take two bytes each, and averages what --state-dtype says") {
  for (const auto& [state, bytes] : {std::pair{"fp32", 4}, {"bf16", 2}}) {
    CAPTURE(state);
    const testing::ResolvedJob job =
        job_of(std::string("llama/2 1x4 cuda:90:132 precision=fp16-mixed state_dtype=") + state + kHalf);
    const Unit layer = unit_called(lay_out_units(job.graph, job.job), "layers.0");
    CHECK(shard_bytes(layer) == layer.trainable_elements * Bytes{2});
    CHECK(gradient_bytes(layer) == layer.trainable_elements * Bytes{2});
    const program::Program program = program_of(job);
    CHECK(program::fault_of(program) == std::nullopt);
    CHECK(bytes_called(program, "layers.0: exp_avg") == layer.trainable_elements * Bytes{bytes});
    CHECK(bytes_called(program, "layers.0: exp_avg_sq") == layer.trainable_elements * Bytes{bytes});
  }
}

TEST_CASE("gradients that add up in fp16 are those of a scaled loss, whatever is computed in") {
  for (const char* precision : {"fp32", "bf16-mixed", "fp16-mixed"}) {
    CAPTURE(precision);
    const std::string line = std::string("llama/2 1x1 cuda:90:132 precision=") + precision;
    CHECK(scales_loss(job_of(line + kHalf).job));
    CHECK_FALSE(scales_loss(job_of(line + kHalf + " loss_scale=none").job));
  }
  CHECK_FALSE(scales_loss(job_of("llama/2 1x1 cuda:90:132 precision=bf16-mixed storage_dtype=bf16").job));
}

TEST_CASE("a unit in fp16 that one GPU computes in fp16 is used as it is stored") {
  const auto is_used_as_stored = [](const char* precision) {
    return unit_called(layout_of(std::string("llama/2 1x1 cuda:90:132 precision=") + precision + kHalf), "layers.0")
        .gathered_is_shard;
  };
  CHECK(is_used_as_stored("fp16-mixed"));
  CHECK_FALSE(is_used_as_stored("bf16-mixed"));
}

TEST_CASE("optimizers that fp16 can't serve are refused by name, with what would answer") {
  CHECK(refusal_of("state_dtype=fp32").empty());
  CHECK(refusal_of("state_dtype=bf16 offload=optimizer").empty());
  CHECK(refusal_of("state_dtype=fp32 optimizer=adamw:paged").empty());
  for (const char* name : {"adamw-8bit", "adamw-4bit", "adamw-fp8", "adamw-fp8-blocks", "adafactor"}) {
    CAPTURE(name);
    const std::string optimizer = std::string(" optimizer=") + name;
    CHECK(refusal_of("state_dtype=fp16" + optimizer).empty());
    CHECK(names(refusal_of("state_dtype=fp32" + optimizer), "a form of their own: use --state-dtype fp16)"));
  }
  CHECK(names(refusal_of("state_dtype=fp16"), "squares of gradients below 6e-8 would vanish; use --state-dtype bf16"));
  for (const char* name : {"sgd", "lion"}) {
    CAPTURE(name);
    CHECK(names(refusal_of(std::string("state_dtype=fp16 optimizer=") + name),
                "averages of gradients below 6e-8 would vanish; use --optimizer adamw with --state-dtype bf16"));
  }
  CHECK(names(refusal_of("state_dtype=fp32 optimizer=adamw:loop"),
              "LibTorch's calls take one dtype: use --optimizer "
              "adamw:fused)"));
  CHECK(names(refusal_of("optimizer=adamw-stochastic"), "it rounds parameters stored in bf16"));
  CHECK(names(refusal_of("master_dtype=fp16"), "--master-dtype fp16 with --storage-dtype fp16 ("));
  CHECK(names(refusal_of("optimizer_in_backward=on clip=off"), "--optimizer-in-backward on with --loss-scale auto ("));
}

}  // namespace vramfit
