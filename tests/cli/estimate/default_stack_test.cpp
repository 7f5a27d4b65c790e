#include "cli/estimate/default_stack.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/estimate/what_if.h"
#include "cli/flags/model.h"
#include "job/fields/job_fields.h"
#include "tests/support/paths.h"

namespace vramfit {
namespace {

JobQuestion question(const std::string& model, const std::string& gpus, const std::vector<std::string>& set = {}) {
  JobQuestion asked;
  asked.job.model = (std::filesystem::path(testing::source_dir()) / "tests/models" / (model + ".json")).string();
  asked.job.gpus = gpus;
  asked.job.values.resize(job_fields().size());
  asked.job.set = set;
  asked.job.set.emplace_back("seq_len=64");
  return asked;
}

Answer answer(const JobQuestion& asked) { return answer_of(asked, read_model(asked.job.model)); }

void check_own_engine(const Answer& found, const std::string& lacking) {
  CHECK(found.estimate.stack == "vramfit");
  CHECK(found.question.job.stack.empty());
  REQUIRE(found.estimate.others.size() == 1);
  CHECK(found.estimate.others[0].verdict == Verdict::not_modelled);
  CHECK(found.estimate.others[0].lacking.find(lacking) != std::string::npos);
  CHECK(found.estimate.assumptions.at(0) == default_stack_note(found.estimate.others[0].lacking));
}

}  // namespace

TEST_CASE("a question that names no library is answered for the Trainer, to the byte as with --stack transformers") {
  for (const char* gpus : {"1xRTX4090", "2xH100-80GB"}) {
    CAPTURE(gpus);
    JobQuestion asked = question("llama", gpus);
    const Answer found = answer(asked);
    CHECK(found.estimate.stack == kUsualStack);
    CHECK(found.estimate.assumptions.at(0) == default_stack_note(""));
    asked.job.stack = kUsualStack;
    const Answer named = answer(asked);
    CHECK(worst_rank(found.estimate).total == worst_rank(named.estimate).total);
    CHECK(named.estimate.assumptions.at(0) != default_stack_note(""));
    asked.job.stack = "vramfit";
    CHECK(answer(asked).estimate.stack == "vramfit");
  }
}

TEST_CASE("what says for which library the answer is, is followed") {
  CHECK_FALSE(names_library(question("llama", "2xH100-80GB").job));
  for (const char* set : {"runtime=vramfit", "modeling=vramfit"}) {
    CAPTURE(set);
    const Answer found = answer(question("llama", "2xH100-80GB", {set}));
    CHECK(found.estimate.stack == "vramfit");
    CHECK(found.estimate.others.empty());
  }
  CHECK(answer(question("llama", "2xcpu-1GiB")).estimate.stack == "vramfit");
  CHECK(answer(question("llama", "2xcpu-1GiB")).estimate.others.empty());
}

TEST_CASE("what the Trainer has no rules for is answered for the engine, which says what that is") {
  check_own_engine(answer(question("llama", "2xH100-80GB", {"wrap=layers:2"})), "--wrap layers:2");
  check_own_engine(answer(question("llama", "1xRTX4090", {"offload=optimizer"})), "--offload optimizer");
  check_own_engine(answer(question("bert", "2xRTX4090")), "BERT with FSDP2");
  CHECK_FALSE(answer(question("bert", "2xRTX4090")).estimate.others[0].answered_by.empty());
  // wrong for every library: the engine's message
  CHECK_THROWS_AS(answer(question("llama", "2xH100-80GB", {"mesh=shard=3"})), InputError);
}

TEST_CASE("a change is asked of the library that the answer is for, also where that has no rules for it") {
  const Answer found = answer(question("llama", "2xH100-80GB"));
  const std::vector<WhatIf> changed = what_ifs(found.question, {"wrap=layers:2", "micro_batch=2", "stack=vramfit"},
                                               read_model(found.question.job.model), found.estimate.job);
  CHECK(changed.at(0).estimate.verdict == Verdict::not_modelled);
  CHECK(changed.at(1).estimate.stack == kUsualStack);
  CHECK(changed.at(2).estimate.stack == "vramfit");
}

}  // namespace vramfit
