// Gradients of a chunked loss that are made in forward are those that backward makes.
#include <doctest/doctest.h>

#include "job/fields/job_fields.h"
#include "tests/executor/training/small_training_torch.h"

namespace vramfit {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

Job job_of(const std::string& sharding, int ranks, const Fields& fields, const std::string& loss) {
  Job job = testing::small_job(sharding, ranks);
  if (sharding == "hybrid-shard") job.mesh = {.replicate = 2, .shard = 2};
  for (const auto& [field, value] : fields) job_field_named(field).set(job, value);
  job_field_named("loss").set(job, loss);
  return job;
}

void check_as_in_backward(const std::string& sharding, int ranks, const Fields& fields) {
  const Job job = job_of(sharding, ranks, fields, "chunked-forward:3");
  CAPTURE(job_as_flags(job, Job{}));
  const testing::Trained forward = testing::train(job, 3);
  const testing::Trained backward = testing::train(job_of(sharding, ranks, fields, "chunked:3"), 3);
  CHECK(forward.losses == backward.losses);
  CHECK(forward.norms == backward.norms);
  CHECK(forward.losses.back() != forward.losses.front());
}

}  // namespace

TEST_CASE("made in forward or in backward, gradients are the same bits on every mesh") {
  for (const std::string precision : {"fp32", "bf16-mixed", "bf16-pure", "fp16-mixed"}) {
    const Fields fields{{"precision", precision}};
    check_as_in_backward("no-shard", 1, fields);
    check_as_in_backward("no-shard", 2, fields);
    check_as_in_backward("full-shard", 2, fields);
    check_as_in_backward("hybrid-shard", 4, fields);
  }
}

TEST_CASE("so they are whatever is gathered, recomputed, trained and kept between micro-batches") {
  for (const Fields& fields :
       {Fields{{"checkpointing", "full"}}, Fields{{"reshard", "always"}, {"prefetch", "backward=pre,forward=2"}},
        Fields{{"reshard", "never"}, {"freeze", "layers:0"}}, Fields{{"wrap", "none"}, {"freeze", "head"}},
        Fields{{"accumulate", "unsharded"}, {"label_smoothing", "0.1"}, {"z_loss", "0.01"}},
        Fields{{"wrap_embeddings", "off"}, {"reduce_finish", "end"}}}) {
    check_as_in_backward("full-shard", 2, fields);
  }
}

TEST_CASE("label smoothing and z-loss are part of the loss, the same in every form") {
  const Fields plain{}, terms{{"label_smoothing", "0.1"}, {"z_loss", "0.01"}};
  for (const std::string loss : {"full", "chunked:3", "chunked-forward:3"}) {
    CAPTURE(loss);
    const testing::Trained with = testing::train(job_of("full-shard", 2, terms, loss), 3);
    testing::check_close(with.losses, testing::train(job_of("no-shard", 1, terms, "full"), 3).losses, 1e-6);
    CHECK(with.losses.front() > testing::train(job_of("full-shard", 2, plain, loss), 3).losses.front() + 0.2);
  }
}

}  // namespace vramfit
