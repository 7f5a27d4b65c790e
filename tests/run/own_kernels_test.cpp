// Jobs with own CUDA kernels on phantom GPUs, where the library was built: launches as they are on real ones, and every
// event as predicted.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "program/ledger/ledger_diff.h"
#include "tests/run/phantom_cover.h"

namespace vramfit::testing {

namespace {

PhantomJob job_on(const std::string& cards, std::vector<std::string> flags, const std::string& family = "llama") {
  flags.insert(flags.end(), {"--kernels", "vramfit", "--seq-len", "33", "--micro-batch", "2"});
  return {{family, 1, std::move(flags)}, cards, 0, "ascending"};
}

/// Each kernel, on cards for which the library has machine code, or PTX alone.
std::vector<PhantomJob> jobs() {
  return {
      job_on("1xH100-80GB", {"--optimizer", "adamw-8bit", "--precision", "bf16-pure"}),
      job_on("1xA100-40GB", {"--optimizer", "adamw-4bit", "--precision", "bf16-mixed", "--grad-accum", "2"}),
      job_on("1xB200-192GB", {"--optimizer", "adamw-stochastic", "--precision", "bf16-pure", "--clip", "0"}),
      job_on("1xRTX4090", {"--precision", "bf16-pure", "--state-dtype", "fp32", "--checkpointing", "full"}),
      job_on("1xT4", {"--method", "lora", "--lora-rank", "4", "--quantization", "int8", "--precision", "fp16-mixed"}),
      job_on("1xH100-80GB", {"--optimizer", "adamw-fp8", "--precision", "bf16-pure", "--grad-accum", "2"}),
      job_on("1xH100-80GB", {"--optimizer", "adamw-fp8-blocks", "--precision", "bf16-pure"}),
      job_on("1xA100-80GB", {"--optimizer", "adafactor", "--precision", "bf16-pure", "--grad-accum", "2"}),
      job_on("1xA100-80GB", {"--precision", "bf16-mixed", "--master-dtype", "fp16", "--gradient-dtype", "fp8"}),
      job_on("1xH100-80GB", {"--precision", "fp8", "--master-dtype", "fp16", "--gradient-dtype", "fp8", "--optimizer",
                             "adamw-fp8", "--grad-accum", "2"}),
      job_on("1xA100-80GB", {"--loss", "chunked:2", "--label-smoothing", "0.1", "--z-loss", "0.001"}),
      job_on("1xH200-141GB", {"--loss", "chunked-forward:3", "--precision", "bf16-pure"}),
      job_on("1xB200-192GB", {"--precision", "bf16-pure", "--checkpointing", "full", "--grad-accum", "2"}, "gemma2"),
      job_on("1xL40S", {"--precision", "fp16-mixed", "--checkpointing", "selective"}, "qwen3"),
      job_on("1xRTX5090", {"--method", "qlora", "--lora-rank", "4", "--offload", "params,activations"}),
      job_on("1xH100-80GB", {"--method", "lora", "--lora-rank", "4", "--lora-dropout", "0.1"}),
      job_on("1xA100-80GB", {"--method", "lora", "--lora-rank", "4", "--lora-dropout", "0.1", "--dora", "on"})};
}

}  // namespace

TEST_CASE("with own kernels, every byte that the executor asks for on phantom GPUs was predicted") {
  if (!has_own_kernels()) {
    MESSAGE("the library of kernels wasn't built: scripts/setup --cuda");
    return;
  }
  for (const PhantomJob& job : jobs()) {
    CAPTURE(job.name());
    const FinishedRun run = run_on_phantom(job);
    CHECK_MESSAGE(run.exit_code == 0, run.errors);
    if (run.exit_code != 0) continue;
    CHECK(run.errors.find("CUDA kernels of") != std::string::npos);
    const LedgerDifference difference = compare_ledgers(count_as_run(run, job.rank), run.events_of(job.rank));
    CHECK_MESSAGE(difference.equal, difference.first);
    CHECK(difference.compared > 100);
  }
}

}  // namespace vramfit::testing
