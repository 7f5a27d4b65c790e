// An update within backward comes earlier than one at the end of a step, and computes the same.
#include <doctest/doctest.h>

#include "job/fields/job_fields.h"
#include "job/optimizers/optimizers.h"
#include "tests/executor/training/small_training_torch.h"

namespace vramfit {
namespace {

constexpr int kSteps = 4;

using Fields = std::vector<std::pair<std::string, std::string>>;

Job job_of(const std::string& sharding, int ranks, const Fields& fields) {
  Job job = testing::small_job(sharding, ranks);
  job.accumulation = 1;
  job.global_batch = 4;
  for (const auto& [field, value] : fields) job_field_named(field).set(job, value);
  return job;
}

void check_as_after_backward(Job job) {
  TrainOptions options = testing::options_of(kSteps);
  options.clip = 0;
  options.warmup = 2;
  const std::vector<double> at_end = testing::train(job, kSteps, options).losses;
  job.optimizer_in_backward = true;
  CAPTURE(job_as_flags(job, Job{}));
  CHECK(testing::train(job, kSteps, options).losses == at_end);
  CHECK(at_end.back() != at_end.front());
}

}  // namespace

TEST_CASE("updates within backward train to the same bits on every mesh") {
  for (const std::string precision : {"fp32", "bf16-mixed", "bf16-pure"}) {
    const Fields fields{{"precision", precision}, {"bucket_bytes", "2000"}};
    check_as_after_backward(job_of("no-shard", 1, fields));
    check_as_after_backward(job_of("full-shard", 2, fields));
    check_as_after_backward(job_of("no-shard", 2, fields));
    Job hybrid = job_of("hybrid-shard", 4, fields);
    hybrid.mesh = {.replicate = 2, .shard = 2};
    check_as_after_backward(hybrid);
  }
}

TEST_CASE("so they do whatever is gathered, recomputed and trained, and when reductions end") {
  for (const Fields& fields : {Fields{{"wrap", "none"}}, Fields{{"wrap", "layers:2"}},
                               Fields{{"wrap", "size:50000000"}, {"freeze", "layers:0"}},
                               Fields{{"checkpointing", "full"}, {"reduce_finish", "end"}},
                               Fields{{"checkpointing", "every:2"}, {"prefetch", "backward=pre,forward=3,limit=2"}},
                               Fields{{"reshard", "never"}, {"loss", "chunked:3"}},
                               Fields{{"prefetch", "backward=none,forward=0"}, {"freeze", "embeddings"}}}) {
    check_as_after_backward(job_of("full-shard", 2, fields));
  }
}

TEST_CASE("so does every optimizer, with sums over ranks or without") {
  for (const OptimizerName& row : optimizer_names()) {
    const std::string name(row.name);
    check_as_after_backward(job_of("full-shard", 2, {{"precision", "bf16-pure"}, {"optimizer", name}}));
    check_as_after_backward(job_of("full-shard", 1, {{"precision", "bf16-pure"}, {"optimizer", name}}));
  }
}

}  // namespace vramfit
