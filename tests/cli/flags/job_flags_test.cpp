#include "cli/flags/job_flags.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <sstream>

#include "base/conflict.h"
#include "base/error.h"
#include "cli/configs/syntax/shell_words.h"
#include "cli/flags/flag_synonyms.h"
#include "job/fields/job_fields.h"
#include "job/fields/job_json.h"
#include "job/fields/whole_job_flags.h"
#include "job/fields/zero_text.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_directory.h"

namespace vramfit {
namespace {

/// As a command line is read; what is read otherwise than typed is said in `notes`.
JobChoice choice_of(const std::vector<std::string>& words, std::vector<std::string>* notes = nullptr) {
  CLI::App app;
  JobFlags flags;
  add_job_flags(app, flags);
  std::vector<std::string> said;
  std::vector<std::string> arguments = with_known_flags(app, words, said);
  if (notes != nullptr) *notes = said;
  std::reverse(arguments.begin(), arguments.end());
  app.parse(arguments);
  return read_job_choice(flags);
}

std::string message_of(const std::vector<std::string>& arguments) {
  try {
    choice_of(arguments);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

// A value of each field that isn't its default.
const std::vector<std::pair<std::string, std::string>> kOtherValues{
    {"runtime", "pytorch-fsdp2"},
    {"modeling", "torchtitan"},
    {"method", "lora"},
    {"precision", "bf16-pure"},
    {"storage_dtype", "fp32"},
    {"compute_dtype", "fp16"},
    {"reduce_dtype", "fp16"},
    {"buffer_dtype", "bf16"},
    {"output_dtype", "fp32"},
    {"state_dtype", "fp32"},
    {"loss_scale", "dynamic:1024:50"},
    {"mesh", "replicate=2,shard=4"},
    {"sharding", "hybrid-shard"},
    {"reshard", "4"},
    {"wrap", "pattern:layers.*,embed"},
    {"wrap_embeddings", "off"},
    {"prefetch", "backward=pre,forward=2,limit=3"},
    {"reduce_finish", "end"},
    {"accumulate", "unsharded"},
    {"bucket_bytes", "1000000"},
    {"overlap_comm", "on"},
    {"find_unused_parameters", "off"},
    {"zero3_sizes", "auto"},
    {"grpo", "reference,num_iterations=2,steps_per_generation=4"},
    {"reshard_head", "on"},
    {"deterministic", "on"},
    {"load", "rank0"},
    {"checkpointing", "every:2"},
    {"reentrant_checkpoints", "on"},
    {"packing", "bfd"},
    {"offload", "params,activations:every:2"},
    {"optimizer", "adamw:foreach"},
    {"optimizer_in_backward", "on"},
    {"loss", "chunked:7"},
    {"label_smoothing", "0.125"},
    {"z_loss", "0.0001"},
    {"ignore_index", "7"},
    {"attention", "math"},
    {"compile", "on"},
    {"kernels", "vramfit"},
    {"allocator", "expandable_segments=True,max_split_size_mb=64"},
    {"freeze", "*.norm.*,lm_head"},
    {"master_dtype", "fp16"},
    {"gradient_dtype", "fp8"},
    {"frozen_dtype", "bf16"},
    {"quantization", "nf4-double"},
    {"gradient_mask", "keep:0.3"},
    {"lora_rank", "8"},
    {"lora_alpha", "32"},
    {"lora_dropout", "0.05"},
    {"lora_targets", "q_proj,*.mlp.*"},
    {"rslora", "on"},
    {"dora", "on"},
    {"seq_len", "512"},
    {"rotary_positions", "4096"},
    {"micro_batch", "3"},
    {"grad_accum", "5"},
    {"global_batch", "120"}};

}  // namespace

TEST_CASE("runtimes are known by their names, and by short ones") {
  for (const char* name : {"pytorch-fsdp1", "fsdp1"}) {
    CAPTURE(name);
    CHECK(choice_of({"--runtime", name}).job.runtime == Runtime::pytorch_fsdp1);
  }
  for (const char* name : {"pytorch-ddp", "ddp"}) {
    const Job job = choice_of({"--runtime", name}).job;
    CHECK((job.runtime == Runtime::pytorch && job.sharding == "no-shard"));
  }
  CHECK(message_of({"--runtime", "horovod"}).find("unknown") != std::string::npos);
}

TEST_CASE("the names and values of the job flags are those of the frozen list") {
  std::ifstream file(testing::source_dir() + "/tests/cli/job_flags.txt");
  std::ostringstream frozen;
  frozen << file.rdbuf();
  std::string flags;
  for (const JobField& field : job_fields()) flags += fmt::format("{} {}\n", flag_of(field), field.values);
  CHECK(flags == frozen.str());
}

TEST_CASE("every field keeps a value that differs from its default through flags and through JSON") {
  REQUIRE(kOtherValues.size() == job_fields().size());
  std::vector<std::string> arguments;
  for (const auto& [name, value] : kOtherValues)
    arguments.push_back(fmt::format("{}={}", flag_of(job_field_named(name)), value));
  const JobChoice choice = choice_of(arguments);
  CHECK(choice.fixed.size() == kOtherValues.size());
  const Job read_back = job_from_json(job_to_json(choice.job), "job.json");
  for (const auto& other : kOtherValues) {
    CAPTURE(other.first);
    CHECK(job_field_named(other.first).get(choice.job) == other.second);
    CHECK(job_field_named(other.first).get(read_back) == other.second);
  }
}

TEST_CASE("the flags that answers print are the job, as one types them, with every field set") {
  std::vector<std::string> arguments;
  for (const auto& [name, value] : kOtherValues)
    arguments.push_back(fmt::format("{}={}", flag_of(job_field_named(name)), value));
  const Job job = choice_of(arguments).job;
  // By the runtime, as this one isn't of that stack: whole_job_flags_test.cpp has those that are.
  const std::string printed = whole_job_flags(job, stack_named("vramfit"), parse_cluster("8xH100-80GB"));
  CHECK(printed.find("--deterministic on") != std::string::npos);
  const std::vector<std::vector<ShellWord>> commands = shell_commands(printed, "");
  REQUIRE(commands.size() == 1);
  std::vector<std::string> words;
  for (const ShellWord& word : commands.front()) words.push_back(word.text);
  const Job again = choice_of(words).job;
  CHECK(job_to_json(again) == job_to_json(job));
}

TEST_CASE("what is on or off needs no value, and takes one behind a space or '='") {
  for (const JobField& field : job_fields()) {
    if (field.values != "on|off") continue;
    CAPTURE(field.name);
    const std::string flag = flag_of(field);
    CHECK(field.get(choice_of({flag, "some-model"}).job) == "on");
    CHECK(field.get(choice_of({"some-model", flag}).job) == "on");
    CHECK(field.get(choice_of({flag, "on", "some-model"}).job) == "on");
    for (const char* off : {"off", "false", "no"}) {
      CHECK(choice_of({flag, off, "some-model"}).fixed == std::vector<std::string>{std::string(field.name)});
      CHECK(field.get(choice_of({flag + "=" + off}).job) == field.get(choice_of({flag + "=off"}).job));
      CHECK(field.get(choice_of({flag, off}).job) != "on");
    }
    CHECK(message_of({flag + "=maybe"}).find("unknown value \"maybe\"") != std::string::npos);
  }
}

TEST_CASE("transformers' --fsdp is read with its words, and without any") {
  const auto read = [](const std::vector<std::string>& words) {
    const Job job = choice_of(words).job;
    return job.sharding + " " + job_field_named("offload").get(job);
  };
  for (const char* words : {"full_shard", "full_shard auto_wrap", "auto_wrap", "true", "full_shard,auto_wrap",
                            "FULL_SHARD", "full-shard"}) {
    CAPTURE(words);
    CHECK(read({"--fsdp", words, "some-model"}) == read({"--sharding", "full-shard"}));
    CHECK(read({"some-model", std::string("--fsdp=") + words}) == read({"--sharding", "full-shard"}));
  }
  CHECK(read({"--fsdp", "some-model"}) == read({"--sharding", "full-shard"}));
  CHECK(read({"--fsdp", "shard_grad_op auto_wrap"}) == read({"--sharding", "shard-grad-op"}));
  CHECK(read({"--fsdp", "hybrid_shard"}) == read({"--sharding", "hybrid-shard"}));
  CHECK(read({"--fsdp", "full_shard auto_wrap offload"}) == read({"--sharding", "full-shard", "--offload", "params"}));
  std::vector<std::string> notes;
  choice_of({"--fsdp", "shard_grad_op offload"}, &notes);
  CHECK(notes ==
        std::vector<std::string>{"--fsdp shard_grad_op offload is read as --sharding shard-grad-op --offload params"});
  CHECK(message_of({"--fsdp=everything"}).find("--sharding: unknown sharding \"everything\"") == 0);
}

TEST_CASE("without flags nothing is decided and nothing is fixed") {
  const JobChoice choice = choice_of({"some-model"});
  CHECK(choice.fixed.empty());
  CHECK(choice.job.precision.name.empty());
  CHECK(choice.job.micro_batch == 0);
}

TEST_CASE("a precision sets its dtypes and a dtype given alone wins over it") {
  const Job job = choice_of({"--state-dtype", "fp32", "--precision", "bf16-pure"}).job;
  CHECK(job.precision.storage == Dtype::bf16);
  CHECK(job.precision.state == Dtype::f32);
}

TEST_CASE("FSDP's upper-case names of shardings are read") {
  CHECK(choice_of({"--sharding", "SHARD_GRAD_OP"}).job.sharding == "shard-grad-op");
}

TEST_CASE("flags win over the job file and --set wins over flags") {
  const testing::TemporaryDirectory directory;
  const std::string file = (directory.path() / "job.json").string();
  std::ofstream(file) << R"({"seq_len": 128, "micro_batch": 2, "checkpointing": "full"})";
  const JobChoice choice = choice_of({"--job", file, "--seq-len", "256", "--set", "micro-batch=8"});
  CHECK(choice.job.sequence == 256);
  CHECK(choice.job.micro_batch == 8);
  CHECK(std::holds_alternative<FullCheckpointing>(choice.job.checkpointing));
  CHECK(choice.fixed == std::vector<std::string>{"checkpointing", "seq_len", "micro_batch"});
}

TEST_CASE("a wrong value names the flag, the value and what would be right") {
  CHECK(message_of({"--sharding", "ful-shard"}).find("--sharding: ") == 0);
  CHECK(message_of({"--checkpointing", "ful"}).find("did you mean \"full\"?") != std::string::npos);
  CHECK(message_of({"--seq-len", "0"}) == "--seq-len: 0 is outside 1 to 268435456");
  CHECK(message_of({"--seq-len=-5"}) == "--seq-len: -5 is outside 1 to 268435456");
  CHECK(message_of({"--seq-len", "99999999999999999999"}).find("is outside") != std::string::npos);
  CHECK(message_of({"--seq-len", "4kb"}) == "--seq-len: \"4kb\" is not a whole number");
  CHECK(choice_of({"--seq-len", "4k"}).job.sequence == 4096);
  CHECK(message_of({"--mesh", "tenser=2"}).find("unknown axis \"tenser\"; did you mean \"tensor\"?") !=
        std::string::npos);
  for (const std::string axis : {"tensor", "context", "pipeline", "expert"}) {
    CHECK_THROWS_WITH_AS(choice_of({"--mesh", axis + "=2,shard=4"}),
                         doctest::Contains(("--mesh " + axis + "=2;").c_str()), NotModelled);
    CHECK(choice_of({"--mesh", axis + "=1,shard=4"}).job.mesh.shard == 4);
  }
  CHECK(message_of({"--set", "seqlen=5"}).find("did you mean \"seq_len\"?") != std::string::npos);
  CHECK(message_of({"--set", "seq_len"}) == "--set seq_len: is not KEY=VALUE");
}

TEST_CASE("a job file with an unknown key, a wrong type or a repeated key is refused by name") {
  const auto refused = [](const std::string& text) {
    try {
      job_from_json(text, "job.json");
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refused(R"({"seq_length": 5})").find("job.json: seq_length: unknown key; did you mean \"seq_len\"?") == 0);
  CHECK(refused(R"({"seq_len": "5"})") == "job.json: seq_len: is a string, not an integer");
  CHECK(refused(R"({"seq_len": -5})").find("job.json: seq_len: -5 is outside") == 0);
  CHECK(refused(R"({"reshard_head": 1})") == "job.json: reshard_head: is an integer, not true or false");
  CHECK(refused(R"({"seq_len": 5, "seq_len": 6})") == "job.json: key \"seq_len\" appears twice in one object");
  CHECK(refused("[1, 2") == "job.json: line 1: not valid JSON (it ends too early)");
  CHECK(refused(std::string(1000, '[')).find("nested deeper") != std::string::npos);
}

TEST_CASE("a mesh that names one axis leaves the other to the cluster") {
  const Job job = choice_of({"--mesh", "shard=4"}).job;
  CHECK(job.mesh.shard == 4);
  CHECK(job.mesh.replicate == 0);
}

TEST_CASE("FSDP1 where it can't be says what is meant") {
  const auto message = [](const std::string& stack, const std::string& gpus, const std::string& sharding) {
    CLI::App app;
    JobFlags flags;
    add_job_flags(app, flags);
    std::vector<std::string> arguments{sharding, "--sharding", "pytorch-fsdp1", "--runtime"};  // from the last
    app.parse(arguments);
    try {
      read_job_choice(flags, stack_named(stack), parse_cluster(gpus));
    } catch (const Conflict& conflict) {
      return std::string(conflict.what());
    }
    return std::string();
  };
  CHECK(message("transformers", "2xA100-40GB", "full-shard").empty());
  CHECK(message("transformers", "1xA100-40GB", "full-shard").find("on one GPU: there is nothing to shard") !=
        std::string::npos);
  CHECK(message("transformers", "2xA100-40GB", "no-shard").find("copies are DDP's") != std::string::npos);
  CHECK(message("trl-dpo", "2xA100-40GB", "full-shard").find("--stack transformers and trl have it") !=
        std::string::npos);
}

TEST_CASE("a size of ZeRO-3 is named once, and one beyond all models is no limit") {
  CHECK(message_of({"--zero3-sizes", "sub_group_size=5,max_live_parameters=6,sub_group_size=5"})
            .find("sub_group_size: is there twice") != std::string::npos);
  const Job job = choice_of({"--zero3-sizes", "sub_group_size=9000000000000000000"}).job;
  CHECK(job.zero3_sizes.sub_group_size == kMostZero3Size);
}

TEST_CASE("ZeRO-3 alone overlaps unless it is said not to") {
  const std::vector<std::string> zero3{"--runtime", "deepspeed"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), zero3.begin(), zero3.end());
    return choice_of(more);
  };
  CHECK(overlaps_reductions(with({}).job));
  CHECK_FALSE(overlaps_reductions(with({"--overlap-comm", "off"}).job));
  CHECK_FALSE(overlaps_reductions(with({"--sharding", "shard-grad-op"}).job));
  CHECK(overlaps_reductions(with({"--sharding", "shard-grad-op", "--overlap-comm", "on"}).job));
  CHECK_FALSE(overlaps_reductions(choice_of({}).job));
}

TEST_CASE("a stack's default micro-batch gives way to a global batch that it doesn't divide") {
  const auto micro_batch = [](const std::vector<std::string>& more) {
    CLI::App app;
    JobFlags flags;
    add_job_flags(app, flags);
    std::vector<std::string> arguments(more.rbegin(), more.rend());
    app.parse(arguments);
    return read_job_choice(flags, stack_named("trl-grpo"), parse_cluster("6xA6000")).job.micro_batch;
  };
  CHECK(micro_batch({}) == 8);
  CHECK(micro_batch({"--global-batch", "96"}) == 8);
  CHECK(micro_batch({"--global-batch", "36"}) == 6);
  CHECK(micro_batch({"--global-batch", "36", "--grad-accum", "3"}) == 0);   // it follows
  CHECK(micro_batch({"--global-batch", "36", "--micro-batch", "8"}) == 8);  // refused later
}

}  // namespace vramfit
