#include "estimator/changes/what_if.h"

namespace vramfit {
namespace {

const RankEstimate* worst_of(const Estimate& estimate) {
  return estimate.ranks.empty() ? nullptr : &worst_rank(estimate);
}

std::optional<double> difference(std::optional<double> now, std::optional<double> before) {
  return now && before ? std::optional(*now - *before) : std::nullopt;
}

std::optional<double> step_of(const Estimate& estimate) {
  return estimate.speed ? std::optional(estimate.speed->time.step_seconds) : std::nullopt;
}

std::optional<double> tokens_of(const Estimate& estimate) {
  return estimate.speed ? std::optional(estimate.speed->tokens_per_second) : std::nullopt;
}

void write_memory(JsonWriter& writer, const Estimate& base, const WhatIf& what_if) {
  const RankEstimate* const rank = worst_of(what_if.estimate);
  writer.member("total_bytes", rank == nullptr ? std::nullopt : std::optional(rank->total));
  writer.member("more_bytes", total_change(base, what_if));
  writer.key("more_breakdown");
  const auto parts = breakdown_change(base, what_if);
  if (!parts) {
    writer.null();
    return;
  }
  writer.begin_object();
  for (std::size_t i = 0; i < kBreakdownParts; ++i) writer.key(breakdown_part_name(i)).integer((*parts)[i].n);
  writer.end_object();
}

}  // namespace

std::optional<Bytes> total_change(const Estimate& base, const WhatIf& what_if) {
  const RankEstimate *before = worst_of(base), *after = worst_of(what_if.estimate);
  if (before == nullptr || after == nullptr) return std::nullopt;
  return after->total - before->total;
}

std::optional<std::array<Bytes, kBreakdownParts>> breakdown_change(const Estimate& base, const WhatIf& what_if) {
  const RankEstimate *before = worst_of(base), *after = worst_of(what_if.estimate);
  if (before == nullptr || after == nullptr) return std::nullopt;
  auto parts = breakdown_parts(after->breakdown);
  const auto old = breakdown_parts(before->breakdown);
  for (std::size_t i = 0; i < kBreakdownParts; ++i) parts[i] -= old[i];
  return parts;
}

void write_what_ifs(JsonWriter& writer, const Estimate& base, std::span<const WhatIf> what_ifs) {
  writer.key("what_if").begin_array();
  for (const WhatIf& what_if : what_ifs) {
    const Estimate& estimate = what_if.estimate;
    writer.begin_object().member("change", what_if.change).member("verdict", verdict_name(estimate.verdict));
    writer.member("fits", estimate.verdict == Verdict::fits).member("why", estimate.why);
    write_memory(writer, base, what_if);
    writer.member("step_seconds", step_of(estimate));
    writer.member("more_step_seconds", difference(step_of(estimate), step_of(base)));
    writer.member("tokens_per_second", tokens_of(estimate));
    writer.member("more_tokens_per_second", difference(tokens_of(estimate), tokens_of(base)));
    writer.end_object();
  }
  writer.end_array();
}

}  // namespace vramfit
