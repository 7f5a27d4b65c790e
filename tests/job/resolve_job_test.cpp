#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "base/error.h"
#include "estimator/estimate.h"
#include "job/fields/job_fields.h"
#include "job/fields/job_json.h"
#include "job/resolve_job.h"
#include "tests/support/job_settings.h"
#include "tests/support/models.h"

namespace vramfit {

using testing::job_with;
using testing::Settings;

namespace {

Job resolved(const Settings& settings, const char* cluster, const ModelSpec& spec = testing::llama_8b()) {
  std::vector<std::string> notes;
  return resolve_job(job_with(settings), spec, parse_cluster(cluster), notes);
}

std::string error_of(const Settings& settings, const char* cluster, const ModelSpec& spec = testing::llama_8b()) {
  try {
    resolved(settings, cluster, spec);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("an empty job gets the defaults of its device, and each is noted") {
  std::vector<std::string> notes;
  const Job job = resolve_job(unresolved_job(), testing::llama_8b(), parse_cluster("8xH100-80GB"), notes);
  CHECK(job.precision.name == "bf16-mixed");
  CHECK(job.sequence == 4096);
  CHECK(job.mesh == Mesh{.replicate = 1, .shard = 8});
  CHECK(job.micro_batch == 1);
  CHECK(job.accumulation == 1);
  CHECK(job.global_batch == 8);
  CHECK(notes.size() == 6);
  CHECK(resolved({}, "2xcpu-4GiB").precision.name == "fp32");
  CHECK(resolved({}, "2xcpu-4GiB", testing::small_llama()).sequence == 256);
}

TEST_CASE("by default the loss is chunked where that needs less memory on a GPU") {
  const auto loss_of = [](const Settings& settings, const char* cluster = "8xH100-80GB",
                          const ModelSpec& spec = testing::llama_8b()) {
    return job_field_named("loss").get(resolved(settings, cluster, spec));
  };
  CHECK(loss_of({}) == "full");  // 4096 tokens of logits weigh less than the fp32 gradient of a head 4096 wide
  CHECK(loss_of({{"micro_batch", "2"}}) == "chunked:8");
  CHECK(loss_of({{"seq_len", "8192"}}) == "chunked:8");
  CHECK(loss_of({{"reduce_dtype", "bf16"}}) == "chunked:4");
  CHECK(loss_of({{"micro_batch", "2"}, {"loss", "full"}}) == "full");
  CHECK(loss_of({{"micro_batch", "2"}, {"loss", "chunked:3"}}) == "chunked:3");
  CHECK(loss_of({{"micro_batch", "2"}}, "8xcpu-64GiB") == "full");
  CHECK(loss_of({{"micro_batch", "2"}, {"runtime", "pytorch-fsdp2"}}) == "full");
  CHECK(loss_of({{"micro_batch", "4"}}, "1xH100-80GB", testing::small_llama()) == "full");  // 1024 tokens
}

TEST_CASE("a head that isn't trained has no gradient: the loss is chunked from 512 tokens on") {
  const auto loss_of = [](const std::string& freeze, const char* sequence, bool tied = false) {
    ModelSpec spec = testing::llama_8b();
    spec.tie_word_embeddings = tied;
    return job_field_named("loss").get(
        resolved({{"freeze", freeze.c_str()}, {"seq_len", sequence}}, "8xH100-80GB", spec));
  };
  CHECK(loss_of("head", "4096") == "chunked:8");
  CHECK(loss_of("layers:0,lm_head*", "1024") == "chunked:2");
  CHECK(loss_of("head", "512") == "full");
  CHECK(loss_of("embeddings", "4096") == "full");
  CHECK(loss_of("layers:0-3", "4096") == "full");
  CHECK(loss_of("embeddings", "1024", true) == "chunked:2");
  CHECK(loss_of("*embed_tokens*", "1024", true) == "chunked:2");
}

TEST_CASE("a dtype set alone stays when the precision is the device's default") {
  const Precision on_cards = resolved({{"reduce_dtype", "bf16"}}, "8xH100-80GB").precision;
  CHECK(on_cards.name == "bf16-mixed");
  CHECK(on_cards.reduce == Dtype::bf16);
  CHECK(on_cards.compute == Dtype::bf16);
  const Precision on_ranks = resolved({{"compute_dtype", "bf16"}}, "2xcpu-4GiB").precision;
  CHECK(on_ranks.name == "fp32");
  CHECK(on_ranks.compute == Dtype::bf16);
  CHECK(on_ranks.reduce == Dtype::f32);
}

TEST_CASE("a resolved job resolves to itself without a note") {
  std::vector<std::string> notes;
  const Cluster cluster = parse_cluster("2x4xA100-40GB");
  const Job once = resolve_job(job_with({{"sharding", "hybrid-shard"}}), testing::llama_8b(), cluster, notes);
  notes.clear();
  const Job twice = resolve_job(once, testing::llama_8b(), cluster, notes);
  CHECK(notes.empty());
  CHECK(job_as_flags(twice, once).empty());
}

TEST_CASE("the default mesh follows the sharding") {
  CHECK(resolved({{"sharding", "no-shard"}}, "2x4xA100").mesh == Mesh{.replicate = 8, .shard = 1});
  CHECK(resolved({{"sharding", "shard-grad-op"}}, "2x4xA100").mesh == Mesh{.replicate = 1, .shard = 8});
  CHECK(resolved({{"sharding", "hybrid-shard"}}, "2x4xA100").mesh == Mesh{.replicate = 2, .shard = 4});
}

TEST_CASE("a mesh that does not match the cards or the sharding is a usage error") {
  CHECK(contains(error_of({{"mesh", "replicate=1,shard=4"}}, "8xA100"), "4 ranks, but 8xA100 has 8 cards"));
  CHECK(contains(error_of({{"sharding", "no-shard"}, {"mesh", "replicate=1,shard=8"}}, "8xA100"), "splits nothing"));
  CHECK(contains(error_of({{"mesh", "replicate=2,shard=4"}}, "8xA100"), "no replicas"));
}

TEST_CASE("two of micro-batch, accumulation and global batch determine the third") {
  CHECK(resolved({{"micro_batch", "2"}, {"grad_accum", "3"}}, "4xA100").global_batch == 24);
  CHECK(resolved({{"micro_batch", "2"}, {"global_batch", "24"}}, "4xA100").accumulation == 3);
  CHECK(resolved({{"grad_accum", "3"}, {"global_batch", "24"}}, "4xA100").micro_batch == 2);
  const Job only_global = resolved({{"global_batch", "24"}}, "4xA100");
  CHECK(only_global.micro_batch == 1);
  CHECK(only_global.accumulation == 6);
}

TEST_CASE("batch sizes that contradict each other are a usage error that shows the product") {
  CHECK(contains(error_of({{"micro_batch", "2"}, {"grad_accum", "3"}, {"global_batch", "32"}}, "4xA100"), "= 24"));
  CHECK(contains(error_of({{"global_batch", "30"}}, "4xA100"), "can't be divided by 4 data ranks"));
  CHECK(contains(error_of({{"micro_batch", "5"}, {"global_batch", "24"}}, "4xA100"),
                 "can't be divided by --micro-batch 5"));
}

TEST_CASE("--reshard goes with strategies that reshard") {
  CHECK(error_of({{"sharding", "full-shard"}, {"reshard", "always"}}, "4xA100").empty());
  CHECK(error_of({{"sharding", "shard-grad-op"}, {"reshard", "never"}}, "4xA100").empty());
  CHECK(contains(error_of({{"sharding", "shard-grad-op"}, {"reshard", "always"}}, "4xA100"), "it never reshards"));
  CHECK(contains(error_of({{"sharding", "no-shard"}, {"reshard", "never"}}, "4xA100"), "nothing is sharded"));
  CHECK(contains(error_of({{"reshard", "3"}}, "4xA100"), "do not divide into such groups"));
}

TEST_CASE("a sequence beyond the model's positions is noted for rotary positions") {
  std::vector<std::string> notes;
  resolve_job(job_with({{"seq_len", "1024"}}), testing::small_llama(), parse_cluster("1xA100"), notes);
  CHECK(std::ranges::any_of(notes, [](const std::string& note) { return contains(note, "beyond the model's 256"); }));
}

TEST_CASE("a sequence beyond a table of positions is a usage error") {
  ModelSpec spec = testing::small_llama();
  spec.has_position_table = true;
  CHECK(contains(error_of({{"seq_len", "1024"}}, "1xA100", spec), "table of 256 positions"));
}

TEST_CASE("a label that is ignored is a token id, or that of positions without one") {
  CHECK(contains(error_of({{"ignore_index", "128256"}}, "1xA100"), "the vocabulary has 128256 token ids"));
  CHECK(error_of({{"ignore_index", "128255"}}, "1xA100").empty());
  CHECK(error_of({{"ignore_index", "-100"}}, "1xA100").empty());
  Job job;
  CHECK_THROWS_AS(set_job_field(job, job_field_named("ignore_index"), "-1", ""), InputError);
}

TEST_CASE("terms of the loss that are off are left out of a job's text, as before there were any") {
  Job job = unresolved_job();
  for (const char* name : {"label_smoothing", "z_loss", "ignore_index"}) {
    CHECK(job_field_named(name).get(job).empty());
    set_job_field(job, job_field_named(name), "1", name);
    CHECK(job_field_named(name).get(job) == "1");
  }
  set_job_field(job, job_field_named("label_smoothing"), "0", "");
  set_job_field(job, job_field_named("z_loss"), "0", "");
  set_job_field(job, job_field_named("ignore_index"), "-100", "");
  CHECK(job_to_json(job) == job_to_json(unresolved_job()));
}

TEST_CASE("a bucket by the hidden size is DeepSpeed's under the Trainer, and known with the model") {
  const Job job = resolved({{"runtime", "deepspeed"}, {"bucket_bytes", "auto"}}, "2xH100-80GB");
  CHECK(job.bucket_bytes == 2 * 4096 * 4096);
  CHECK(contains(error_of({{"bucket_bytes", "auto"}}, "2xH100-80GB"), "--bucket-bytes auto is for --stack deepspeed"));
  ModelSpec wide = testing::llama_8b();
  wide.hidden_size = std::int64_t{1} << 20;
  CHECK(contains(error_of({{"runtime", "deepspeed"}, {"bucket_bytes", "auto"}}, "2xH100-80GB", wide),
                 "--bucket-bytes auto: a hidden size of 1048576 makes it larger"));
  const Job open = job_with({{"runtime", "deepspeed"}, {"bucket_bytes", "auto"}});
  CHECK(contains(job_to_json(open), "\"bucket_bytes\": \"auto\""));
  CHECK(job_from_json(job_to_json(open), "job.json").bucket_bytes == kBucketByHiddenSize);
}

TEST_CASE("whether reductions overlap outlives a file, whatever the stage does by default") {
  for (const char* sharding : {"full-shard", "shard-grad-op"}) {
    for (const char* overlap : {"on", "off", ""}) {
      Settings settings{{"runtime", "deepspeed"}, {"sharding", sharding}};
      if (*overlap != '\0') settings.emplace_back("overlap_comm", overlap);
      const Job job = job_with(settings);
      CAPTURE(sharding);
      CAPTURE(overlap);
      CHECK(overlaps_reductions(job_from_json(job_to_json(job), "job.json")) == overlaps_reductions(job));
    }
  }
}

TEST_CASE("adapters need a method that has them") {
  CHECK(contains(error_of({{"lora_rank", "8"}}, "1xA100"), "--lora-rank with --method full: there are no adapters"));
  CHECK(contains(error_of({{"lora_targets", "q_proj"}}, "1xA100"), "--lora-targets with --method full"));
  CHECK(contains(error_of({{"rslora", "on"}}, "1xA100"), "--rslora with --method full"));
  CHECK(contains(error_of({{"dora", "on"}}, "1xA100"), "--dora with --method full"));
  CHECK(error_of({{"lora_targets", "all-linear"}}, "1xA100").empty());
}

TEST_CASE("Liger's loss of logits is refused where it changes nothing") {
  const auto error = [](const char* modeling, const ModelSpec& spec) {
    return error_of({{"runtime", "pytorch"},
                     {"modeling", modeling},
                     {"kernels", "liger:cross_entropy=on,fused_linear_cross_entropy=off"}},
                    "1xA100", spec);
  };
  ModelSpec mistral = testing::llama_8b();
  mistral.model_type = "mistral";
  CHECK(contains(error("transformers", mistral), "leaves a Mistral's loss as it is"));
  CHECK(contains(error("trl", testing::llama_8b()), "TRL's trainers"));
  CHECK(error("transformers", testing::llama_8b()).empty());
}

TEST_CASE("sizes beyond 64 bits are refused, not wrapped") {
  CHECK(
      contains(error_of({{"micro_batch", "268435456"}, {"grad_accum", "268435456"}}, "65536x1024xA100"), "overflows"));
}

}  // namespace vramfit
