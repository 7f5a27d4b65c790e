// TRL's SFTTrainer. That its step is what TRL does is tested in tests/oracle/hf_trainer, event by event.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "estimator/estimate.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "job/stacks/stacks.h"
#include "model_specs/graph.h"
#include "program/make_program.h"
#include "program/pytorch/calls/kernels.h"
#include "tests/support/models.h"

namespace vramfit {
namespace {

const Cluster kOneCard = parse_cluster("1xH100-80GB");

Job sft_job(const std::string& field = "", const std::string& value = "") {
  Job job = on_stack(unresolved_job(), defaults_of(stack_named("trl"), kOneCard));
  job_field_named("seq_len").set(job, "512");
  if (!field.empty()) job_field_named(field).set(job, value);
  return job;
}

/// The largest buffer of a part of the program.
Bytes largest_of(const Job& job, const char* part) {
  std::vector<std::string> notes;
  ModelSpec spec = testing::small_llama();
  spec.vocab_size = 4000;  // of fewer rows the embedding's gradient has no rules
  const program::Program made = program::make_program({.graph = build_graph(spec, {}),
                                                       .job = resolve_job(job, spec, kOneCard, notes),
                                                       .device = kOneCard.card.device,
                                                       .coords = {}});
  Bytes largest;
  for (const program::Buffer& buffer : made.main.buffers) {
    const std::string& name = made.labels[static_cast<std::size_t>(buffer.label)];
    if (name.starts_with(part)) largest = std::max(largest, buffer.bytes);
  }
  return largest;
}

Bytes largest_of_loss(const Job& job) { return largest_of(job, "loss: "); }

TEST_CASE("SFTTrainer computes logits in a tile of 32768 columns and at most 4096 tokens, whatever the vocabulary") {
  CHECK(largest_of_loss(sft_job()) == Bytes{511 * 32768 * 2});
  CHECK(largest_of_loss(sft_job("micro_batch", "16")) == Bytes{4096 * 32768 * 2});
  CHECK(largest_of_loss(sft_job("precision", "fp32")) == Bytes{511 * 32768 * 4});
}

TEST_CASE("SFTTrainer checkpoints layers unless it is told not to") {
  const auto total = [](const Job& job) {
    return worst_rank(estimate(testing::small_llama(), job, kOneCard, {.suggestions = false})).total;
  };
  const Job job = sft_job();
  CHECK(job_field_named("checkpointing").get(job) == "full");
  CHECK(total(job) <= total(sft_job("checkpointing", "none")));
  CHECK(estimate(testing::small_llama(), job, kOneCard, {.suggestions = false}).stack == "trl");
}

TEST_CASE("packed documents are one row with a mask of its length squared, in any shape of the same row") {
  const auto mask = [](const char* length, const char* rows) {
    Job job = sft_job("packing", "bfd");
    job_field_named("seq_len").set(job, length);
    job_field_named("micro_batch").set(job, rows);
    return largest_of(job, "mask: ");
  };
  CHECK(mask("512", "2") == Bytes{1024 * 1024});
  CHECK(mask("1024", "1") == Bytes{1024 * 1024});
  CHECK(largest_of(sft_job("micro_batch", "2"), "mask: ") == Bytes{1024 * 8});  // tokens that count, as numbers
  const auto why = [](const std::string& field, const std::string& value) {
    Job job = sft_job("packing", "bfd");
    job_field_named(field).set(job, value);
    const Estimate made = estimate(testing::small_llama(), job, kOneCard, {.suggestions = false});
    return made.verdict == Verdict::not_modelled ? made.why : "";
  };
  CHECK(why("attention", "flash").find("--packing bfd with --attention flash") != std::string::npos);
  CHECK(why("modeling", "trl-dpo").find("--packing bfd") != std::string::npos);
  CHECK(why("attention", "auto").empty());
}

TEST_CASE("the flash-attn package has no mask for packed documents") {
  Job job = sft_job("packing", "bfd");
  job_field_named("attention").set(job, "flash-attn");
  job_field_named("seq_len").set(job, "1024");
  CHECK(largest_of(job, "mask: ") == Bytes{1025 * 8});  // positions, and one before
}

TEST_CASE("what counts and picks the labels that are trained takes tiles of the card's own size") {
  const auto device = [](int capability, int sms) {
    return Device{.name = "", .compute_capability = capability, .sm_count = sms};
  };
  // Sizes at which torch 2.11 was seen to allocate more.
  struct Seen {
    int capability, sms;
    std::int64_t count, most;
  };
  for (const auto& [capability, sms, count, most] : {Seen{80, 108, 17663, 73728},
                                                     {86, 82, 10239, 20480},
                                                     {89, 128, 15615, 20480},
                                                     {90, 132, 21503, 135168},
                                                     {100, 148, 24063, 112640},
                                                     {120, 170, 20735, 112640}}) {
    CAPTURE(capability);
    const Device card = device(capability, sms);
    CHECK(eager::count_scratch(4096, card) == Bytes{1});
    CHECK(eager::count_scratch(4097, card) == Bytes{count});
    CHECK(eager::select_scratch(most, card) == Bytes{1023});
    CHECK(eager::select_scratch(most + 1, card) == Bytes{1279});
    CHECK(eager::index_sort_scratch(2304, card) == Bytes{1});
    CHECK(eager::index_sort_scratch(100000, card) == Bytes{1600000 + (capability < 90 ? 34303 : 29183)});
  }
}

}  // namespace
}  // namespace vramfit
