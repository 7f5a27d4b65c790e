#include "job/stacks/torchtune.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/error.h"
#include "job/resolve_job.h"
#include "model_specs/catalog.h"
#include "tests/support/job_settings.h"
#include "tests/support/models.h"

namespace vramfit {

using testing::job_with;
using testing::Settings;

namespace {

ModelSpec spec_of(std::string_view name) {
  const CatalogEntry* const entry = find_in_catalog(name);
  REQUIRE_MESSAGE(entry != nullptr, name);
  return catalog_spec(*entry);
}

struct Resolved {
  std::int64_t positions = 0;
  std::string note;
};

Resolved resolved(const ModelSpec& spec, Settings settings = {}) {
  settings.insert(settings.begin(), {{"runtime", "pytorch"}, {"modeling", "torchtune"}});
  std::vector<std::string> notes;
  const Job job = resolve_job(job_with(settings), spec, parse_cluster("1xH100-80GB"), notes);
  const auto found =
      std::ranges::find_if(notes, [](const std::string& note) { return note.starts_with("--rotary-positions"); });
  return {job.rotary_positions, found == notes.end() ? "" : *found};
}

}  // namespace

TEST_CASE("torchtune's rotations are as long as those of the builder that is named after the model") {
  struct Row {
    const char* model;
    std::int64_t positions;
    const char* builder;
  };
  constexpr std::array kRows{Row{"meta-llama/Llama-3.1-8B", 131072, "llama3_1_8b"},
                             Row{"meta-llama/Meta-Llama-3-8B", 8192, "llama3_8b"},  // the same but for its rotations
                             Row{"meta-llama/Llama-3.3-70B-Instruct", 131072, "llama3_3_70b"},
                             Row{"Qwen/Qwen2-7B", 32768, "qwen2_7b"},
                             Row{"Qwen/Qwen2.5-7B", 131072, "qwen2_5_7b_base"},
                             Row{"Qwen/Qwen2.5-Coder-7B", 131072, "qwen2_5_7b_base"}};  // of that shape
  for (const Row& row : kRows) {
    CAPTURE(row.model);
    const Resolved found = resolved(spec_of(row.model), {{"seq_len", "512"}});
    CHECK(found.positions == row.positions);
    CHECK(found.note.ends_with(std::string("(max_seq_len of torchtune's ") + row.builder + ")"));
  }
}

TEST_CASE("they are as long as the sequence where no builder is the model's own, and as they are given") {
  const ModelSpec small = testing::small_llama();
  CHECK(resolved(small, {{"seq_len", "512"}}).positions == 0);
  CHECK(resolved(small, {{"seq_len", "512"}}).note.starts_with("--rotary-positions as --seq-len"));
  CHECK(resolved(small, {{"seq_len", "512"}, {"rotary_positions", "1024"}}).positions == 1024);
  const ModelSpec llama = spec_of("meta-llama/Meta-Llama-3-8B");
  CHECK(resolved(llama, {{"seq_len", "9000"}}).note.find("llama3_8b has 8192") != std::string::npos);
  CHECK(resolved(llama, {{"seq_len", "512"}, {"rotary_positions", "512"}}).note.empty());
  CHECK_THROWS_WITH_AS(resolved(llama, {{"seq_len", "9000"}, {"rotary_positions", "8192"}}),
                       doctest::Contains("give at least 9000"), InputError);
}

TEST_CASE("each builder of torchtune's is one of a model of the catalog that it says it is, if that is there") {
  for (const TorchtuneBuilder& builder : torchtune_builders()) {
    CAPTURE(builder.name);
    CHECK(builder.name.starts_with(builder.package));
    const CatalogEntry* const entry = find_in_catalog(builder.model);
    if (entry == nullptr) continue;
    const TorchtuneBuilder* const found = torchtune_builder_of(catalog_spec(*entry));
    REQUIRE(found != nullptr);
    CHECK(found->layers == builder.layers);
    CHECK(found->hidden == builder.hidden);
  }
}

}  // namespace vramfit
