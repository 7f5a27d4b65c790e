#include <doctest/doctest.h>

#include "estimator/precision_support.h"
#include "model_specs/error.h"

namespace vramfit {

namespace {

Job in_precision(const char* name) {
  Job job;
  job.precision = precision_named(name);
  return job;
}

}  // namespace

TEST_CASE("compute capabilities decide between units, emulation and nothing") {
  CHECK(card_support(Dtype::bf16, 80) == Support::native);
  CHECK(card_support(Dtype::bf16, 75) == Support::emulated);
  CHECK(card_support(Dtype::f16, 70) == Support::native);
  CHECK(card_support(Dtype::f16, 60) == Support::emulated);
  CHECK(card_support(Dtype::f8_e4m3, 89) == Support::native);
  CHECK(card_support(Dtype::f8_e4m3, 86) == Support::none);
  CHECK(cpu_support(Dtype::bf16, {"fpu", "avx512_bf16"}) == Support::native);
  CHECK(cpu_support(Dtype::f16, {"fpu", "avx512_bf16"}) == Support::emulated);
  CHECK(cpu_support(Dtype::f8_e5m2, {"fpu", "avx512_bf16", "amx_fp16"}) == Support::emulated);
}

TEST_CASE("fp8 on a card without such units is refused with what to use instead") {
  const Job job = in_precision("fp8");
  CHECK_THROWS_WITH_AS(
      require_card_support(job, parse_cluster("8xA100-80GB")),
      doctest::Contains("compute capability 8.0) has no FP8 units, which come with 8.9; use --precision "
                        "bf16-mixed"),
      InputError);
  CHECK_THROWS_WITH_AS(require_card_support(job, parse_cluster("1xT4")),
                       doctest::Contains("use --precision fp16-mixed"), InputError);
  CHECK_NOTHROW(require_card_support(job, parse_cluster("2xcpu-4GiB")));
  CHECK_NOTHROW(require_card_support(job, parse_cluster("8xH100-80GB")));
}

TEST_CASE("emulation is said, with what the card has units for") {
  const std::vector<std::string> notes = precision_notes(in_precision("bf16-mixed"), parse_cluster("1xT4"));
  REQUIRE(notes.size() == 1);
  CHECK(notes[0] == "T4 has no bf16 units: it computes bf16 by emulation (it has fp16 units: --precision fp16-mixed)");
  CHECK(precision_notes(in_precision("fp16-mixed"), parse_cluster("1xT4")).empty());
  CHECK(precision_notes(in_precision("fp16-mixed"), parse_cluster("1xP100-16GB")).size() == 1);
  CHECK(precision_notes(in_precision("bf16-mixed"), parse_cluster("1xA100-40GB")).empty());
  CHECK(precision_notes(in_precision("fp8"), parse_cluster("1xH100-80GB")).empty());
  const std::vector<std::string> on_cpu = precision_notes(in_precision("fp8"), parse_cluster("1xcpu-4GiB"));
  REQUIRE(on_cpu.size() == 1);
  CHECK(on_cpu[0].find("emulate FP8") != std::string::npos);
}

TEST_CASE("the loss is scaled by itself where fp16 computes or reduces") {
  CHECK(loss_scaling(in_precision("fp16-mixed")) == LossScale::Kind::dynamic);
  CHECK_FALSE(scales_loss(in_precision("bf16-mixed")));
  Job job = in_precision("bf16-mixed");
  job.precision.reduce = Dtype::f16;
  CHECK(scales_loss(job));
  job.loss_scale.kind = LossScale::Kind::none;
  CHECK_FALSE(scales_loss(job));
}

}  // namespace vramfit
