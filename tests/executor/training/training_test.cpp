#include <doctest/doctest.h>
#include <fmt/format.h>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "estimator/rank_estimate.h"
#include "executor/checkpoint/files.h"
#include "executor/checkpoint/final_folders.h"
#include "executor/meter/meter.h"
#include "executor/training/trainer.h"
#include "job/fields/job_fields.h"
#include "job/loss/loss_options.h"
#include "program/ledger/ledger_diff.h"
#include "program/readers/bytes.h"
#include "program/readers/count.h"
#include "program/readers/host_bytes.h"
#include "tests/executor/training/small_training_torch.h"
#include "tests/support/config_file.h"
#include "tests/support/temporary_directory.h"

using namespace vramfit;           // NOLINT(google-build-using-namespace): the test's only subject
using namespace vramfit::testing;  // NOLINT(google-build-using-namespace): likewise

namespace {

/// small_job on 4 ranks, two shards of two replicas.
Job hybrid_job(const std::string& sharding) {
  Job job = small_job(sharding, 4);
  job.mesh = {.replicate = 2, .shard = 2};
  return job;
}

/// Groups that write down what is asked of them.
class RecordedGroup final : public Collectives {
 public:
  RecordedGroup(Collectives& group, std::string name, std::vector<std::string>& calls)
      : group_(group), name_(std::move(name)), calls_(calls) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  Pending all_gather(std::vector<at::Tensor> gathered) override {
    record("all_gather", gathered);
    return group_.all_gather(std::move(gathered));
  }
  Pending reduce_scatter(std::vector<at::Tensor> pieces) override {
    record("reduce_scatter", pieces);
    return group_.reduce_scatter(std::move(pieces));
  }
  Pending all_reduce(std::vector<at::Tensor> tensors) override {
    record("all_reduce", tensors);
    return group_.all_reduce(std::move(tensors));
  }
  void barrier() override { group_.barrier(); }

 private:
  void record(const char* what, const std::vector<at::Tensor>& tensors) {
    std::string call = fmt::format("{} {}", name_, what);
    for (const at::Tensor& tensor : tensors) call += fmt::format(" {}", tensor.numel());
    calls_.push_back(call);
  }
  Collectives& group_;
  std::string name_;
  std::vector<std::string>& calls_;
};

class RecordedGroups final : public ProcessGroups {
 public:
  explicit RecordedGroups(ProcessGroups& groups)
      : groups_(groups),
        world_(groups.world(), "world", calls),
        shard_(groups.shard(), "shard", calls),
        replicate_(groups.replicate(), "replicate", calls),
        reshard_(groups.reshard(), "reshard", calls) {}
  Collectives& world() override { return world_; }
  Collectives& shard() override { return shard_; }
  Collectives& replicate() override { return replicate_; }
  Collectives& reshard() override { return reshard_; }
  std::vector<std::string> gather_texts(const std::string& topic, const std::string& text) override {
    return groups_.gather_texts(topic, text);
  }
  std::vector<std::string> share_texts(const std::string& topic, const std::string& text) override {
    return groups_.share_texts(topic, text);
  }
  void post(const std::string& topic, const std::string& text) override { groups_.post(topic, text); }
  std::optional<std::string> posted(const std::string& topic) override { return groups_.posted(topic); }

  std::vector<std::string> calls;

 private:
  ProcessGroups& groups_;
  RecordedGroup world_, shard_, replicate_, reshard_;
};

void take_two_steps(Trainer& trainer) {
  for (int step = 1; step <= 2; ++step) trainer.step(step);
}

/// What each rank asks of its groups in two steps, in order.
std::vector<std::vector<std::string>> collectives_of(const Job& job) {
  TrainOptions options = options_of(2);
  if (job.optimizer_in_backward) options.clip = 0;
  const SmallTraining training("gemma", job, options);
  std::vector<std::vector<std::string>> calls(static_cast<std::size_t>(data_ranks(job)));
  training.on_ranks([&](ProcessGroups& groups) {
    RecordedGroups recorded(groups);
    training.with_trainer(recorded, take_two_steps);
    calls[static_cast<std::size_t>(groups.world().rank())] = std::move(recorded.calls);
  });
  return calls;
}

/// The counted ledger of a one-rank job against what the meter saw.
LedgerDifference counted_against_measured(const Job& job, const std::string& model) {
  Meter::instance().install_cpu(Bytes{0});
  const Graph graph = build_graph(testing::small_model(model), loss_options(job));
  const Ledger counted = count(graph, job, cpu_device(), {}, {.steps = 2, .abbreviate = false});
  Meter::instance().reset();
  Meter::instance().record_events(true);
  const SmallTraining training(model, job, options_of(2));
  Ledger measured;
  training.on_ranks([&](ProcessGroups& groups) {
    training.with_trainer(groups, [&](Trainer& trainer) {
      take_two_steps(trainer);
      measured = Meter::instance().take_ledger();
    });
  });
  Meter::instance().record_events(false);
  return compare_ledgers(counted, measured);
}

}  // namespace

TEST_CASE("training a small llama makes its loss fall") {
  const std::vector<double> loss = losses(small_job("no-shard", 1), 16);
  CHECK(loss.front() == doctest::Approx(std::log(307.0)).epsilon(0.05));
  CHECK(loss.back() < 0.9 * loss.front());
}

TEST_CASE("wrapping, groups to reshard to, checkpointing and prefetch change no loss") {
  const std::vector<double> usual = losses(small_job("full-shard", 4), 3);
  const std::vector<std::vector<std::pair<std::string, std::string>>> choices{
      {{"wrap", "layers:2"}},
      {{"wrap", "layers:2"}, {"wrap_embeddings", "off"}, {"reshard", "last-kept"}, {"checkpointing", "every:2"}},
      {{"wrap", "layers:2"}, {"reshard", "2"}, {"prefetch", "backward=pre,forward=2,limit=1"}},
      {{"wrap", "layers:7"}, {"checkpointing", "full"}},
      {{"wrap", "none"}},
      {{"wrap", "none"}, {"reshard", "always"}, {"reshard_head", "on"}},
      {{"wrap", "size:6000"}, {"prefetch", "backward=pre,forward=3,limit=0"}},
      {{"wrap", "size:18000"}, {"reshard", "2"}},
      {{"wrap", "pattern:*.self_attn,*.1"}, {"prefetch", "backward=post,forward=1,limit=1"}},
      {{"reshard", "2"}, {"checkpointing", "full"}},
      {{"reshard", "4"}, {"checkpointing", "selective"}},
      {{"reshard", "always"}, {"checkpointing", "budget:30%"}},
      {{"prefetch", "backward=none,forward=5,limit=2"}}};
  for (const auto& choice : choices) {
    Job job = small_job("full-shard", 4);
    for (const auto& [field, value] : choice) job_field_named(field).set(job, value);
    const std::string flags = job_as_flags(job, small_job("full-shard", 4));
    CAPTURE(flags);
    const std::vector<double> loss = losses(job, 3);
    REQUIRE(loss.size() == usual.size());
    // Units differ in how the norm of all gradients is added up.
    for (std::size_t i = 0; i < loss.size(); ++i) CHECK(std::abs(loss[i] - usual[i]) / usual[i] < 1e-6);
  }
}

TEST_CASE("what blocks keep and what they compute again changes no number") {
  const Trained usual = train(small_job("full-shard", 2), 3);
  for (const std::string checkpointing :
       {"full", "every:2", "selective", "selective:glu,linear/3", "selective:rms_norm,rope", "budget:0%", "budget:20%",
        "budget:55%", "budget:100%"}) {
    CAPTURE(checkpointing);
    Job job = small_job("full-shard", 2);
    job_field_named("checkpointing").set(job, checkpointing);
    const Trained trained = train(job, 3);
    CHECK(trained.losses == usual.losses);
    CHECK(trained.norms == usual.norms);
  }
}

TEST_CASE("all ranks ask for the same collectives in the same order, whatever the job gathers and when") {
  const std::vector<std::vector<std::pair<std::string, std::string>>> choices{
      {},
      {{"reshard", "2"}, {"prefetch", "backward=pre,forward=3,limit=2"}},
      {{"wrap", "pattern:*.mlp,*.0"}, {"checkpointing", "full"}},
      {{"wrap", "layers:2"}, {"reshard", "2"}},
      {{"sharding", "hybrid-shard"}, {"mesh", "replicate=2,shard=2"}, {"wrap", "none"}},
      {{"sharding", "no-shard"}, {"mesh", "replicate=4,shard=1"}},
      {{"grad_accum", "1"}, {"optimizer_in_backward", "on"}, {"optimizer", "adafactor"}}};
  for (const auto& choice : choices) {
    Job job = small_job("full-shard", 4);
    for (const auto& [field, value] : choice) job_field_named(field).set(job, value);
    const std::string flags = job_as_flags(job, small_job("full-shard", 4));
    CAPTURE(flags);
    const std::vector<std::vector<std::string>> calls = collectives_of(job);
    REQUIRE(calls.size() == 4);
    CHECK_FALSE(calls.front().empty());
    for (const auto& of_rank : calls) CHECK(of_rank == calls.front());
    const bool grouped = std::ranges::any_of(
        calls.front(), [](const std::string& call) { return call.starts_with("reshard all_gather"); });
    CHECK(grouped == std::holds_alternative<ReshardGroups>(job.reshard));
  }
}

TEST_CASE("every sharding and number of ranks gives the losses of one rank") {
  const std::vector<double> alone = losses(small_job("no-shard", 1), 4);
  for (const std::string sharding : {"no-shard", "shard-grad-op", "full-shard"}) {
    for (const int ranks : {1, 2, 4}) {
      CAPTURE(sharding);
      CAPTURE(ranks);
      const std::vector<double> loss = losses(small_job(sharding, ranks), 4);
      REQUIRE(loss.size() == alone.size());
      for (std::size_t i = 0; i < loss.size(); ++i) {
        CAPTURE(i);
        const double relative_difference = std::abs(loss[i] - alone[i]) / alone[i];
        CHECK(relative_difference < 1e-6);
      }
    }
  }
}

TEST_CASE("replicas are summed alike in one bucket and in many, and counted once in the norm") {
  const Trained alone = train(small_job("no-shard", 1), 3);
  CHECK(alone.norms.front() > 0.5);  // the clip bites
  std::vector<Job> jobs{small_job("no-shard", 4), hybrid_job("hybrid-shard"), hybrid_job("hybrid-shard-zero2")};
  for (Job& job : jobs) {
    for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{5000}, std::int64_t{25} << 20}) {
      CAPTURE(job.sharding);
      CAPTURE(bytes);
      job.bucket_bytes = bytes;
      const Trained trained = train(job, 3);
      check_close(trained.losses, alone.losses, 1e-6);
      check_close(trained.norms, alone.norms, 1e-5);
    }
  }
}

TEST_CASE("gradients accumulated whole and reduced once give the losses of those reduced in each micro-batch") {
  for (const std::string precision : {"fp32", "bf16-mixed"}) {
    for (Job job : {small_job("full-shard", 2), small_job("shard-grad-op", 4), hybrid_job("hybrid-shard")}) {
      CAPTURE(job.sharding);
      CAPTURE(precision);
      job.precision = precision_named(precision);
      job.micro_batch = 1;
      job.accumulation = 8 / data_ranks(job);
      const Trained sharded = train(job, 3);
      job.accumulate = Accumulate::unsharded;
      const Trained whole = train(job, 3);
      check_close(whole.losses, sharded.losses, 1e-6);
      check_close(whole.norms, sharded.norms, 1e-5);
    }
  }
}

TEST_CASE("frozen parameters are left out of the norm, and a mesh changes nothing about it") {
  Job job = small_job("no-shard", 1);
  const double whole = train(job, 1).norms.front();
  for (const std::vector<std::string>& freeze : {std::vector<std::string>{"layers:0"},
                                                 {"embeddings"},
                                                 {"head"},
                                                 {"*.self_attn.*"},
                                                 {"layers:0", "embeddings"}}) {
    CAPTURE(freeze.front());
    job.freeze = freeze;
    const Trained alone = train(job, 3);
    CHECK(alone.norms.front() < whole);
    for (Job sharded : {small_job("full-shard", 2), small_job("no-shard", 4), hybrid_job("hybrid-shard")}) {
      CAPTURE(sharded.sharding);
      sharded.freeze = freeze;
      const Trained trained = train(sharded, 3);
      check_close(trained.losses, alone.losses, 1e-6);
      check_close(trained.norms, alone.norms, 1e-5);
    }
  }
}

TEST_CASE("masked gradients make the same run on every mesh, and another one than whole gradients") {
  Job job = small_job("no-shard", 1);
  const Trained whole = train(job, 3);
  job.gradient_mask = RandomGradientMask{0.3};
  const Trained alone = train(job, 3);
  CHECK(alone.losses.front() == whole.losses.front());
  CHECK(std::abs(alone.losses.back() - whole.losses.back()) > 1e-4);
  // A sum of squares of which each is kept with probability p and divided by p squared is 1 / p as large.
  CHECK(alone.norms.front() == doctest::Approx(whole.norms.front() / std::sqrt(0.3)).epsilon(0.1));
  for (Job sharded : {small_job("full-shard", 4), small_job("no-shard", 2), hybrid_job("hybrid-shard-zero2")}) {
    CAPTURE(sharded.sharding);
    sharded.gradient_mask = RandomGradientMask{0.3};
    const Trained trained = train(sharded, 3);
    check_close(trained.losses, alone.losses, 1e-6);
    check_close(trained.norms, alone.norms, 1e-5);
  }
}

TEST_CASE("a gradient that is no number ends the run in its step, on every rank") {
  for (Job job : {small_job("full-shard", 1), small_job("full-shard", 2), hybrid_job("hybrid-shard")}) {
    TrainOptions options = options_of(3);
    options.optimizer.learning_rate = std::numeric_limits<double>::quiet_NaN();  // the weights are, after a step
    CHECK_THROWS_WITH_AS(train(job, 3, options), doctest::Contains("the norm of the gradients is"), FaultError);
  }
}

TEST_CASE("what a run allocates is what was counted, event by event") {
  for (const std::string model : {"llama", "gpt2"}) {
    for (const Checkpointing& checkpointing :
         {Checkpointing{NoCheckpointing{}}, Checkpointing{FullCheckpointing{}}, Checkpointing{SelectiveCheckpointing{}},
          Checkpointing{BudgetCheckpointing{.percent = 30}}}) {
      for (const Loss& loss : {Loss{FullLoss{}}, Loss{ChunkedLoss{}}, Loss{ChunkedLoss{.in_forward = true}}}) {
        for (const std::string precision : {"fp32", "bf16-mixed", "bf16-pure", "fp16-mixed"}) {
          Job job = small_job("full-shard", 1);
          job.checkpointing = checkpointing;
          job.loss = loss;
          job.precision = precision_named(precision);
          CAPTURE(model);
          CAPTURE(checkpointing.index());
          CAPTURE(loss.index());
          CAPTURE(precision);
          const LedgerDifference difference = counted_against_measured(job, model);
          CHECK_MESSAGE(difference.equal, difference.first);
          CHECK(difference.compared > 100);
        }
      }
    }
  }
}

TEST_CASE("saving allocates what was counted, on the device and on the host, and copies it in one piece") {
  Meter& meter = Meter::instance();
  meter.install_cpu(Bytes{0});
  SmallTraining training("gpt2", small_job("full-shard", 1), options_of(1));
  training.saves = true;
  const TemporaryDirectory directory;
  const auto files = real_file_calls();
  training.on_ranks([&](ProcessGroups& groups) {
    const program::Program program = training.program_of(groups);
    meter.reset();
    meter.record_events(true);
    Ledger device, host;
    training.with_trainer(
        groups,
        [&](Trainer& trainer) {
          trainer.step(1);
          Snapshot first, second;
          trainer.snapshot(first);
          trainer.snapshot(second);
          CHECK(first.data.data() == second.data.data());
          CHECK(Bytes{static_cast<std::int64_t>(first.data.size())} == host_bytes(program));
          CHECK(meter.host_peak() == host_bytes(program));
          trainer.save_full(
              *files, {.model = directory.path().string(), .config_json = "{}", .adapters = {}, .adapter_config = {}});
          device = meter.take_ledger();
          host = meter.take_host_ledger();
        },
        &program);
    meter.record_events(false);
    const auto counted = [&](program::Space space) {
      return ledger_of(program, {.steps = 1, .abbreviate = false, .space = space});
    };
    const LedgerDifference on_device = compare_ledgers(counted(program::Space::device), device);
    CHECK_MESSAGE(on_device.equal, on_device.first);
    const LedgerDifference on_host = compare_ledgers(counted(program::Space::host), host);
    CHECK_MESSAGE(on_host.equal, on_host.first);
    CHECK(host.events.size() == 1);
  });
}
