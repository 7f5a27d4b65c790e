#include "executor/run/agreement.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "executor/run/run_checkpoints.h"
#include "job/fields/job_fields.h"
#include "job/loss/loss_options.h"
#include "job/run/run_flags.h"
#include "tests/executor/training/small_training_torch.h"

using namespace vramfit;           // NOLINT(google-build-using-namespace): the test's only subject
using namespace vramfit::testing;  // NOLINT(google-build-using-namespace): likewise

namespace {

using Arguments = std::vector<std::string>;

struct FlagRow {
  std::string_view name, value;  // another value than the default, and than kBase's
  bool shared;                   // whether ranks must agree on it
};

// Every flag of vramfit-train. What isn't shared names files of rank 0 or of each rank, or what a rank may take of its
// machine; --plan and --device count by what they lead to.
constexpr std::array kFlags{
    FlagRow{"--plan", "other.json", false}, FlagRow{"-o", "other.json", false},
    FlagRow{"--device", "cpu", false},      FlagRow{"--ghosts", "on", false},
    FlagRow{"--steps", "11", true},         FlagRow{"--data", "other.bin", true},
    FlagRow{"--token-bytes", "4", true},    FlagRow{"--weights", "other", true},
    FlagRow{"--save", "other", true},       FlagRow{"--save-every", "3", true},
    FlagRow{"--keep", "2", true},           FlagRow{"--save-full", "other", true},
    FlagRow{"--adapters", "other", true},   FlagRow{"--save-adapters", "other", true},
    FlagRow{"--resume", "other", true},     FlagRow{"--lr", "0.5", true},
    FlagRow{"--warmup", "2", true},         FlagRow{"--clip", "0.5", true},
    FlagRow{"--beta1", "0.5", true},        FlagRow{"--beta2", "0.5", true},
    FlagRow{"--eps", "0.5", true},          FlagRow{"--weight-decay", "0.5", true},
    FlagRow{"--momentum", "0.5", true},     FlagRow{"--beta2-decay", "0.5", true},
    FlagRow{"--eps1", "0.5", true},         FlagRow{"--eps2", "0.5", true},
    FlagRow{"--update-clip", "2", true},    FlagRow{"--seed", "7", true},
    FlagRow{"--threads", "2", false},       FlagRow{"--budget", "1000", false},
    FlagRow{"--timeout", "5", false},       FlagRow{"--events", "other", false},
    FlagRow{"--progress", "none", false},   FlagRow{"--metrics", "other", false},
    FlagRow{"--trace", "other", false},     FlagRow{"--trace-steps", "1-2", false},
    FlagRow{"--snapshot", "other", false},  FlagRow{"--dump-state", "other", true},
    FlagRow{"--dump-gradients", "1", true}, FlagRow{"--dump-logits", "on", true},
};

/// Flags that others need; phantoms allow --ghosts.
const Arguments kBase{"--plan", "plan.json", "--device",     "phantom", "--data",  "tokens.bin",
                      "--save", "saved",     "--dump-state", "dumped",  "--trace", "trace.json"};

struct Facts {
  const char* plan = "plan";
  DeviceKind device = DeviceKind::cuda;
  const char* fingerprint = "0";
};

std::string agreement_of(const Facts& facts, const RunOptions& options) {
  return agreement(
      {.plan_text = facts.plan, .options = options, .device = facts.device, .fingerprint = facts.fingerprint});
}

std::string agreement_with(const Arguments& more) {
  Arguments arguments = kBase;
  arguments.insert(arguments.end(), more.begin(), more.end());
  return agreement_of({}, parse_run_flags(arguments));
}

struct FieldRow {
  std::string_view name, value;  // another value than the small job's
  bool decides;                  // what is computed, beyond rounding
};

constexpr std::array kFields{
    FieldRow{"runtime", "pytorch-fsdp2", false},
    FieldRow{"modeling", "torchtitan", false},
    FieldRow{"method", "lora", true},
    FieldRow{"precision", "fp8", true},
    FieldRow{"storage_dtype", "fp32", true},
    FieldRow{"compute_dtype", "fp16", true},
    FieldRow{"reduce_dtype", "fp16", true},
    FieldRow{"buffer_dtype", "bf16", true},
    FieldRow{"output_dtype", "fp32", true},
    FieldRow{"state_dtype", "bf16", true},
    FieldRow{"loss_scale", "8", true},
    FieldRow{"mesh", "replicate=2,shard=1", false},
    FieldRow{"sharding", "no-shard", false},
    FieldRow{"reshard", "never", false},
    FieldRow{"wrap", "none", false},
    FieldRow{"wrap_embeddings", "off", false},
    FieldRow{"prefetch", "backward=none,forward=0", false},
    FieldRow{"reduce_finish", "end", false},
    FieldRow{"accumulate", "unsharded", false},
    FieldRow{"bucket_bytes", "1000", false},
    FieldRow{"overlap_comm", "on", false},
    FieldRow{"find_unused_parameters", "on", false},
    FieldRow{"zero3_sizes", "auto", false},
    FieldRow{"grpo", "reference", false},
    FieldRow{"reshard_head", "on", false},
    FieldRow{"deterministic", "on", false},
    FieldRow{"load", "rank0", false},
    FieldRow{"checkpointing", "full", false},
    FieldRow{"reentrant_checkpoints", "on", false},
    FieldRow{"packing", "bfd", false},
    FieldRow{"offload", "params", false},
    FieldRow{"optimizer", "adamw:loop", false},
    FieldRow{"optimizer_in_backward", "on", false},
    FieldRow{"loss", "chunked:2", false},
    FieldRow{"label_smoothing", "0.1", true},
    FieldRow{"z_loss", "1e-4", true},
    FieldRow{"ignore_index", "0", true},
    FieldRow{"attention", "math", false},
    FieldRow{"compile", "on", false},
    FieldRow{"kernels", "vramfit", false},
    FieldRow{"allocator", "native", false},
    FieldRow{"freeze", "*norm*", true},
    FieldRow{"master_dtype", "fp16", true},
    FieldRow{"gradient_dtype", "fp8", true},
    FieldRow{"gradient_dtype", "fp8-sent", true},
    FieldRow{"gradient_dtype", "fp32", true},
    FieldRow{"gradient_dtype", "fp16", true},
    FieldRow{"gradient_dtype", "bf16", false},  // that of --storage-dtype
    FieldRow{"frozen_dtype", "fp16", true},
    FieldRow{"quantization", "nf4", true},
    FieldRow{"gradient_mask", "keep:0.5", true},
    FieldRow{"lora_rank", "3", true},
    FieldRow{"lora_alpha", "16", true},
    FieldRow{"lora_dropout", "0.1", true},
    FieldRow{"lora_targets", "q_proj", true},
    FieldRow{"rslora", "on", true},
    FieldRow{"dora", "on", true},
    FieldRow{"seq_len", "16", true},
    FieldRow{"rotary_positions", "64", false},
    FieldRow{"micro_batch", "3", false},
    FieldRow{"grad_accum", "3", false},
    FieldRow{"global_batch", "16", true},
};

Job base_job() {
  Job job = small_job("full-shard", 2);
  job.precision = precision_named("bf16-mixed");
  job.precision.storage = Dtype::bf16;
  return job;
}

std::vector<std::pair<std::string, std::string>> facts_of(const Job& job) {
  const ModelSpec spec = small_model("llama");
  const Graph graph = build_graph(spec, loss_options(job));
  const RunOptions options;
  const RankPlace place;
  PlanFile plan;
  plan.spec = spec;
  plan.job = job;
  std::vector<std::pair<std::string, std::string>> facts;
  spawn_ranks(1, 1, [&](ProcessGroups& groups) {
    facts = run_facts({.options = options, .plan = plan, .place = place, .groups = groups}, graph,
                      CountedRows(spec.vocab_size, 8));
  });
  return facts;
}

}  // namespace

TEST_CASE("ranks agree on every flag that decides what is computed or who talks, and on no other") {
  const std::string base = agreement_with({});
  const RunOptions options = parse_run_flags(kBase);
  CHECK(agreement_of({.plan = "another plan"}, options) != base);
  CHECK(agreement_of({.device = DeviceKind::cpu}, options) != base);
  CHECK(agreement_of({.fingerprint = "1"}, options) != base);
  for (const FlagRow& flag : kFlags) {
    CAPTURE(flag.name);
    CHECK((agreement_with({std::string(flag.name), std::string(flag.value)}) != base) == flag.shared);
    CHECK(run_flags_help().find("  " + std::string(flag.name) + " ") != std::string::npos);
  }
  const std::string help = run_flags_help();  // one line a flag besides three of text, --support and --calibrate
  CHECK(std::ranges::count(help, '\n') == static_cast<std::ptrdiff_t>(kFlags.size()) + 5);
}

TEST_CASE("ranks that would run different programs are refused by name before any of them waits in a collective") {
  for (const int odd : {0, 1, 2}) {
    CAPTURE(odd);
    const auto agreed = [&](int rank) { return agreement_of({.fingerprint = rank == odd ? "1" : "0"}, {}); };
    const auto never = [](ProcessGroups& /*groups*/) { FAIL("ranks that differ went on"); };
    CHECK_THROWS_WITH_AS(spawn_ranks(3, 1, never, 0, agreed), doctest::Contains("set up differently from rank 0"),
                         Error);
  }
}

TEST_CASE("a resumed run is held to every field of the job that decides what is computed, and to no other") {
  std::set<std::string_view> named;
  for (const FieldRow& row : kFields) named.insert(row.name);
  for (const JobField& field : job_fields()) CHECK_MESSAGE(named.contains(field.name), field.name);
  CHECK(named.size() == job_fields().size());
  const auto base = facts_of(base_job());
  for (const FieldRow& row : kFields) {
    CAPTURE(row.name);
    Job job = base_job();
    job_field_named(row.name).set(job, row.value);
    if (row.name == "precision") job.precision.storage = Dtype::bf16;  // so that FP8 products are all that differs
    CHECK((facts_of(job) != base) == row.decides);
  }
}
