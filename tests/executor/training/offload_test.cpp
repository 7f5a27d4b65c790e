// On CPU ranks, whose host memory is the same, offloading is copies and another order of the same computation.
#include <doctest/doctest.h>

#include "program/readers/check.h"
#include "program/readers/host_bytes.h"
#include "tests/executor/training/small_training_torch.h"

namespace vramfit {
namespace {

using testing::train;
using testing::Trained;

constexpr int kOffloadSteps = 4;
const std::vector<std::vector<std::string>> kKinds{{"optimizer"},   {"optimizer+gradients"}, {"params"},
                                                   {"activations"}, {"activations:every:2"}, {"params", "activations"}};

void check_offloaded(const Job& job) {
  const Trained kept = train(job, kOffloadSteps);
  for (const std::vector<std::string>& kind : kKinds) {
    CAPTURE(kind.back());
    Job offloaded = job;
    offloaded.offload = kind;
    const Trained trained = train(offloaded, kOffloadSteps);
    CHECK(trained.losses == kept.losses);
    CHECK(trained.norms == kept.norms);
  }
}

}  // namespace

TEST_CASE("states, gradients and parameters in host memory train to the same bits") {
  for (const int ranks : {1, 2, 4}) {
    for (const std::string precision : {"fp32", "bf16-mixed", "bf16-pure", "fp16-mixed"}) {
      Job job = testing::small_job("full-shard", ranks);
      job.precision = precision_named(precision);
      job.accumulation = 1;
      job.global_batch = 4;
      CAPTURE(ranks);
      CAPTURE(precision);
      check_offloaded(job);
    }
  }
}

TEST_CASE("gradients of several micro-batches are added up on the host as on the card") {
  Job job = testing::small_job("full-shard", 2);
  job.accumulation = 3;
  SUBCASE("as shards") {}
  SUBCASE("whole, until the last one reduces them") { job.accumulate = Accumulate::unsharded; }
  SUBCASE("with recomputation and without prefetch") {
    job.checkpointing = FullCheckpointing{};
    job.backward_prefetch = BackwardPrefetch::none;
    job.forward_prefetch = 0;
  }
  check_offloaded(job);
}

TEST_CASE("every kind of state goes to the host: SGD's momentum, Lion's average") {
  for (const std::string optimizer : {"sgd", "lion"}) {
    Job job = testing::small_job("shard-grad-op", 2);
    job.optimizer = optimizer;
    CAPTURE(optimizer);
    check_offloaded(job);
  }
}

}  // namespace vramfit
