// transformers' Trainer with FSDP1. That its step is what accelerate sets up is tested in tests/oracle/hf_trainer
// (fsdp1_events_test.py), event by event.
#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "estimator/estimate.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "job/stacks/stacks.h"
#include "model_specs/graph.h"
#include "program/make_program.h"
#include "program/pytorch/wrappers/fsdp1.h"
#include "program/readers/check.h"
#include "program/stages/adapters.h"
#include "tests/support/devices.h"
#include "tests/support/models.h"

namespace vramfit {
namespace {

const Cluster kFourCards = parse_cluster("4xH100-80GB");

/// The Trainer with FSDP1, and some fields more.
Job fsdp1_job(const std::vector<std::pair<std::string, std::string>>& fields = {}) {
  Job job = on_stack(unresolved_job(), stack_named("transformers").with_fsdp1);
  for (const auto& [field, value] : fields) job_field_named(field).set(job, value);
  return job;
}

program::Program program_of(const Job& job, bool is_tied = false, const Cluster& cluster = kFourCards) {
  std::vector<std::string> notes;
  ModelSpec spec = testing::small_llama();
  spec.tie_word_embeddings = is_tied;
  const Job resolved = resolve_job(job, spec, cluster, notes);
  return program::make_program(
      {.graph = training_graph(spec, resolved), .job = resolved, .device = testing::kH100, .coords = {}});
}

/// Of a program's buffers whose label ends so.
Bytes bytes_labelled(const program::Program& made, std::string_view label) {
  Bytes bytes;
  for (const program::Buffer& buffer : made.main.buffers) {
    if (made.labels[static_cast<std::size_t>(buffer.label)].ends_with(label)) bytes += buffer.bytes;
  }
  return bytes;
}

std::size_t started(const program::Program& made, program::Collective collective) {
  std::size_t count = 0;
  for (const program::Instruction& instruction : made.main.instructions) {
    const auto* start = std::get_if<program::Start>(&instruction);
    if (start != nullptr && start->collective == collective) ++count;
  }
  return count;
}

}  // namespace

TEST_CASE("parameters lie in a flat tensor at multiples of 16 bytes, and ranks have equal parts of it") {
  const eager::FlatLayout even = eager::flat_layout({16, 8, 64}, Dtype::bf16, 4);
  CHECK(even.begins == std::vector<std::int64_t>{0, 16, 24});
  CHECK(even.padding.empty());
  CHECK(even.elements == 88);
  // 8 numbers of 2 bytes, or 4 of 4.
  const eager::FlatLayout padded = eager::flat_layout({3, 9, 10}, Dtype::bf16, 7);
  CHECK(padded.begins == std::vector<std::int64_t>{0, 8, 24});
  CHECK(padded.padding == std::vector<std::int64_t>{5, 7, 1});
  CHECK(padded.elements == 35);
  CHECK(eager::flat_layout({3, 9, 10}, Dtype::f32, 2).begins == std::vector<std::int64_t>{0, 4, 16});
}

TEST_CASE("the Trainer's steps with FSDP1 are sound programs") {
  for (const char* precision : {"bf16-mixed", "bf16-pure", "fp32"}) {
    for (const char* sharding : {"full-shard", "shard-grad-op"}) {
      for (const char* micro_batches : {"1", "3"}) {
        for (const char* prefetch : {"pre", "post", "none"}) {
          CAPTURE(precision);
          CAPTURE(sharding);
          CAPTURE(micro_batches);
          CAPTURE(prefetch);
          const Job job = fsdp1_job({{"precision", precision},
                                     {"sharding", sharding},
                                     {"grad_accum", micro_batches},
                                     {"checkpointing", "full"},
                                     {"prefetch", std::string("backward=") + prefetch}});
          const auto fault = program::fault_of(program_of(job, true));
          CHECK_MESSAGE(!fault, fault.value_or(""));
        }
      }
    }
  }
}

TEST_CASE("the Trainer's steps with FSDP1 and adapters, offload, replicas and fp16 are sound programs") {
  using Fields = std::vector<std::pair<std::string, std::string>>;
  const Cluster two_nodes = parse_cluster("2x2xH100-80GB");
  for (const char* sharding : {"full-shard", "shard-grad-op", "hybrid-shard", "hybrid-shard-zero2"}) {
    for (const char* micro_batches : {"1", "3"}) {
      for (const Fields& more :
           {Fields{{"method", "lora"}}, Fields{{"method", "lora"}, {"prefetch", "backward=post,forward=1"}},
            Fields{{"precision", "fp16-mixed"}, {"optimizer", "adamw:foreach"}}}) {
        CAPTURE(sharding);
        CAPTURE(micro_batches);
        CAPTURE(more.front().second);
        Fields fields = more;
        fields.insert(fields.end(), {{"sharding", sharding}, {"grad_accum", micro_batches}, {"checkpointing", "full"}});
        const bool is_hybrid = std::string_view(sharding).starts_with("hybrid");
        const auto fault = program::fault_of(program_of(fsdp1_job(fields), false, is_hybrid ? two_nodes : kFourCards));
        CHECK_MESSAGE(!fault, fault.value_or(""));
      }
    }
  }
}

TEST_CASE("each matrix of an adapter is a unit, and what is frozen has no gradient") {
  const program::Program made = program_of(fsdp1_job({{"method", "lora"}}));
  const std::size_t blocks = 2, matrices = 14;  // of a block: two beside each of its seven linears
  // Once a step for the root, twice for all others, and once for how many labels there are; frozen weights are in bf16
  // as they are.
  CHECK(started(made, program::Collective::all_gather) == 2 * (2 + 2 * blocks * (1 + matrices)));
  CHECK(started(made, program::Collective::reduce_scatter) == 2 * blocks * matrices);
  CHECK(2 * bytes_labelled(made, ": shard, cast") == bytes_labelled(made, ": gradient of the shard"));
}

TEST_CASE("codes of 4 bits lie in the flat tensors of blocks, and their scales are whole on each rank") {
  const Job qlora = fsdp1_job({{"method", "qlora"}, {"frozen_dtype", "bf16"}});
  const program::Program packed = program_of(qlora), plain = program_of(fsdp1_job({{"method", "lora"}}));
  const auto fault = program::fault_of(packed);
  CHECK_MESSAGE(!fault, fault.value_or(""));
  std::int64_t elements = 0, scales = 0;  // of the matrices of blocks: a scale of a byte for each 64 elements
  for (const Parameter& parameter : build_graph(testing::small_llama(), {}).parameters) {
    if (parameter.name.find("layers.") == std::string::npos || parameter.shape.size() != 2) continue;
    elements += element_count(parameter);
    scales += ceil_div(element_count(parameter), std::int64_t{64});
  }
  const auto shards = [](const program::Program& made) {
    return bytes_labelled(made, ": shard of the flat parameter");
  };
  CHECK(shards(plain) - shards(packed) == Bytes{elements * 2 * 3 / 4 / 4});  // of 2 bytes, on 4 ranks
  CHECK(bytes_labelled(packed, ".weight: scales") == Bytes{scales});
  CHECK(bytes_labelled(packed, ": shard, cast") == bytes_labelled(plain, ": shard, cast"));
}

TEST_CASE("what FSDP1 fails at with codes of 4 bits is named") {
  const auto why = [](const std::vector<std::pair<std::string, std::string>>& fields) {
    const Estimate e = estimate(testing::small_llama(), fsdp1_job(fields), kFourCards, {.suggestions = false});
    CHECK(e.verdict == Verdict::not_modelled);
    return e.why;
  };
  CHECK(why({{"method", "qlora"}}).find("codes of 4 bits in bf16: --frozen-dtype bf16)") != std::string::npos);
  CHECK(why({{"method", "qlora"}, {"frozen_dtype", "bf16"}, {"sharding", "shard-grad-op"}})
            .find("the first backward fails: --sharding full-shard)") != std::string::npos);
}

TEST_CASE("adapters over 4 bits, which TRL makes bf16, are widened once they are sharded") {
  const std::vector<std::pair<std::string, std::string>> fields{{"method", "qlora"}, {"frozen_dtype", "bf16"}};
  const program::Program of_trainer = program_of(fsdp1_job(fields));
  for (const char* const precision : {"bf16-mixed", "fp16-mixed"}) {
    CAPTURE(precision);
    const bool is_fp16 = precision == std::string_view("fp16-mixed");
    const program::Program made = program_of(fsdp1_job({{"modeling", "trl"},
                                                        {"method", "qlora"},
                                                        {"precision", precision},
                                                        {"frozen_dtype", is_fp16 ? "fp16" : "bf16"},
                                                        {"optimizer", "adamw:foreach"}}));
    const auto fault = program::fault_of(made);
    CHECK_MESSAGE(!fault, fault.value_or(""));
    const char* const shard = ": shard of the flat parameter";
    const Bytes narrow = bytes_labelled(made, shard) - bytes_labelled(of_trainer, shard);
    CHECK(2 * narrow == bytes_labelled(made, ": gradient of the shard"));
  }
}

TEST_CASE("offloaded shards and gradients are in host memory, and come and go at each use") {
  const program::Program made = program_of(fsdp1_job({{"offload", "params"}})), plain = program_of(fsdp1_job());
  const auto fault = program::fault_of(made);
  CHECK_MESSAGE(!fault, fault.value_or(""));
  CHECK(bytes_labelled(made, ": shard in host memory") >= bytes_labelled(plain, ": shard of the flat parameter"));
  CHECK(bytes_labelled(made, ": shard on the card") == bytes_labelled(plain, ": shard of the flat parameter"));
  CHECK(bytes_labelled(made, ": gradient of the shard") == bytes_labelled(plain, ": gradient of the shard"));
}

TEST_CASE("FSDP1 reduces flat gradients in bf16 and converts them to the dtype of the shards") {
  const program::Program mixed = program_of(fsdp1_job());
  const Bytes gradients = bytes_labelled(mixed, ": gradient of the shard");
  CHECK(gradients > Bytes{});
  CHECK(2 * bytes_labelled(mixed, ": reduced gradient") == gradients);
  CHECK(2 * bytes_labelled(mixed, ": shard, cast") == gradients);
  CHECK(bytes_labelled(mixed, ": flat gradient") == 4 * bytes_labelled(mixed, ": reduced gradient"));
  const program::Program pure = program_of(fsdp1_job({{"precision", "bf16-pure"}}));
  CHECK(2 * bytes_labelled(pure, ": gradient of the shard") == gradients);
  CHECK(bytes_labelled(pure, ": reduced gradient") == Bytes{});
  CHECK(bytes_labelled(pure, ": shard, cast") == Bytes{});
}

TEST_CASE("the root's parameters are gathered once a step, those of blocks twice unless they stay") {
  // In the first step and in a later one.
  const std::size_t blocks = 2;
  CHECK(started(program_of(fsdp1_job()), program::Collective::all_gather) -
            started(program_of(fsdp1_job({{"sharding", "shard-grad-op"}})), program::Collective::all_gather) ==
        2 * blocks);
}

TEST_CASE("FSDP1 reduces in a step's last micro-batch alone, and keeps flat gradients until then") {
  const program::Program one = program_of(fsdp1_job()), three = program_of(fsdp1_job({{"grad_accum", "3"}}));
  CHECK(started(one, program::Collective::reduce_scatter) == 6);
  CHECK(started(three, program::Collective::reduce_scatter) == 6);
  CHECK(bytes_labelled(three, ": flat gradient") == 2 * bytes_labelled(one, ": flat gradient"));
}

TEST_CASE("what the Trainer's FSDP1 has no rules for is named") {
  const auto why = [](const char* field, const char* value) {
    const Estimate e =
        estimate(testing::small_llama(), fsdp1_job({{field, value}}), kFourCards, {.suggestions = false});
    CHECK(e.verdict == Verdict::not_modelled);
    return e.why;
  };
  CHECK(why("wrap_embeddings", "on").starts_with("--wrap-embeddings on with --runtime pytorch-fsdp1 (accelerate"));
  CHECK(why("reduce_dtype", "fp32").find("(accelerate reduces in bf16") != std::string::npos);
  CHECK(why("storage_dtype", "bf16").find("accelerate makes flat parameters fp32") != std::string::npos);
  CHECK(why("optimizer", "adamw-8bit").find("(adamw:fused and adamw:foreach are)") != std::string::npos);
  CHECK(why("offload", "optimizer").find("(its cpu_offload is --offload params)") != std::string::npos);
  CHECK(why("modeling", "accelerate").starts_with("--modeling accelerate with --runtime pytorch-fsdp1"));
  CHECK(why("modeling", "vramfit").find("(--stack transformers --runtime pytorch-fsdp1 is") != std::string::npos);
  CHECK(why("prefetch", "forward=2").find("(--prefetch backward=pre|post|none is, and forward=1)") !=
        std::string::npos);
  CHECK(why("precision", "fp16-mixed").find("fused AdamW (its first update fails: --optimizer adamw:foreach") !=
        std::string::npos);
  CHECK(why("reshard", "last-kept").find("(--sharding full-shard and shard-grad-op decide)") != std::string::npos);
  CHECK(why("wrap", "none").starts_with("--wrap none"));
  CHECK(why("sharding", "no-shard").starts_with("--runtime pytorch-fsdp1 on one shard (--runtime pytorch-ddp"));

  const Estimate alone =
      estimate(testing::small_llama(), fsdp1_job({}), parse_cluster("1xH100-80GB"), {.suggestions = false});
  CHECK(alone.verdict == Verdict::not_modelled);
  CHECK(
      alone.why.starts_with("--runtime pytorch-fsdp1 on one GPU, where there is nothing to shard with (--stack trans"));
}

}  // namespace vramfit
