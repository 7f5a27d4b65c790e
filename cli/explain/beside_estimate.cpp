#include "cli/explain/beside_estimate.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "cli/format/estimate_text.h"

namespace vramfit {
namespace {

constexpr Bytes kZero{0};

/// Memory of a snapshot by who asked for it, and the categories of an estimate that are asked for there. What is asked
/// for in forward and in backward isn't told apart further: values and their gradients.
struct Kind {
  std::string_view what;
  std::array<std::string_view, 3> phases;
  std::array<Category, 3> categories;
  int category_count;
};
constexpr std::array kKinds{
    Kind{"parameters (asked for at load)", {"load", "", ""}, {Category::parameters}, 1},
    Kind{"activations and loss (in forward)",
         {"forward", "loss", "evaluation"},
         {Category::activations, Category::logits_and_loss},
         2},
    Kind{"gradients (in backward)",
         {"backward", "backward (activations computed again)", "threads without Python"},
         {Category::gradients},
         1},
    Kind{"optimizer states (in its step)", {"optimizer", "", ""}, {Category::optimizer_state}, 1},
};

Bytes measured_of(const HeldMemory& held, const Kind& kind) {
  Bytes sum;
  for (const HeldByPhase& part : held.phases) {
    if (!part.phase.empty() && std::ranges::find(kind.phases, part.phase) != kind.phases.end()) sum += part.bytes;
  }
  return sum;
}

std::vector<BesideRow> kinds_of(const HeldMemory& held, const RankEstimate& rank) {
  std::vector<BesideRow> rows;
  Bytes measured, estimated;
  for (const Kind& kind : kKinds) {
    Bytes should;
    for (int i = 0; i < kind.category_count; ++i) {
      should += rank.breakdown.categories[static_cast<std::size_t>(kind.categories.at(static_cast<std::size_t>(i)))];
    }
    rows.push_back({std::string(kind.what), measured_of(held, kind), should});
    measured += *rows.back().measured;
    estimated += should;
  }
  Bytes all;
  for (const Bytes bytes : rank.breakdown.categories) all += bytes;
  rows.push_back({"all else", held.bytes - measured, all - estimated});
  return rows;
}

bool is_larger(Bytes measured, Bytes estimated) {
  return static_cast<double>(measured.n) > (1 + kSaidLarger) * static_cast<double>(estimated.n);
}

/// The most that is allocated in a phase, in the first step or later.
std::optional<Bytes> phase_peak(const RankEstimate& rank, std::optional<Phase> phase) {
  std::optional<Bytes> most;
  for (const PhasePeak& peak : rank.phases) {
    if (peak.phase == phase) most = std::max(most.value_or(kZero), peak.allocated);
  }
  return most;
}

/// What PyTorch would have had in tensors, had it got what was asked for: the job needs at least as much.
std::optional<Bytes> least_allocated(const CardUse& use, const HeldMemory* held) {
  std::optional<Bytes> least = use.allocated;
  if (least) *least += use.asked.value_or(kZero);
  if (held != nullptr) least = std::max(least.value_or(kZero), held->bytes);
  return least;
}

void add_rows(BesideEstimate& result, const CardUse& use, const RankEstimate& rank, std::optional<Bytes> least) {
  result.rows.push_back({use.asked ? "in tensors, with what was asked for" : "in tensors", least, rank.peak_allocated});
  if (use.unallocated) {
    result.rows.push_back({"reserved by PyTorch beyond tensors", use.unallocated, rank.breakdown.fragmentation});
  }
  std::optional<Bytes> outside = use.own_outside;
  if (use.rest) outside = outside.value_or(kZero) + *use.rest;
  if (outside) result.rows.push_back({"outside PyTorch", outside, rank.breakdown.outside_allocator});
  if (use.others && use.others->n > 0) result.rows.push_back({"other processes", use.others, kZero});
  if (use.total) result.rows.push_back({"the card has", use.total, result.estimate.capacity});
}

void say_tensors(BesideEstimate& result, const RankEstimate& rank, const CodeSite& site, Bytes least) {
  const std::optional<Bytes> in_phase = phase_peak(rank, site.phase);
  if (is_larger(least, rank.peak_allocated)) {
    result.findings.push_back(fmt::format(
        "larger than it should be: tensors take at least {}, {} more than the job's whole peak; either the job isn't "
        "the one that ran (batch, sequence length, precision, checkpointing), or the script keeps tensors",
        format_gib(least), format_gib(least - rank.peak_allocated)));
  } else if (in_phase && is_larger(least, *in_phase)) {
    result.findings.push_back(
        fmt::format("larger than it should be in {}: tensors take at least {}, {} more than the {} that it should peak "
                    "at there; the job's own peak is in another phase",
                    phase_name(*site.phase), format_gib(least), format_gib(least - *in_phase), format_gib(*in_phase)));
  } else {
    result.findings.push_back(
        fmt::format("tensors are not larger than they should be: at least {} of the {} that the "
                    "job peaks at",
                    format_gib(least), format_gib(rank.peak_allocated)));
  }
}

void say_largest_kind(BesideEstimate& result) {
  const auto excess = [](const BesideRow& row) { return *row.measured - *row.estimated; };
  const auto most = std::ranges::max_element(result.kinds, {}, excess);
  if (most == result.kinds.end() || !is_larger(*most->measured, *most->estimated)) return;
  result.findings.push_back(fmt::format("most of what is more than estimated: {}, {} instead of {}", most->what,
                                        format_gib(*most->measured), format_gib(*most->estimated)));
}

void say_rest(BesideEstimate& result, const CardUse& use, const RankEstimate& rank) {
  if (use.unallocated && is_larger(*use.unallocated, rank.breakdown.fragmentation + kGiB)) {
    result.findings.push_back(fmt::format("more fragments than it should have: {} beyond tensors, {} estimated",
                                          format_gib(*use.unallocated), format_gib(rank.breakdown.fragmentation)));
  }
  if (use.own_outside && is_larger(*use.own_outside, rank.breakdown.outside_allocator + kGiB)) {
    result.findings.push_back(fmt::format("more outside PyTorch than it should have: {}, {} estimated",
                                          format_gib(*use.own_outside), format_gib(rank.breakdown.outside_allocator)));
  }
  if (use.others && *use.others >= kGiB) {
    result.findings.push_back(
        fmt::format("other processes take {} of the card, which no estimate counts", format_gib(*use.others)));
  }
  const Bytes capacity = result.estimate.capacity;
  if (use.total && (is_larger(*use.total, capacity) || is_larger(capacity, *use.total))) {
    result.findings.push_back(fmt::format("the card that ran out has {}, --gpus names one of {}",
                                          format_gib(*use.total), format_gib(capacity)));
  }
  if (rank.total > capacity) {
    result.findings.push_back(fmt::format("the job needs {}, {} more than the card has: it can't fit as it is",
                                          format_gib(rank.total), format_gib(rank.total - capacity)));
  }
}

}  // namespace

BesideEstimate beside(Estimate estimate, const CardUse& use, const CodeSite& site, const HeldMemory* held) {
  BesideEstimate result{.estimate = std::move(estimate), .rows = {}, .kinds = {}, .findings = {}};
  if (result.estimate.ranks.empty()) {
    result.findings.push_back("not modelled: " + result.estimate.why);
    return result;
  }
  if (result.estimate.job.runtime == Runtime::vramfit) {
    result.findings.emplace_back(
        "the estimate is for vramfit's own engine, which needs less than other libraries; name the one that ran: "
        "--stack transformers, --runtime pytorch-fsdp2, ...");
  }
  const RankEstimate& rank = worst_rank(result.estimate);
  const std::optional<Bytes> least = least_allocated(use, held);
  add_rows(result, use, rank, least);
  if (least) say_tensors(result, rank, site, *least);
  if (held != nullptr) {
    result.kinds = kinds_of(*held, rank);
    say_largest_kind(result);
  }
  say_rest(result, use, rank);
  return result;
}

}  // namespace vramfit
