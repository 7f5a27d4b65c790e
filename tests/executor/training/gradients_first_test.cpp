// Gradients that are allocated before their layer is computed again are the same.
#include <doctest/doctest.h>

#include "job/fields/job_fields.h"
#include "program/readers/program_text.h"
#include "tests/executor/training/small_training_torch.h"

namespace vramfit {
namespace {

constexpr int kSteps = 3;

using Fields = std::vector<std::pair<std::string, std::string>>;

Job job_of(int ranks, const Fields& fields) {
  Job job = testing::small_job("no-shard", ranks);
  job.checkpointing = FullCheckpointing{};
  for (const auto& [field, value] : fields) job_field_named(field).set(job, value);
  return job;
}

std::string program_text_of(const Job& job) {
  const testing::SmallTraining training("llama", job, testing::options_of(kSteps));
  std::string text;
  training.on_ranks([&](ProcessGroups& groups) {
    if (groups.world().rank() == 0) text = program::program_text(training.program_of(groups));
  });
  return text;
}

/// Losses and norms to the bit, from another program.
void check_as_usual(Job job) {
  const testing::Trained usual = testing::train(job, kSteps);
  const std::string program = program_text_of(job);
  job.allocator = "gradients-first";
  CAPTURE(job_as_flags(job, Job{}));
  const testing::Trained first = testing::train(job, kSteps);
  CHECK(first.losses == usual.losses);
  CHECK(first.norms == usual.norms);
  CHECK(program_text_of(job) != program);
}

}  // namespace

TEST_CASE("gradients that are allocated first train to the same bits, with replicas and with several micro-batches") {
  for (const int ranks : {1, 2}) {
    check_as_usual(job_of(ranks, {}));
    check_as_usual(job_of(ranks, {{"precision", "bf16-pure"}, {"bucket_bytes", "2000"}}));
  }
}

TEST_CASE("so they do whatever is recomputed, trained, clipped and left in host memory") {
  for (const Fields& fields :
       {Fields{{"checkpointing", "every:2"}}, Fields{{"checkpointing", "selective:attention"}},
        Fields{{"gradient_mask", "keep:0.4"}}, Fields{{"freeze", "*att*"}}, Fields{{"wrap", "layers:2"}},
        Fields{{"offload", "activations"}}, Fields{{"optimizer", "adafactor"}}, Fields{{"loss", "chunked:3"}}}) {
    check_as_usual(job_of(1, fields));
  }
}

}  // namespace vramfit
