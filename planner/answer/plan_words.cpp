#include "planner/answer/plan_words.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "base/text/digits_apart.h"
#include "base/text/shell_quoted.h"
#include "job/fields/job_fields.h"

namespace vramfit {

std::string percent(double a, double b) {
  const double share = 100 * (a / b - 1);
  return fmt::format("{:.{}f} %", share, share < 9.95 ? 1 : 0);
}

namespace {

// "34.30 of 23.52 GiB"
std::string of_capacity(Bytes bytes, Bytes capacity, int digits) {
  const std::string needed = format_gib(bytes, digits);
  return fmt::format("{} of {}", needed.substr(0, needed.find(' ')), format_gib(capacity, digits));
}

}  // namespace

std::string shortage_text(const RankEstimate& rank, const Cluster& cluster) {
  const Bytes capacity = cluster.card.memory;
  int digits = digits_apart(rank.total, capacity);
  if (rank.upper_bound > capacity) digits = digits_apart(capacity, rank.upper_bound, digits);
  const std::string needs = fmt::format("{} of the {}'s {}", format_gib(rank.total, digits),
                                        cluster.is_cpu() ? "rank" : "card", format_gib(capacity, digits));
  if (rank.total > capacity) return needs;
  if (rank.upper_bound > capacity)
    return fmt::format("{}, but up to {} (its upper bound)", needs, format_gib(rank.upper_bound, digits));
  if (rank.reserved_grows) return needs + ", but reserved memory grows with every step";
  return needs + ", but only if the allocator releases cached memory and tries again";
}

std::string host_shortage_text(Bytes host, const Cluster& cluster) {
  const int digits = digits_apart(host, cluster.host_memory);
  return fmt::format("{} of host memory a node, which has {}", format_gib(host, digits),
                     format_gib(cluster.host_memory, digits));
}

std::string enough_gib_text(Bytes needed) {
  constexpr std::int64_t kParts = 100;
  const std::int64_t whole = needed.n / kGiB.n, rest = needed.n % kGiB.n;
  const std::int64_t parts = kParts * whole + ceil_div(kParts * rest, kGiB.n);
  return fmt::format("{}.{:02} GiB", parts / kParts, parts % kParts);
}

std::string needs_text(const Estimate& estimate) {
  const Bytes total = worst_total(estimate);
  return of_capacity(total, estimate.capacity, digits_apart(total, estimate.capacity));
}

std::string set_flags(const PlanRequest& request, const Dimension& row) {
  std::string flags;
  for (const std::string_view name : row.fields) {
    if (!request.is_fixed(name) || request.is_decided(name)) continue;
    const JobField& field = job_field_named(name);
    flags += fmt::format("{}{} {}", flags.empty() ? "" : " ", flag_of(field), field.get(request.job));
  }
  return flags;
}

std::string set_choices(const PlanRequest& request) {
  std::string flags;
  for (const Dimension& row : dimensions()) {
    if (const std::string set = set_flags(request, row); !set.empty()) flags += (flags.empty() ? " with " : " ") + set;
  }
  return flags;
}

std::string decided_choices(const PlanRequest& request) {
  std::string flags;
  for (const std::string& name : request.decided) {
    const JobField& field = job_field_named(name);
    flags += fmt::format(" {} {}", flag_of(field), shell_quoted(field.get(request.job)));
  }
  return flags.empty() ? "" : " even with" + flags;
}

}  // namespace vramfit
