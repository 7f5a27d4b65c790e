#include "job/fields/whole_job_flags.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/error.h"
#include "cli/configs/syntax/shell_words.h"
#include "cli/flags/flag_synonyms.h"
#include "cli/flags/job_flags.h"
#include "job/fields/job_json.h"
#include "job/resolve_job.h"
#include "model_specs/spec.h"
#include "tests/support/models.h"

namespace vramfit {
namespace {

/// As a command line with --stack is read, with every default filled in.
Job job_of(const std::vector<std::string>& words, const Cluster& cluster, const ModelSpec& spec) {
  CLI::App app;
  JobFlags flags;
  add_job_flags(app, flags);
  add_stack_flag(app, flags, kUsualByDefault);
  std::vector<std::string> said, notes;
  std::vector<std::string> arguments = with_known_flags(app, words, said);
  std::reverse(arguments.begin(), arguments.end());
  app.parse(arguments);
  return resolve_job(read_job_choice_on_stack(flags, cluster).job, spec, cluster, notes);
}

std::vector<std::string> words_of(const std::string& printed) {
  const std::vector<std::vector<ShellWord>> commands = shell_commands(printed, "");
  REQUIRE(commands.size() == 1);
  std::vector<std::string> words;
  for (const ShellWord& word : commands.front()) words.push_back(word.text);
  return words;
}

/// What differs from what one stack or another sets, and from the engine's defaults.
const std::vector<std::vector<std::string>> kChoices{{},
                                                     {"--checkpointing", "none"},
                                                     {"--checkpointing", "selective"},
                                                     {"--wrap-embeddings", "off"},
                                                     {"--attention", "math", "--allocator", "native"},
                                                     {"--precision", "bf16-mixed"},
                                                     {"--precision", "bf16-pure", "--reduce-dtype", "fp32"},
                                                     {"--optimizer", "adamw", "--global-batch", "8"},
                                                     {"--method", "qlora", "--frozen-dtype", "bf16"},
                                                     {"--sharding", "no-shard"},
                                                     {"--runtime", "pytorch-fsdp1", "--prefetch", "forward=1"},
                                                     {"--runtime", "deepspeed", "--bucket-bytes", "1000000"}};

}  // namespace

TEST_CASE("the flags that answers print make the same job on every stack") {
  const ModelSpec spec = testing::small_llama();
  for (const Stack& stack : stacks()) {
    for (const char* gpus : {"1xH100-80GB", "2xH100-80GB"}) {
      const Cluster cluster = parse_cluster(gpus);
      for (const std::vector<std::string>& choices : kChoices) {
        std::vector<std::string> typed{"--stack", std::string(stack.name)};
        typed.insert(typed.end(), choices.begin(), choices.end());
        CAPTURE(std::string(gpus));
        CAPTURE(fmt::format("{}", fmt::join(typed, " ")));
        Job job;
        try {
          job = job_of(typed, cluster, spec);
        } catch (const Error&) {  // the stack hasn't that choice
          CHECK(!(choices.empty() && !defaults_of(stack, cluster).empty()));
          continue;
        }
        const std::string printed = whole_job_flags(job, cluster);
        CAPTURE(printed);
        CHECK(printed.starts_with(job.runtime == Runtime::vramfit ? "--runtime vramfit" : "--stack "));
        CHECK(job_to_json(job_of(words_of(printed), cluster, spec)) == job_to_json(job));
      }
    }
  }
}

TEST_CASE("a choice that only differs from the stack's default is printed, and one that only equals it is not") {
  const ModelSpec spec = testing::small_llama();
  const Cluster cluster = parse_cluster("2xH100-80GB");
  const auto printed = [&](const std::vector<std::string>& words) {
    return whole_job_flags(job_of(words, cluster, spec), cluster);
  };
  CHECK(printed({"--stack", "trl"}).find("--checkpointing") == std::string::npos);
  CHECK(printed({"--stack", "trl", "--checkpointing", "none"}).find("--checkpointing none") != std::string::npos);
  CHECK(printed({"--stack", "transformers", "--checkpointing", "none"}).find("--checkpointing") == std::string::npos);
}

TEST_CASE("a job that no stack has is printed by its runtime") {
  Job job = unresolved_job();
  job.runtime = Runtime::pytorch_fsdp2;
  CHECK(whole_job_flags(job, parse_cluster("2xH100-80GB")).starts_with("--runtime pytorch-fsdp2"));
}

}  // namespace vramfit
