// torchtune's recipes. That their step is what torchtune does is tested in tests/oracle/hf_trainer, event by event.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "job/stacks/stacks.h"
#include "program/make_program.h"
#include "program/not_modelled.h"
#include "program/readers/check.h"
#include "program/stages/adapters.h"
#include "tests/support/models.h"

namespace vramfit {
namespace {

ModelSpec spec_of_test() {
  ModelSpec spec = testing::small_llama();
  spec.vocab_size = 4000;  // of fewer rows the embedding's gradient has no rules
  return spec;
}

struct Field {
  std::string name, value;
};

program::Program program_of(const std::vector<Field>& fields, const std::string& cluster_text = "1xH100-80GB",
                            const ModelSpec& spec = spec_of_test(), RunEffects run = {}) {
  const Cluster cluster = parse_cluster(cluster_text);
  Job job = on_stack(unresolved_job(), defaults_of(stack_named("torchtune"), cluster));
  job_field_named("seq_len").set(job, "512");
  for (const Field& field : fields) job_field_named(field.name).set(job, field.value);
  std::vector<std::string> notes;
  const Job resolved = resolve_job(job, spec, cluster, notes);
  require_rules(resolved, cluster);
  return program::make_program({.graph = training_graph(spec, resolved),
                                .job = resolved,
                                .device = cluster.card.device,
                                .coords = {},
                                .run = run});
}

int allocations_of(const program::Program& program, const std::string& begins) {
  int count = 0;
  for (const program::Buffer& buffer : program.main.buffers) {
    if (program.labels[static_cast<std::size_t>(buffer.label)].starts_with(begins)) ++count;
  }
  return count;
}

TEST_CASE("the output layer runs on 8 parts of the sequence, whose logits live together") {
  CHECK(allocations_of(program_of({}), "output: linear") == 8);
  CHECK(allocations_of(program_of({{"loss", "chunked:3"}}), "output: linear") == 3);
  CHECK(allocations_of(program_of({{"seq_len", "9"}}), "output: linear") == 5);  // two tokens each, and one
}

TEST_CASE("builders of adapters make rotations for each layer, but for those of Llama 3.1") {
  ModelSpec scaled = spec_of_test();
  scaled.rope.scaling = Rope::Scaling::llama3;
  CHECK(allocations_of(program_of({}), "rope: cache") == 1);
  CHECK(allocations_of(program_of({{"method", "lora"}}), "rope: cache") == 2);
  CHECK(allocations_of(program_of({{"method", "lora"}}, "1xH100-80GB", scaled), "rope: cache") == 1);
}

TEST_CASE("tables of rotations have the positions that the job has") {
  const auto bytes_of_tables = [](const std::vector<Field>& fields) {
    const program::Program program = program_of(fields);
    std::int64_t bytes = 0;
    for (const program::Buffer& buffer : program.main.buffers) {
      if (program.labels[static_cast<std::size_t>(buffer.label)] == "rope: cache") bytes += buffer.bytes.n;
    }
    return bytes;
  };
  const std::int64_t short_ones = bytes_of_tables({{"method", "lora"}});
  CHECK(bytes_of_tables({{"method", "lora"}, {"rotary_positions", "5120"}}) == 10 * short_ones);
}

TEST_CASE("parts of several rows are copied for an output layer that is trained") {
  CHECK(allocations_of(program_of({{"micro_batch", "2"}}), "output: clone") == 8);
  CHECK(allocations_of(program_of({{"micro_batch", "2"}, {"method", "lora"}}), "output: clone") == 0);
}

TEST_CASE("torchao's NF4 is dequantized with two int64 numbers for each byte, and split where rows and scales divide") {
  ModelSpec spec = spec_of_test();
  spec.hidden_size = 256;
  spec.intermediate_size = 512;
  spec.head_dim = 64;
  const std::vector<Field> qlora{{"method", "qlora"}};
  const program::Program program = program_of(qlora, "1xH100-80GB", spec);
  CHECK(!program::fault_of(program));
  CHECK(allocations_of(program, "layers.0.mlp: places of half") > 0);
  CHECK(!program::fault_of(program_of(qlora, "2xH100-80GB", spec)));
  CHECK_THROWS_WITH_AS(program_of(qlora, "3xH100-80GB", spec), doctest::Contains("on 3 GPUs"), NotModelled);
  CHECK_THROWS_WITH_AS(program_of({{"method", "qlora"}, {"quantization", "nf4"}}, "2xH100-80GB", spec),
                       doctest::Contains("--quantization nf4-double"), NotModelled);
}

TEST_CASE("what is recorded is sound") {
  for (const std::vector<Field>& fields :
       {std::vector<Field>{},
        {{"checkpointing", "full"}, {"micro_batch", "2"}, {"grad_accum", "3"}},
        {{"optimizer", "adamw:foreach"}},
        {{"method", "lora"}, {"lora_dropout", "0.1"}, {"checkpointing", "full"}},
        {{"method", "lora"}, {"lora_targets", "q_proj,v_proj"}},
        {{"checkpointing", "full"}, {"offload", "activations"}},
        {{"checkpointing", "full"}, {"offload", "activations"}, {"method", "lora"}},
        {{"checkpointing", "full"}, {"offload", "activations"}, {"precision", "fp32"}, {"grad_accum", "3"}},
        {{"precision", "fp32"}},
        {{"method", "lora"}, {"dora", "on"}, {"micro_batch", "2"}}}) {
    for (const char* const cluster : {"1xH100-80GB", "4xH100-80GB"}) {
      CAPTURE(cluster);
      const auto fault = program::fault_of(program_of(fields, cluster));
      CHECK_MESSAGE(!fault, fault.value_or(""));
    }
  }
}

TEST_CASE("what is saved outside checkpoints goes to host memory and comes back") {
  const program::Program program = program_of({{"checkpointing", "full"}, {"offload", "activations"}});
  const auto count = [&](const std::string& what) {
    int found = 0;
    for (const program::Buffer& buffer : program.main.buffers) {
      if (program.labels[static_cast<std::size_t>(buffer.label)].ends_with(what)) ++found;
    }
    return found;
  };
  CHECK(count(": activation in host memory") > 0);
  CHECK(count(": activation, brought back") > 0);
  CHECK_THROWS_WITH_AS(program_of({{"checkpointing", "none"}, {"offload", "activations"}}),
                       doctest::Contains("its recipes want both: --checkpointing full"), NotModelled);
}

TEST_CASE("an update within backward is sound, and leaves no gradients to one behind it") {
  const std::vector<Field> fields{{"optimizer_in_backward", "on"}, {"optimizer", "adamw:foreach"}};
  for (const char* const cluster : {"1xH100-80GB", "4xH100-80GB"}) {
    CAPTURE(cluster);
    const program::Program program = program_of(fields, cluster, spec_of_test(), {.clip = false});
    const auto fault = program::fault_of(program);
    CHECK_MESSAGE(!fault, fault.value_or(""));
    CHECK_THROWS_WITH_AS(program_of(fields, cluster), doctest::Contains("with gradient clipping"), NotModelled);
  }
  CHECK_THROWS_WITH_AS(program_of({{"optimizer_in_backward", "on"}, {"grad_accum", "2"}}),
                       doctest::Contains("--grad-accum 2"), NotModelled);
}

TEST_CASE("Phi-3's packed matrices are apart, and Gemma's heads are of any size") {
  ModelSpec phi = spec_of_test();
  phi.model_type = "phi3";
  ModelSpec gemma = spec_of_test();
  gemma.model_type = "gemma";
  gemma.architecture = "GemmaForCausalLM";
  gemma.tie_word_embeddings = true;
  gemma.activation = Activation::gelu_tanh;
  gemma.head_dim = 32;
  ModelSpec gemma2 = gemma;
  gemma2.model_type = "gemma2";
  gemma2.architecture = "Gemma2ForCausalLM";
  CHECK_THROWS_WITH_AS(program_of({}, "1xH100-80GB", gemma2), doctest::Contains("for Gemma 3"), NotModelled);
  gemma2.attention_softcap = 50;
  gemma2.final_logit_softcap = 30;
  CHECK_THROWS_WITH_AS(program_of({{"attention", "flash"}}, "1xH100-80GB", gemma2),
                       doctest::Contains("--attention flash"), NotModelled);
  for (const ModelSpec& spec : {phi, gemma, gemma2}) {
    CAPTURE(spec.model_type);
    const program::Program program = program_of({{"method", "lora"}}, "1xH100-80GB", spec);
    CHECK(!program::fault_of(program));
    CHECK(allocations_of(program, "rope: cache") == 2);
  }
}

TEST_CASE("what torchtune's recipes have no rules for is refused by name") {
  const auto refused = [](const std::vector<Field>& fields, const std::string& cluster, const char* says) {
    CAPTURE(says);
    CHECK_THROWS_WITH_AS(program_of(fields, cluster), doctest::Contains(says), NotModelled);
  };
  refused({{"precision", "bf16-mixed"}}, "4xH100-80GB", "--precision bf16-mixed with --modeling torchtune");
  refused({{"loss", "full"}}, "1xH100-80GB", "--loss full with --modeling torchtune");
  refused({{"method", "lora"}, {"optimizer_in_backward", "on"}}, "1xH100-80GB", "--optimizer-in-backward on");
  refused({{"method", "qlora"}, {"precision", "fp32"}}, "1xH100-80GB", "--precision fp32 with --method qlora");
  refused({{"checkpointing", "every:2"}}, "1xH100-80GB", "--checkpointing every:2");
  refused({{"method", "lora"}, {"lora_targets", "q_proj,up_proj"}}, "1xH100-80GB", "--lora-targets q_proj,up_proj");
  refused({{"method", "lora"}, {"lora_targets", "gate_proj,up_proj,down_proj"}}, "2xH100-80GB", "--lora-targets gate");
  refused({{"method", "lora"}, {"lora_targets", "model.layers.1.*"}}, "1xH100-80GB", "in all layers");
  refused({{"method", "lora"}, {"rslora", "on"}}, "1xH100-80GB", "--rslora on");
  refused({{"method", "qlora"}, {"dora", "on"}}, "1xH100-80GB", "--dora on with --method qlora");
  refused({{"method", "lora"}, {"frozen_dtype", "fp32"}}, "1xH100-80GB", "--frozen-dtype fp32");
  refused({{"method", "qlora"}, {"quantization", "nf4"}}, "1xH100-80GB", "--quantization nf4 and");
  refused({{"method", "qlora"}}, "1xH100-80GB", "torchao's NF4 takes multiples of 16384");  // of a small model
  refused({{"offload", "params"}}, "4xH100-80GB", "--offload params");
  refused({{"optimizer", "adamw-8bit:paged"}}, "4xH100-80GB", "with FSDP2");
}

}  // namespace
}  // namespace vramfit
