// Jobs with several extreme values at once, in the model, the job and the cluster: estimated, or refused with one line,
// in little time and memory.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <ctime>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/process/instrumented.h"
#include "estimator/estimate.h"
#include "job/cluster/cluster.h"
#include "job/fields/job_fields.h"
#include "model_specs/config.h"
#include "planner/plan.h"
#include "tests/support/config_file.h"
#include "tests/support/shard.h"

namespace vramfit {
namespace {

// Of the processor, for one job; a sanitizer takes some ten times as long and several times the memory.
constexpr double kMostSeconds = kIsInstrumented ? 30 : 2;
constexpr std::int64_t kMostBytes = std::int64_t{500} << 20;

using Random = std::mt19937_64;

const std::string& pick(const std::vector<std::string>& values, Random& random) {
  return values[random() % values.size()];
}

const std::vector<std::string> kSizes{"1",
                                      "2",
                                      "64",
                                      "511",
                                      "512",
                                      "4096",
                                      "65536",
                                      "1000000",
                                      "16777216",
                                      "268435456",
                                      "1073741823",
                                      "1073741824",
                                      "1000003",
                                      "2147483648",
                                      "4294967296",
                                      "1099511627776",
                                      "9223372036854775807"};

const std::vector<std::string> kJobSizes{"1",       "2",        "3",         "7",         "1000",     "65536",
                                         "1000000", "16777216", "100000000", "268435455", "268435456"};

/// Every number of the configuration may become an extreme one; a third of them do.
std::string extreme_config(const std::string& text, Random& random) {
  std::string config;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool starts_number = text[i] >= '1' && text[i] <= '9' && i > 1 && text[i - 1] == ' ' && text[i - 2] == ':';
    const std::size_t end = text.find_first_not_of("0123456789", i);
    if (!starts_number || end == std::string::npos || text[end] == '.' || random() % 3 != 0) {
      config += text[i];
      continue;
    }
    config += pick(kSizes, random);
    i = end - 1;
  }
  return config;
}

struct Choice {
  std::string_view field;
  std::vector<std::string> values;
};

const std::vector<Choice> kChoices{
    {"seq_len", kJobSizes},
    {"micro_batch", kJobSizes},
    {"grad_accum", kJobSizes},
    {"global_batch", kJobSizes},
    {"precision", {"fp32", "bf16-mixed", "bf16-pure", "fp16-mixed", "fp8"}},
    {"sharding", {"no-shard", "shard-grad-op", "full-shard", "hybrid-shard", "hybrid-shard-zero2"}},
    {"reshard", {"always", "never", "last-kept", "2", "4", "1000"}},
    {"wrap", {"none", "layers:2", "layers:4096", "size:1", "size:1000000000000", "layer", "pattern:*"}},
    {"prefetch", {"backward=pre,forward=1000,limit=1000", "backward=none,forward=0,limit=1"}},
    {"accumulate", {"sharded", "unsharded"}},
    {"bucket_bytes", kJobSizes},
    {"checkpointing", {"none", "full", "every:1", "every:268435456"}},
    {"loss", {"full", "chunked:1", "chunked:65536"}},
    {"attention", {"auto", "math", "flash", "efficient"}},
    {"allocator",
     {"native", "expandable", "max_split_size_mb=20", "roundup_power2_divisions=4", "per_process_memory_fraction=0.001",
      "per_process_memory_fraction=0.5,garbage_collection_threshold=0.01", "large_segment_size_mb=2048"}},
    {"load", {"each", "rank0"}},
    {"gradient_mask", {"none", "keep:0.5"}},
    {"freeze", {"none", "embeddings", "layers:0", "*.weight"}},
    {"deterministic", {"on", "off"}},
};

const std::vector<std::string> kClusters{"1xH100-80GB",
                                         "8xH100-80GB",
                                         "65536x1024xH100-80GB",
                                         "4096x8xB200-192GB",
                                         "2xRTX3090@9000GiB",
                                         "2xH100-80GB@1048576GiB",
                                         "1xT4",
                                         "1024xRTX4090@0.01GiB",
                                         "2xcpu-4GiB",
                                         "1000xcpu-1048576GiB",
                                         "2xH100-80GB@0.000001GiB"};

struct Drawn {
  std::string config, cluster;
  std::vector<std::pair<std::string, std::string>> fields;
  std::string text() const {
    std::string line = cluster + " " + config;
    for (const auto& [field, value] : fields) line += " --" + field + " " + value;
    return line;
  }
};

Drawn draw(Random& random) {
  const std::vector<std::string>& models = testing::small_models();
  Drawn drawn{extreme_config(testing::small_model_text(pick(models, random)), random), pick(kClusters, random), {}};
  for (const Choice& choice : kChoices) {
    if (random() % 4 == 0) drawn.fields.emplace_back(choice.field, pick(choice.values, random));
  }
  return drawn;
}

std::int64_t most_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * kKiB.n;
}

struct Outcome {
  int estimated = 0, refused = 0, beyond_cards = 0;
  double slowest = 0;
};

void try_job(const Drawn& drawn, Outcome& outcome) {
  bool is_estimated = false;
  try {
    const ModelSpec spec = parse_config(drawn.config, "config.json");
    Job job = unresolved_job();
    for (const auto& [field, value] : drawn.fields) set_job_field(job, job_field_named(field), value, field);
    const Estimate e = estimate(spec, job, parse_cluster(drawn.cluster), {});
    ++outcome.estimated;
    is_estimated = true;
    if (e.verdict == Verdict::not_modelled) return;
    (void)job_as_flags(e.job, unresolved_job());
    const RankEstimate& rank = worst_rank(e);
    CHECK((rank.total <= e.capacity || e.verdict != Verdict::fits));
    if (rank.peak_allocated <= 1048576 * kGiB) return;  // retries may make it fit the largest card
    ++outcome.beyond_cards;
    CHECK(e.verdict == Verdict::does_not_fit);
  } catch (const Error& error) {
    ++outcome.refused;
    CHECK_FALSE(is_estimated);  // what was estimated can be shown
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
  } catch (const std::exception& error) {
    FAIL_CHECK("not one of our errors: " << error.what());
  }
}

void fuzz(std::size_t jobs, std::uint64_t seed) {
  Outcome outcome;
  for (std::size_t i = 0; i < jobs; ++i) {
    if (!testing::is_mine(i)) continue;
    Random random(seed + i);
    const Drawn drawn = draw(random);
    CAPTURE(drawn.text());
    const std::int64_t resident = most_resident_bytes();
    const std::clock_t begun = std::clock();
    try_job(drawn, outcome);
    const double seconds = static_cast<double>(std::clock() - begun) / CLOCKS_PER_SEC;
    outcome.slowest = std::max(outcome.slowest, seconds);
    CHECK(seconds < kMostSeconds);
    const bool is_most = most_resident_bytes() > resident;  // of all jobs so far, by this one
    CHECK((kIsInstrumented || !is_most || most_resident_bytes() < kMostBytes));
  }
  MESSAGE(outcome.estimated << " estimated, " << outcome.beyond_cards << " of them beyond any card, " << outcome.refused
                            << " refused; slowest " << outcome.slowest << " s, most resident "
                            << most_resident_bytes() / kMiB.n << " MiB");
  // All three must happen often, or the values drawn say nothing.
  CHECK(outcome.estimated * 10 > outcome.refused);
  CHECK(outcome.refused * 10 > outcome.estimated);
  CHECK(outcome.beyond_cards * 50 > outcome.estimated);
}

}  // namespace

TEST_CASE("jobs with several extreme values are estimated or refused with one line, within 2 s and 500 MB") {
  fuzz(400, 1);
}

TEST_SUITE("full") {
  TEST_CASE("100,000 jobs with several extreme values are estimated or refused, within 2 s and 500 MB each") {
    fuzz(100'000, 1'000'000);
  }
}

}  // namespace vramfit
