// Upper bounds from recorded cases: ranks among few of them, what each level covers, and that no recorded case is
// above.
#include "estimator/bound/margins.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "estimator/bound/order_statistic.h"
#include "estimator/rank_estimate.h"

namespace vramfit {

namespace {

constexpr std::array kAll{Runtime::vramfit, Runtime::pytorch_fsdp2, Runtime::pytorch, Runtime::deepspeed};

std::string refusal(const std::string& text, const std::string& gpus = "1xH100-80GB") {
  Cluster cluster = parse_cluster(gpus);
  try {
    set_confidence(cluster, text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

Job job_of(Runtime runtime, bool is_qlora = false) {
  Job job;
  job.runtime = runtime;
  if (is_qlora) job.method = Method::qlora;
  return job;
}

Bytes bound_of(const Job& job, Bytes reserved, Bytes outside, Confidence confidence = most_supported()) {
  Cluster cluster = parse_cluster("1xH100-80GB");
  cluster.confidence = confidence;
  RankEstimate rank;
  rank.peak_reserved = reserved;
  rank.breakdown.outside_allocator = outside;
  rank.total = reserved + outside;
  return upper_bound(rank, job, cluster);
}

}  // namespace

TEST_CASE("of n cases, the one of rank ceil((n + 1) c) covers the next with confidence c") {
  CHECK(covering_rank(9, {9'000}) == 9);
  CHECK_FALSE(covering_rank(8, {9'000}));
  CHECK(covering_rank(19, {9'500}) == 19);
  CHECK(covering_rank(19, {9'000}) == 18);
  CHECK_FALSE(covering_rank(18, {9'500}));
  CHECK(covering_rank(99, {9'900}) == 99);
  CHECK(covering_rank(199, {9'900}) == 198);
  CHECK(covering_rank(1, {5'000}) == 1);
  CHECK_FALSE(covering_rank(1, {5'001}));
  CHECK_FALSE(covering_rank(0, {5'000}));
  CHECK_FALSE(covering_rank(9, kCertain));
  CHECK(most_confidence(0) == Confidence{0});
  CHECK(most_confidence(9) == Confidence{9'000});
  CHECK(most_confidence(10) == Confidence{9'090});
  for (std::size_t cases = 1; cases < 300; ++cases) {
    CAPTURE(cases);
    CHECK(covering_rank(cases, most_confidence(cases)) == cases);
    CHECK_FALSE(covering_rank(cases, {most_confidence(cases).per_ten_thousand + 1}));
  }
}

TEST_CASE("a further value of any distribution is covered as often as said") {
  std::mt19937 random(7);
  std::lognormal_distribution<double> heavy(0, 2);
  for (const auto& [cases, confidence] :
       {std::pair<std::size_t, Confidence>{9, {9'000}}, {12, {8'000}}, {40, {9'500}}}) {
    int covered = 0;
    constexpr int kTrials = 4'000;
    for (int trial = 0; trial < kTrials; ++trial) {
      std::vector<double> values(cases);
      for (double& value : values) value = heavy(random);
      std::ranges::sort(values);
      covered += heavy(random) <= values[covering_rank(cases, confidence).value() - 1];
    }
    // Three standard deviations of the count below what is promised.
    const double share = confidence.per_ten_thousand / 1e4;
    CHECK(covered > kTrials * share - 3 * std::sqrt(kTrials * share * (1 - share)));
  }
}

TEST_CASE("no recorded case is above its bound of the highest confidence, of its own runtime or of another's") {
  const auto bound_of_reserved = [](const Job& job, Bytes predicted) {
    return predicted + share_of(predicted, margins_of(job, most_supported()).reserved_per_million);
  };
  for (const Residual& residual : recorded_residuals(ResidualKind::reserved)) {
    CAPTURE(residual.name);
    for (const Runtime runtime : kAll) {
      CHECK(residual.observed <= bound_of_reserved(job_of(runtime), residual.predicted));
    }
  }
  for (const Residual& residual : recorded_residuals(ResidualKind::outside)) {
    CAPTURE(residual.name);
    for (const Runtime runtime : kAll) CHECK(residual.observed <= bound_of(job_of(runtime), {}, residual.predicted));
  }
  for (const Residual& residual : recorded_residuals(ResidualKind::rehearsed)) {
    CAPTURE(residual.name);
    CHECK(residual.observed <= bound_of_reserved(job_of(residual.runtime, residual.is_qlora), residual.predicted));
  }
}

TEST_CASE("bounds rise with the confidence up to the highest one, and each covers what it says") {
  for (std::size_t i = 0; i < 2 * kAll.size(); ++i) {
    const Job job = job_of(kAll.at(i / 2), i % 2 == 1);
    Bytes before;
    for (int share = 5'000; share <= most_supported().per_ten_thousand; share += 100) {
      CAPTURE(share);
      const Bytes bound = bound_of(job, 40 * kGiB, kGiB, {share});
      CHECK(bound >= 41 * kGiB);
      CHECK(bound >= before);
      before = bound;
      const Margins margins = margins_of(job, {share});
      CHECK(margins.confidence >= Confidence{share});
      for (const Seen& seen : margins.seen) CHECK(seen.within * kCertain.per_ten_thousand >= seen.cases * share);
    }
    CHECK(bound_of(job, 40 * kGiB, kGiB) >= before);
  }
}

TEST_CASE("what only QLoRA needed more in rehearsals widens no other job's bound") {
  for (const Runtime runtime : kAll) {
    CHECK(bound_of(job_of(runtime), 40 * kGiB, kGiB) == bound_of(job_of(Runtime::pytorch_fsdp2), 40 * kGiB, kGiB));
  }
  CHECK(bound_of(job_of(Runtime::pytorch, true), 40 * kGiB, kGiB) >
        bound_of(job_of(Runtime::pytorch), 40 * kGiB, kGiB));
}

TEST_CASE("a confidence that data doesn't support is refused, and the highest that it does is said") {
  CHECK(refusal(confidence_text(most_supported())) == "");
  CHECK(refusal("0.9999") == "--confidence 0.9999: the recorded cases support at most " +
                                 confidence_text(most_supported()) + " (docs/upper-bound.md)");
  CHECK(refusal("0.9", "1xcpu-4GiB").find("CPU ranks") != std::string::npos);
  for (const char* text : {"", "1", "0", "0.", ".9", "0.49", "1.0", "-0.9", "+0.9", "0.9 ", "0.90001", "0,9", "90",
                           "90%", "nan", "inf", "0x1"}) {
    CAPTURE(text);
    CHECK(refusal(text).find("--confidence") == 0);
  }
  CHECK_THROWS_AS(margins_of(job_of(Runtime::pytorch), kCertain), InputError);
  CHECK_THROWS_AS(margins_of(job_of(Runtime::pytorch), {}), InputError);
}

TEST_CASE("without a confidence, a bound has 2 % of what is reserved and a quarter of what is outside the allocator") {
  CHECK(bound_of(job_of(Runtime::pytorch), Bytes{5000}, Bytes{400}, {}) == Bytes{5600});
}

TEST_CASE("shares are rounded up, and large amounts don't overflow") {
  CHECK(share_of(Bytes{1}, 1) == Bytes{1});
  CHECK(share_of(Bytes{1'000'000}, 41'150) == Bytes{41'150});
  CHECK(share_of(Bytes{1'000'001}, 41'150) == Bytes{41'151});
  CHECK(share_of(Bytes{std::int64_t{1} << 50}, 1'000'000) == Bytes{std::int64_t{1} << 50});
  CHECK(share_of({}, 41'150) == Bytes{});
}

}  // namespace vramfit
