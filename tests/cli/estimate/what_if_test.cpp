#include "cli/estimate/what_if.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <numeric>
#include <string>

#include "base/error.h"
#include "cli/flags/model.h"
#include "estimator/estimate_json.h"
#include "job/fields/job_fields.h"
#include "tests/support/paths.h"

namespace vramfit {
namespace {

JobQuestion small_job() {
  JobQuestion question;
  question.job.model = (std::filesystem::path(testing::source_dir()) / "tests/models/llama.json").string();
  question.job.gpus = "2xH100-80GB";
  question.job.values.resize(job_fields().size());
  question.job.set = {"seq_len=512", "micro_batch=2"};
  return question;
}

Estimate answer(const JobQuestion& question) {
  return estimate_of(question, read_asked(question), read_model(question.job.model), false);
}

std::vector<WhatIf> changed(const std::vector<std::string>& changes) {
  const JobQuestion question = small_job();
  return what_ifs(question, changes, read_model(question.job.model), answer(question).job);
}

std::string refusal(const std::string& change) {
  try {
    changed({change});
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a what-if leads neither to preferences nor from them") {
  CHECK(refusal("stack=trl-dpo").find("changes what is trained for") != std::string::npos);
  JobQuestion question = small_job();
  question.job.stack = "trl-dpo";
  const Job before = answer(question).job;
  CHECK_THROWS_WITH_AS(what_ifs(question, {"stack=vramfit"}, read_model(question.job.model), before),
                       doctest::Contains("--what-if stack=vramfit: changes what is trained for"), InputError);
  CHECK_NOTHROW(what_ifs(question, {"micro_batch=4"}, read_model(question.job.model), before));
}

TEST_CASE("another size of host memory is instead of the cluster's, and another cluster's instead of the flag's") {
  JobQuestion question = small_job();
  question.job.gpus = "2xH100-80GB,host=64GiB";
  const auto host_if = [&](const std::string& change) {
    const auto made = what_ifs(question, {change}, read_model(question.job.model), answer(question).job);
    return made.front().estimate.cluster.host_memory;
  };
  CHECK(host_if("host_memory=128GiB") == 128 * kGiB);
  question.job.gpus = "2xH100-80GB";
  question.job.host_memory = "32GiB";
  CHECK(host_if("gpus=1xH100-80GB,host=16GiB") == 16 * kGiB);
  CHECK(host_if("gpus=1xH100-80GB") == 32 * kGiB);
}

TEST_CASE("the engine in a stack's place has the precision that the stack sets, unless it was set") {
  JobQuestion question = small_job();
  question.job.gpus = "1xH100-80GB";
  question.job.stack = "torchtune";
  const auto precision_of = [&] {
    const std::vector<WhatIf> list =
        what_ifs(question, {"stack=vramfit"}, read_model(question.job.model), answer(question).job);
    return list.front().estimate.job.precision.name;
  };
  CHECK(precision_of() == "bf16-pure");
  question.job.set.emplace_back("precision=bf16-mixed");
  question.job.stack = "transformers";
  CHECK(precision_of() == "bf16-mixed");
}

TEST_CASE("a what-if is the estimate of the job with these flags") {
  JobQuestion by_hand = small_job();
  by_hand.job.set.insert(by_hand.job.set.end(), {"micro_batch=4", "checkpointing=full"});
  by_hand.job.gpus = "4xH100-80GB";
  const Estimate expected = answer(by_hand);
  const std::vector<WhatIf> found = changed({"micro-batch=4 checkpointing=full  --gpus=4xH100-80GB"});
  REQUIRE(found.size() == 1);
  CHECK(found[0].change == "--micro-batch 4 --checkpointing full --gpus 4xH100-80GB");
  CHECK(found[0].estimate.ranks.front().total == expected.ranks.front().total);
  CHECK(found[0].estimate.speed->tokens_per_second == expected.speed->tokens_per_second);
  CHECK(found[0].estimate.cluster.cards() == 4);
}

TEST_CASE("the parts of a difference sum to it, exactly") {
  const Estimate base = answer(small_job());
  for (const WhatIf& each : changed({"seq_len=1024", "precision=bf16-pure", "sharding=no-shard", "gpus=1xRTX4090"})) {
    CAPTURE(each.change);
    const auto parts = breakdown_change(base, each);
    REQUIRE(parts.has_value());
    const Bytes sum = std::accumulate(parts->begin(), parts->end(), Bytes{});
    CHECK(sum == *total_change(base, each));
    CHECK(std::ranges::any_of(*parts, [](Bytes part) { return part != Bytes{}; }));
  }
}

TEST_CASE("each change starts from the job as it is") {
  const std::vector<WhatIf> found = changed({"seq_len=1024", "micro_batch=1", "seq_len=1024"});
  CHECK(found[0].estimate.ranks.front().total == found[2].estimate.ranks.front().total);
  CHECK(found[1].estimate.job.sequence == 512);
}

TEST_CASE("what isn't modelled says its name in its own row, and differences are left out") {
  const Estimate base = answer(small_job());
  const std::vector<WhatIf> found = changed({"attention=cudnn", "seq_len=1024"});
  CHECK(found[0].estimate.verdict == Verdict::not_modelled);
  CHECK_FALSE(total_change(base, found[0]).has_value());
  const std::string text = what_if_text(base, found, {});
  CHECK(text.find("not modelled\n    --attention cudnn;") != std::string::npos);
  CHECK(text.find("as it is") < text.find("--seq-len 1024"));
  const std::string json = estimate_to_json(base, {.what_ifs = found});
  CHECK(json.find("\"more_breakdown\": null") != std::string::npos);
  CHECK(json.find("\"change\": \"--seq-len 1024\"") != std::string::npos);
  CHECK(estimate_to_json(base).find("what_if") == std::string::npos);
  CHECK(what_if_text(base, {}, {}).empty());
}

TEST_CASE("other tools' words for a field are understood") {
  const std::vector<WhatIf> found = changed(
      {"gradient-checkpointing=on per_device_train_batch_size=4", "activation_checkpointing=selective", "bf16=true"});
  CHECK(found[0].change == "--checkpointing full --micro-batch 4");
  CHECK(found[1].change == "--checkpointing selective");
  CHECK(found[2].change == "--precision bf16-mixed");
  CHECK(refusal("bf16=false").find("bf16") != std::string::npos);
}

TEST_CASE("a long change has a line of its own, so that figures stay in their columns") {
  const Estimate base = answer(small_job());
  const std::string change = "seq_len=1024 micro_batch=1 checkpointing=full gpus=1xRTX4090 precision=bf16-pure";
  const std::string text = what_if_text(base, changed({change}), {});
  const std::size_t head = text.find("GiB"), line = text.find("precision bf16-pure\n");
  REQUIRE(line != std::string::npos);
  const std::size_t begin = text.find('\n', line) + 1, column = head - text.rfind('\n', head) - 1;
  // "GiB" and the figure below it end in the same column.
  CHECK(std::isdigit(text[begin + column + 2]) != 0);
  CHECK(text[begin + column + 3] == ' ');
}

TEST_CASE("unknown keys and values, and contradictions, are refused with the change") {
  const auto says = [](const std::string& change, const char* words) {
    const std::string text = refusal(change);
    CAPTURE(text);
    CHECK(text.starts_with("--what-if " + change));
    CHECK(text.find(words) != std::string::npos);
  };
  says("checkpontig=full", "did you mean \"checkpointing\"?");
  says("checkpointing=ful", "did you mean \"full\"?");
  says("micro_batch", "is not KEY=VALUE");
  says("micro_batch=", "the value is empty");
  says("gpus=8xH10", "unknown card");
  says("stack=trll", "did you mean");
  says("global_batch=3", "can't be divided by 2 data ranks");
  says(" ", "names nothing to change");
}

}  // namespace vramfit
