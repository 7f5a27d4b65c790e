#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "cli/explain/advice.h"
#include "cli/explain/beside_estimate.h"
#include "job/fields/job_fields.h"

namespace vramfit {
namespace {

constexpr Bytes kQuarter{kGiB.n / 4};

CardUse use(Bytes asked, Bytes free, Bytes allocated, Bytes unallocated) {
  CardUse made;
  made.asked = asked;
  made.total = 24 * kGiB;
  made.free = free;
  made.allocated = allocated;
  made.unallocated = unallocated;
  return made;
}

/// Of a job that peaks at 10 GiB in backward, 6 of them activations, and at 4 GiB in its optimizer.
Estimate estimate_of_ten() {
  Estimate estimate;
  estimate.job = unresolved_job();
  estimate.job.runtime = Runtime::pytorch;
  estimate.stack = "transformers";
  estimate.capacity = 24 * kGiB;
  estimate.verdict = Verdict::fits;
  RankEstimate rank;
  rank.peak_requested = rank.peak_allocated = 10 * kGiB;
  rank.breakdown.categories[static_cast<std::size_t>(Category::activations)] = 6 * kGiB;
  rank.breakdown.categories[static_cast<std::size_t>(Category::parameters)] = 4 * kGiB;
  rank.breakdown.fragmentation = rank.breakdown.outside_allocator = kQuarter;
  rank.total = rank.upper_bound = 11 * kGiB;
  rank.phases = {{.phase = Phase::backward, .steady = true, .requested = {}, .allocated = 10 * kGiB, .reserved = {}},
                 {.phase = Phase::optimizer, .steady = true, .requested = {}, .allocated = 4 * kGiB, .reserved = {}}};
  estimate.ranks = {rank};
  return estimate;
}

CodeSite in(Phase phase) {
  CodeSite site;
  site.phase = phase;
  return site;
}

bool any(const std::vector<std::string>& sentences, std::string_view words) {
  for (const std::string& sentence : sentences) {
    if (sentence.find(words) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("expandable segments are enough where what is reserved beyond tensors is at least what was asked for") {
  const auto first = [](const CardUse& each) { return advice_for(each, {}).front(); };
  const Advice alone = first(use(2 * kGiB, kGiB, 15 * kGiB, 3 * kGiB));
  CHECK(alone.enough);
  CHECK(alone.what.find("expandable_segments:True") != std::string::npos);
  CHECK(first(use(2 * kGiB, kGiB, 15 * kGiB, kGiB)).enough);  // with what is free
  const Advice short_of = first(use(3 * kGiB, kGiB, 15 * kGiB, kGiB));
  CHECK_FALSE(short_of.enough);
  CHECK(short_of.why.find("1.00 GiB would still be missing") != std::string::npos);
  CardUse expandable = use(2 * kGiB, kGiB, 15 * kGiB, 3 * kGiB);
  expandable.expandable = true;
  CHECK_FALSE(first(expandable).enough);
}

TEST_CASE("another process on the card and a limit are named where they would have been enough") {
  CardUse shared = use(2 * kGiB, kGiB, 15 * kGiB, Bytes{0});
  shared.others = 4 * kGiB;
  shared.largest_other = 17;
  const Advice other = advice_for(shared, {}).front();
  CHECK(other.enough);
  CHECK(other.why.find("process 17") != std::string::npos);
  shared.asked = 6 * kGiB;
  CHECK_FALSE(advice_for(shared, {}).front().enough);
  CardUse limited = use(2 * kGiB, 8 * kGiB, 15 * kGiB, Bytes{0});
  limited.limit = 16 * kGiB;
  CHECK(limited.lacking() == kGiB);
  CHECK(advice_for(limited, {}).front().enough);
}

TEST_CASE("every phase has advice of its own") {
  std::vector<std::string> seen;
  for (int i = 0; i < kPhases; ++i) {
    const std::vector<Advice> advice = advice_for(use(kGiB, Bytes{0}, kGiB, Bytes{0}), in(static_cast<Phase>(i)));
    REQUIRE(advice.size() == 1);
    CHECK_FALSE(any(seen, advice.front().why));
    seen.push_back(advice.front().why);
  }
}

TEST_CASE("more in tensors than the job's peak is called larger, with the difference") {
  const BesideEstimate found = beside(estimate_of_ten(), use(2 * kGiB, kGiB, 11 * kGiB, kQuarter), {}, nullptr);
  CHECK(any(found.findings, "larger than it should be: tensors take at least 13.00 GiB, 3.00 GiB more"));
  REQUIRE_FALSE(found.rows.empty());
  CHECK(found.rows.front().measured == 13 * kGiB);
  CHECK(found.rows.front().estimated == 10 * kGiB);
}

TEST_CASE("a phase may be larger than it should be though the job's peak isn't reached") {
  const CardUse measured = use(kGiB, Bytes{0}, 8 * kGiB, kQuarter);
  CHECK(any(beside(estimate_of_ten(), measured, in(Phase::optimizer), nullptr).findings,
            "larger than it should be in optimizer: tensors take at least 9.00 GiB, 5.00 GiB more than the 4.00 GiB"));
  CHECK(any(beside(estimate_of_ten(), measured, in(Phase::backward), nullptr).findings,
            "tensors are not larger than they should be: at least 9.00 GiB of the 10.00 GiB"));
}

TEST_CASE("of a snapshot, the kind of memory that is most above its estimate is named") {
  SnapshotFacts facts;
  facts.peak = SnapshotPeak{.event = 1, .events = 2, .reserved = 15 * kGiB, .held = {}};
  HeldMemory& held = facts.peak->held;
  held.bytes = 14 * kGiB;
  held.phases = {{"forward", 7 * kGiB}, {"threads without Python", 2 * kGiB}, {"load", 4 * kGiB}, {"elsewhere", kGiB}};
  const BesideEstimate found = beside(estimate_of_ten(), {}, {}, &facts);
  REQUIRE(found.rows.size() == 2);
  CHECK(found.rows[0].measured == 14 * kGiB);
  CHECK(found.rows[0].estimated == 10 * kGiB);
  CHECK(found.rows[1].measured == 15 * kGiB);  // reserved at most
  REQUIRE(found.kinds.size() == 4);
  CHECK(found.kinds[0].measured == 4 * kGiB);
  CHECK(found.kinds[0].estimated == 4 * kGiB);
  CHECK(found.kinds[2].measured == 9 * kGiB);
  CHECK(found.kinds[2].estimated == 6 * kGiB);
  CHECK(found.kinds[3].measured == kGiB);
  CHECK(any(found.findings, "larger than it should be: tensors take 14.00 GiB, 4.00 GiB more"));
  CHECK(any(found.findings, "most of what is more than estimated: all else of a step, 9.00 GiB instead of 6.00"));
  held.bytes = 10 * kGiB;
  CHECK_FALSE(any(beside(estimate_of_ten(), {}, {}, &facts).findings, "most of what is more"));
}

TEST_CASE("other processes, fragments and another card are said, and a job that can't fit") {
  CardUse measured = use(kGiB, Bytes{0}, 8 * kGiB, 3 * kGiB);
  measured.others = 2 * kGiB;
  measured.total = 16 * kGiB;
  Estimate estimate = estimate_of_ten();
  const std::vector<std::string> findings = beside(estimate, measured, {}, nullptr).findings;
  CHECK(any(findings, "more fragments than it should have"));
  CHECK(any(findings, "other processes take 2.00 GiB"));
  CHECK(any(findings, "the card that ran out has 16.00 GiB, --gpus names one of 24.00 GiB"));
  estimate.capacity = 9 * kGiB;
  CHECK(any(beside(estimate, {}, {}, nullptr).findings, "it can't fit as it is"));
  estimate.job.runtime = Runtime::vramfit;
  CHECK(any(beside(estimate, {}, {}, nullptr).findings, "--stack transformers"));
  estimate.ranks.clear();
  CHECK(any(beside(estimate, {}, {}, nullptr).findings, "not modelled"));
}

}  // namespace vramfit
