#include <doctest/doctest.h>

#include <optional>

#include "base/error.h"
#include "job/cluster/precision_support.h"

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
  CHECK(card_support(Dtype::bf16, 75) == Support::none);
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

TEST_CASE("PyTorch has kernels for a card whose generation it was compiled for, up to its capability") {
  for (const int capability : {75, 80, 86, 87, 89, 90, 100, 103, 120, 121}) CHECK(torch_has_kernels(capability));
  for (const int capability : {50, 60, 70, 72, 110, 130}) CHECK_FALSE(torch_has_kernels(capability));
}

TEST_CASE("every job that the catalog's cards cannot start is refused by name, with what would answer") {
  int without_kernels = 0, without_bf16 = 0;
  for (const Card& card : card_catalog()) {
    CAPTURE(card.name);
    const Cluster cluster = parse_cluster("2x" + card.name);
    const int capability = card.device.compute_capability;
    for (const char* name : {"fp32", "bf16-mixed", "bf16-pure", "fp16-mixed"}) {
      const Job job = in_precision(name);
      if (!torch_has_kernels(capability)) {
        ++without_kernels;
        CHECK_THROWS_WITH_AS(require_card_support(job, cluster),
                             doctest::Contains(("vramfit rehearse --gpus 2x" + card.name).c_str()), InputError);
      } else if (capability < 80 && job.precision.compute == Dtype::bf16) {
        ++without_bf16;
        CHECK_THROWS_WITH_AS(
            require_card_support(job, cluster),
            doctest::Contains("has no bf16 units, which come with 8.0; use --precision fp16-mixed or fp32"),
            InputError);
      } else {
        CHECK_NOTHROW(require_card_support(job, cluster));
      }
    }
    if (torch_has_kernels(capability)) {
      CHECK_NOTHROW(require_card_support(in_precision(std::string(default_precision(cluster)).c_str()), cluster));
    }
  }
  CHECK(without_kernels > 0);
  CHECK(without_bf16 > 0);
}

TEST_CASE("a dtype that was set alone is refused by its own flag") {
  Job job = in_precision("fp16-mixed");
  job.precision.compute = Dtype::bf16;
  CHECK_THROWS_WITH_AS(require_card_support(job, parse_cluster("1xT4")), doctest::Contains("--compute-dtype bf16: T4"),
                       InputError);
  job.precision = precision_named("fp16-mixed");
  job.precision.reduce = Dtype::bf16;  // sums and casts run on every card
  CHECK_NOTHROW(require_card_support(job, parse_cluster("1xT4")));
}

TEST_CASE("scripts bring their own PyTorch, so its runtimes are not held to the executor's kernels") {
  Job job = in_precision("bf16-mixed");
  job.runtime = Runtime::pytorch_fsdp2;
  CHECK_NOTHROW(require_card_support(job, parse_cluster("1xV100-16GB")));
}

TEST_CASE("emulation is said") {
  CHECK(precision_notes(in_precision("fp16-mixed"), parse_cluster("1xT4")).empty());
  CHECK(precision_notes(in_precision("fp16-mixed"), parse_cluster("1xP100-16GB")).size() == 1);
  CHECK(precision_notes(in_precision("bf16-mixed"), parse_cluster("1xA100-40GB")).empty());
  CHECK(precision_notes(in_precision("fp8"), parse_cluster("1xH100-80GB")).empty());
  const std::vector<std::string> on_cpu = precision_notes(in_precision("fp8"), parse_cluster("1xcpu-4GiB"));
  REQUIRE(on_cpu.size() == 1);
  CHECK(on_cpu[0].find("emulate FP8") != std::string::npos);
}

TEST_CASE("shards are added up in the reduce dtype, replicas in that of kept gradients, and one rank adds up nothing") {
  const auto sums = [](const char* sharding, const Mesh& mesh, Dtype reduce, std::optional<Dtype> gradient) {
    Job job = in_precision("bf16-mixed");
    job.sharding = sharding;
    job.mesh = mesh;
    job.precision.reduce = reduce;
    job.gradient_dtype = gradient;
    return sums_between_ranks(job, Dtype::bf16);
  };
  const Mesh one{.replicate = 1, .shard = 1}, shards{.replicate = 1, .shard = 4}, both{.replicate = 2, .shard = 2};
  CHECK_FALSE(sums("full-shard", one, Dtype::bf16, Dtype::bf16));
  CHECK(sums("full-shard", shards, Dtype::bf16, std::nullopt));
  CHECK_FALSE(sums("full-shard", shards, Dtype::f32, Dtype::bf16));
  CHECK(sums("no-shard", shards, Dtype::f32, Dtype::bf16));
  CHECK_FALSE(sums("no-shard", shards, Dtype::bf16, std::nullopt));
  CHECK(sums("hybrid-shard", both, Dtype::f32, Dtype::bf16));
  CHECK_FALSE(sums("hybrid-shard", both, Dtype::f32, std::nullopt));
}

TEST_CASE("the loss is scaled by itself where fp16 computes or reduces") {
  CHECK(std::holds_alternative<DynamicLossScale>(loss_scaling(in_precision("fp16-mixed"))));
  CHECK_FALSE(scales_loss(in_precision("bf16-mixed")));
  Job job = in_precision("bf16-mixed");
  job.precision.reduce = Dtype::f16;
  CHECK(scales_loss(job));
  job.loss_scale = NoLossScale{};
  CHECK_FALSE(scales_loss(job));
}

}  // namespace vramfit
