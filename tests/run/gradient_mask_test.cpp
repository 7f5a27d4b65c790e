// Masks from a file, whose bytes the covers over flags alone can't reach.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>

#include "model_specs/config.h"
#include "model_specs/graph.h"
#include "program/ledger/ledger_diff.h"
#include "tests/run/phantom_cover.h"
#include "tests/run/vramfit_run.h"
#include "tests/support/safetensors_file.h"

namespace vramfit::testing {

namespace {

/// A mask of the family's last parameter, every second element.
std::string write_mask(const TemporaryDirectory& directory, const std::string& family) {
  const Graph graph = build_graph(parse_config(read_text(model_path(family)), family), {});
  const Parameter& parameter = graph.parameters.back();
  std::string bytes(static_cast<std::size_t>(element_count(parameter)), '\0');
  for (std::size_t i = 0; i < bytes.size(); i += 2) bytes[i] = 1;
  const std::string path = directory.path().string() + "/mask.safetensors";
  std::ofstream(path, std::ios::binary) << safetensors_bytes(
      {{parameter.name, "U8", fmt::format("[{}]", fmt::join(parameter.shape, ",")), bytes}});
  return path;
}

std::int64_t mask_allocations(const Ledger& ledger) {
  return std::ranges::count_if(ledger.events, [&](const Event& event) {
    return event.bytes > 0 && ledger.labels[static_cast<std::size_t>(event.label)].ends_with(": gradient mask");
  });
}

}  // namespace

TEST_CASE("a mask from a file takes a byte for each trainable element of the shard, as predicted") {
  const TemporaryDirectory directory;
  const CoverJob job{"llama",
                     2,
                     {"--gradient-mask", "file:" + write_mask(directory, "llama"), "--freeze", "layers:0",
                      "--precision", "bf16-mixed", "--seq-len", "24"}};
  const FinishedRun on_cpu = run_vramfit(job, {"--steps", "2"});
  const FinishedRun on_phantom = run_on_phantom({job, "2xH100-80GB", 1, "ascending"});
  for (const FinishedRun* run : {&on_cpu, &on_phantom}) {
    REQUIRE_MESSAGE(run->exit_code == 0, run->errors);
    const Ledger predicted = count_as_run(*run, 1);
    CHECK(mask_allocations(predicted) == 4);  // embed, layers.1, layers.2 and head; layers.0 is frozen
    const LedgerDifference difference = compare_ledgers(predicted, run->events_of(1));
    CHECK_MESSAGE(difference.equal, difference.first);
  }
}

TEST_CASE("a mask file of another model ends the run with the tensor's name") {
  const TemporaryDirectory directory;
  const CoverJob job{"gpt2", 1, {"--gradient-mask", "file:" + write_mask(directory, "llama"), "--seq-len", "24"}};
  const FinishedRun run = run_vramfit(job, {"--steps", "1"});
  CHECK(run.exit_code == 5);
  CHECK_MESSAGE(run.errors.find("tensor lm_head.weight is [307, 64]") != std::string::npos, run.errors);
}

}  // namespace vramfit::testing
