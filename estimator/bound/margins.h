// How far an upper bound lies above a prediction, from what recorded cases needed beyond theirs (docs/upper-bound.md).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/text/units.h"
#include "estimator/bound/residuals.h"
#include "job/cluster/cluster.h"
#include "job/job.h"

namespace vramfit {

/// Of one kind of case: how many there are, and how many of them did not need more than the margin.
struct Seen {
  std::int64_t cases = 0, within = 0;
  bool of_runtime = false;  // all of the job's runtime; otherwise of several, which say more than its own few
};

struct Margins {
  std::int64_t reserved_per_million = 0;  // of what the allocator reserves
  Bytes outside;                          // beyond what is predicted outside the allocator
  Confidence confidence;                  // of each kind of case alone
  std::array<Seen, kResidualKinds> seen;  // by ResidualKind; of rehearsals none where the runtime has cases on GPUs
};

/// What holds for a job, by its runtime and method, in a few nanoseconds. Throws InputError for no confidence and for
/// one above most_supported().
Margins margins_of(const Job& job, Confidence confidence);

/// The highest confidence that there are enough cases for, whatever the runtime.
Confidence most_supported();

/// Reads --confidence. Throws InputError, also for more than most_supported() and for CPU ranks, whose bound has a
/// margin of its own.
void set_confidence(Cluster& cluster, std::string_view text);

/// `bytes` times the share, rounded up.
Bytes share_of(Bytes bytes, std::int64_t per_million);

/// "upper bound: 4.12 % more reserved memory and 1.16 GiB more outside the allocator; none of 9 published peaks ..."
std::string margins_text(const Margins& margins);

}  // namespace vramfit
