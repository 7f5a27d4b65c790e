#include "cli/rehearse/report/assumptions.h"

#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/text/suggest.h"

namespace vramfit {
namespace {

constexpr std::size_t kMostPlaces = 5;
constexpr std::int64_t kFinite = 1, kGhosts = 256;

struct Assumption {
  std::int64_t bit;
  std::string_view name, text;
};

// The bits of phantom/values/core.h, and of what collectives with ghosts gave.
constexpr std::array<Assumption, 6> kAssumptions{{
    {kFinite, "finite", "losses, gradients and activations are finite"},
    {2, "routing", "unknown scores choose in turn, or all the same with --set routing=worst"},
    {4, "selection", "unknown comparisons are true, or a share of them with --set selected=SHARE"},
    {8, "sampled", "random numbers and tokens come from a generator of vramfit's own"},
    {16, "value", "an unknown value is 0.5, 1 or true"},
    {kGhosts, "ghosts", "the other ranks sent what this rank sent"},
}};

std::string places(const std::vector<AssumedRead>& reads) {
  std::string text;
  for (std::size_t i = 0; i < std::min(kMostPlaces, reads.size()); ++i) {
    const AssumedRead& read = reads[i];
    text += fmt::format("  {} ({} times): {}\n", printable(read.what, 160), read.count,
                        fmt::join(assumption_names(read.assumptions), ", "));
  }
  if (reads.size() > kMostPlaces)
    text += fmt::format("  and {} more places (--json has all)\n", reads.size() - kMostPlaces);
  return text;
}

std::string legend(const std::vector<AssumedRead>& reads) {
  std::string text;
  for (const Assumption& each : kAssumptions) {
    const bool used = std::ranges::any_of(
        reads, [&](const AssumedRead& read) { return read.assumptions > 0 && (read.assumptions & each.bit) != 0; });
    if (used) text += fmt::format("assumed, {}: {}\n", each.name, each.text);
  }
  return text;
}

}  // namespace

std::vector<AssumedRead> merged_reads(const std::vector<ProcessRecord>& processes) {
  std::map<std::pair<bool, std::string>, AssumedRead> merged;
  for (const ProcessRecord& process : processes) {
    for (const AssumedRead& read : process.assumed) {
      AssumedRead& sum = merged[{!read.steers, read.what}];
      const bool is_unknown = sum.assumptions < 0 || read.assumptions < 0;
      sum = {.what = read.what,
             .steers = read.steers,
             .assumptions = is_unknown ? -1 : sum.assumptions | read.assumptions,
             .count = checked_add(sum.count, read.count),
             .bytes = sum.bytes + read.bytes};
    }
  }
  std::vector<AssumedRead> list;
  for (auto& [key, read] : merged) list.push_back(std::move(read));
  return list;
}

std::vector<std::string> assumption_names(std::int64_t assumptions) {
  std::vector<std::string> names;
  if (assumptions < 0) return {"unknown"};
  for (const Assumption& each : kAssumptions) {
    if ((assumptions & each.bit) != 0) names.emplace_back(each.name);
  }
  return names;
}

bool is_risky(const AssumedRead& read) { return read.steers && (read.assumptions & ~(kFinite | kGhosts)) != 0; }

std::int64_t risky_assumptions(const std::vector<ProcessRecord>& processes) {
  std::int64_t all = 0;
  for (const AssumedRead& read : merged_reads(processes)) {
    if (is_risky(read) && read.assumptions > 0) all |= read.assumptions & ~(kFinite | kGhosts);
  }
  return all;
}

std::string assumed_lines(const std::vector<AssumedRead>& reads) {
  std::vector<AssumedRead> risky, harmless;
  for (const AssumedRead& read : reads) {
    if (is_risky(read)) risky.push_back(read);
    if (!is_risky(read) && read.steers) harmless.push_back(read);
  }
  std::int64_t logged = 0;
  for (const AssumedRead& read : reads) logged = checked_add(logged, read.steers ? 0 : read.count);
  std::string text;
  if (!risky.empty()) text += "values: sizes or branches follow from assumed values\n" + places(risky);
  if (!harmless.empty()) text += "values: branches follow from what is assumed to be finite\n" + places(harmless);
  if (logged > 0)
    text += fmt::format("values: {} reads of assumed values that nothing but output follows from\n", logged);
  return text + legend(reads);
}

}  // namespace vramfit
