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

/// Memory of a snapshot by who asked for it. Values and their gradients are asked for in both forward and backward, so
/// a step is one.
struct Kind {
  std::string_view what;
  std::array<std::string_view, 8> phases;  // as HeldByPhase names them
  std::optional<Category> category;        // none: all that no other row has
};
constexpr std::array kKinds{
    Kind{"parameters (asked for at load)", {"load"}, Category::parameters},
    Kind{"optimizer states (in its step)", {"optimizer"}, Category::optimizer_state},
    Kind{"all else of a step",
         {"forward", "loss", "backward", "backward (activations computed again)", "threads without Python", "clip",
          "evaluation"},
         std::nullopt},
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
  Bytes left, measured;
  for (const Bytes bytes : rank.breakdown.categories) left += bytes;
  for (const Kind& kind : kKinds) {
    const Bytes should = kind.category ? rank.breakdown.categories[static_cast<std::size_t>(*kind.category)] : left;
    rows.push_back({std::string(kind.what), measured_of(held, kind), should});
    measured += *rows.back().measured;
    left -= should;
  }
  if (held.bytes > measured) rows.push_back({"in no known phase", held.bytes - measured, kZero});
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

/// What tensors took at least, beside the most that they should.
struct Tensors {
  std::string what, at_least;  // "" where the measured peak itself is compared
  std::optional<Bytes> measured;
  Bytes estimated;
};

const HeldMemory* held_of(const SnapshotFacts* snapshot) {
  if (snapshot == nullptr) return nullptr;
  return snapshot->peak ? &snapshot->peak->held : &snapshot->held;
}

/// Where memory ran out, the job needs at least what PyTorch would have had, had it got what was asked for.
Tensors tensors_of(const CardUse& use, const SnapshotFacts* snapshot, const RankEstimate& rank) {
  if (snapshot != nullptr && !use.asked) {
    return {snapshot->peak ? "requested at the peak" : "requested", "", held_of(snapshot)->bytes, rank.peak_requested};
  }
  Tensors tensors{use.asked ? "in tensors, with what was asked for" : "in tensors", "at least ", use.allocated,
                  rank.peak_allocated};
  if (tensors.measured) *tensors.measured += use.asked.value_or(kZero);
  return tensors;
}

void add_rows(BesideEstimate& result, const CardUse& use, const SnapshotFacts* snapshot, const Tensors& tensors) {
  const RankEstimate& rank = worst_rank(result.estimate);
  result.rows.push_back({tensors.what, tensors.measured, tensors.estimated});
  if (snapshot != nullptr && !use.asked) {
    result.rows.push_back({snapshot->peak ? "reserved at most" : "reserved",
                           snapshot->peak ? snapshot->peak->reserved : snapshot->reserved, rank.peak_reserved});
  } else if (use.unallocated) {
    result.rows.push_back({"reserved by PyTorch beyond tensors", use.unallocated, rank.breakdown.fragmentation});
  }
  std::optional<Bytes> outside = use.own_outside;
  if (use.rest) outside = outside.value_or(kZero) + *use.rest;
  if (outside) result.rows.push_back({"outside PyTorch", outside, rank.breakdown.outside_allocator});
  if (use.others && use.others->n > 0) result.rows.push_back({"other processes", use.others, kZero});
  if (use.total) result.rows.push_back({"the card has", use.total, result.estimate.capacity});
}

void say_tensors(BesideEstimate& result, const CodeSite& site, const Tensors& tensors) {
  const Bytes measured = *tensors.measured;
  const std::optional<Bytes> in_phase = phase_peak(worst_rank(result.estimate), site.phase);
  if (is_larger(measured, tensors.estimated)) {
    result.findings.push_back(fmt::format(
        "larger than it should be: tensors take {}{}, {} more than the job's whole peak; either the job isn't the one "
        "that ran (batch, sequence length, precision, checkpointing), or the script keeps tensors",
        tensors.at_least, format_gib(measured), format_gib(measured - tensors.estimated)));
  } else if (in_phase && is_larger(measured, *in_phase)) {
    result.findings.push_back(
        fmt::format("larger than it should be in {}: tensors take {}{}, {} more than the {} that it should peak at "
                    "there; the job's own peak is in another phase",
                    phase_name(*site.phase), tensors.at_least, format_gib(measured), format_gib(measured - *in_phase),
                    format_gib(*in_phase)));
  } else {
    result.findings.push_back(
        fmt::format("tensors are not larger than they should be: {}{} of the {} that the job "
                    "peaks at",
                    tensors.at_least, format_gib(measured), format_gib(tensors.estimated)));
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
  if (use.asked && use.unallocated && is_larger(*use.unallocated, rank.breakdown.fragmentation + kGiB)) {
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

BesideEstimate beside(Estimate estimate, const CardUse& use, const CodeSite& site, const SnapshotFacts* snapshot) {
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
  const Tensors tensors = tensors_of(use, snapshot, rank);
  add_rows(result, use, snapshot, tensors);
  if (tensors.measured) say_tensors(result, site, tensors);
  if (snapshot != nullptr) {
    const HeldMemory& held = *held_of(snapshot);
    result.kinds = kinds_of(held, rank);
    if (is_larger(held.bytes, rank.peak_requested)) say_largest_kind(result);
  }
  say_rest(result, use, rank);
  return result;
}

}  // namespace vramfit
