#include "estimator/what_if.h"

namespace vramfit {
namespace {

constexpr std::array<std::string_view, 3> kOtherParts{"rounding", "fragmentation", "outside_allocator"};

const RankEstimate* worst_of(const Estimate& estimate) {
  return estimate.ranks.empty() ? nullptr : &estimate.ranks.at(static_cast<std::size_t>(estimate.worst));
}

void write_difference(JsonWriter& writer, const char* name, std::optional<double> now, std::optional<double> before) {
  writer.key(name);
  if (now && before) {
    writer.real(*now - *before);
  } else {
    writer.null();
  }
}

std::optional<double> step_of(const Estimate& estimate) {
  return estimate.speed ? std::optional(estimate.speed->time.step_seconds) : std::nullopt;
}

std::optional<double> tokens_of(const Estimate& estimate) {
  return estimate.speed ? std::optional(estimate.speed->tokens_per_second) : std::nullopt;
}

void write_optional(JsonWriter& writer, const char* name, std::optional<double> value) {
  writer.key(name);
  if (value) {
    writer.real(*value);
  } else {
    writer.null();
  }
}

void write_memory(JsonWriter& writer, const Estimate& base, const WhatIf& what_if) {
  const RankEstimate* const rank = worst_of(what_if.estimate);
  writer.key("total_bytes");
  if (rank == nullptr) {
    writer.null();
  } else {
    writer.integer(rank->total.n);
  }
  writer.key("more_bytes");
  const std::optional<Bytes> more = total_change(base, what_if);
  if (more) {
    writer.integer(more->n);
  } else {
    writer.null();
  }
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

std::string_view breakdown_part_name(std::size_t part) {
  return part < kCategories ? category_name(static_cast<Category>(part)) : kOtherParts.at(part - kCategories);
}

std::array<Bytes, kBreakdownParts> breakdown_parts(const Breakdown& breakdown) {
  std::array<Bytes, kBreakdownParts> parts{};
  for (std::size_t i = 0; i < kCategories; ++i) parts[i] = breakdown.categories[i];
  parts[kCategories] = breakdown.rounding;
  parts[kCategories + 1] = breakdown.fragmentation;
  parts[kCategories + 2] = breakdown.outside_allocator;
  return parts;
}

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
    write_optional(writer, "step_seconds", step_of(estimate));
    write_difference(writer, "more_step_seconds", step_of(estimate), step_of(base));
    write_optional(writer, "tokens_per_second", tokens_of(estimate));
    write_difference(writer, "more_tokens_per_second", tokens_of(estimate), tokens_of(base));
    writer.end_object();
  }
  writer.end_array();
}

}  // namespace vramfit
