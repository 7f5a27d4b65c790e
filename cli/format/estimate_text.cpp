#include "cli/format/estimate_text.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/digits_apart.h"
#include "base/text/suggest.h"
#include "estimator/run_effect_text.h"
#include "job/fields/whole_job_flags.h"
#include "job/run/rehearsal_command.h"
#include "job/stacks/stacks.h"

namespace vramfit {
namespace {

/// Less is what a batch's tokens come through.
constexpr Bytes kHostSaid{std::int64_t{1} << 20};
constexpr int kBarCells = 30;
constexpr std::size_t kShownSuggestions = 5;

// Small jobs on CPU ranks are read in MiB's worth of digits.
std::string amount(Bytes bytes, int digits = 2) {
  return fmt::format("{:.{}f}", gib_of(bytes), std::max(digits, bytes < kGiB ? 3 : 2));
}

Phase peak_phase(const RankEstimate& rank) {
  const auto highest = std::ranges::max_element(rank.phases, {}, [](const PhasePeak& p) { return p.allocated; });
  return highest == rank.phases.end() ? Phase::load : highest->phase;
}

/// Said when the order in which cudaMalloc answers decides much of what is reserved.
std::string band(const RankEstimate& rank) {
  if (band_width(rank) <= kBandSaid) return "";
  return fmt::format(", {} to {} reserved by the order of addresses", amount(rank.least_reserved),
                     amount(rank.peak_reserved));
}

std::string table_row(const Terminal& terminal, std::string_view name, Bytes bytes, Bytes total) {
  const double share = total.n > 0 ? static_cast<double>(bytes.n) / static_cast<double>(total.n) : 0;
  return fmt::format("  {:<22}{:>9}  {:>4.0f} %  {}\n", name, amount(bytes), 100 * share,
                     bar(terminal, share, kBarCells));
}

/// "transformers' Trainer needs 31.28 GiB, which does not fit (--stack transformers)".
std::string need_text(const StackNeed& need) {
  if (need.verdict == Verdict::not_modelled) {
    return fmt::format("{}: no rules for {}{}", stack_named(need.stack).what, printable(need.lacking, 200),
                       need.answered_by.empty() ? "" : fmt::format(", --stack {} --exact rehearses it", need.stack));
  }
  const std::string_view verdict = need.verdict == Verdict::at_risk ? "is at risk" : outcome_of(need.verdict);
  return fmt::format("{} needs {} GiB, which {} ({})", stack_named(need.stack).what, amount(need.total), verdict,
                     need.answered_by);
}

/// What the job needs with other libraries, and how to get the figures of one's own script.
std::string other_stacks_text(const Estimate& estimate) {
  if (estimate.cluster.is_cpu()) return "for vramfit's own engine (vramfit run), not for a PyTorch script";
  std::string text;
  for (const StackNeed& other : estimate.others) text += need_text(other) + "; ";
  if (estimate.stack == "vramfit" && estimate.others.empty())
    text = "for transformers' Trainer: --stack transformers; ";
  if (!estimate.own_rehearsal.empty()) return fmt::format("{}for your file itself: {}", text, estimate.own_rehearsal);
  return fmt::format("{}for your own script: {}", text, printable(rehearsal_of(estimate.cluster), 500));
}

}  // namespace

int exit_code_of(Verdict verdict, bool strict) {
  switch (verdict) {
    case Verdict::fits:
      return static_cast<int>(ExitCode::done);
    case Verdict::at_risk:
      return static_cast<int>(strict ? ExitCode::does_not_fit : ExitCode::done);
    case Verdict::does_not_fit:
      return static_cast<int>(ExitCode::does_not_fit);
    case Verdict::not_modelled:
      return static_cast<int>(ExitCode::failed);
  }
  return static_cast<int>(ExitCode::failed);
}

std::string_view outcome_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::fits:
      return "fits";
    case Verdict::at_risk:
      return "at risk";
    case Verdict::does_not_fit:
      return "does not fit";
    case Verdict::not_modelled:
      return "not modelled";
  }
  return "";
}

std::string verdict_line(const Estimate& estimate, const Terminal& terminal) {
  if (estimate.verdict == Verdict::not_modelled || estimate.ranks.empty()) {
    return styled(terminal, Style::warning, "NOT MODELLED") + ": " + printable(estimate.why, 500) + "\n";
  }
  const RankEstimate& rank = worst_rank(estimate);
  int digits = digits_apart(rank.total, estimate.capacity);
  if (rank.upper_bound > estimate.capacity) digits = digits_apart(estimate.capacity, rank.upper_bound, digits);
  const std::string of = fmt::format("{} of {} GiB with {}", amount(rank.total, digits),
                                     amount(estimate.capacity, digits), stack_named(estimate.stack).what);
  if (exceeds_host_memory(estimate.host_bytes, estimate.cluster)) {
    return fmt::format("{}: {}; {} needs {} GiB of the {}'s {} GiB\n", styled(terminal, Style::bad, "DOES NOT FIT"),
                       printable(estimate.why, 500), stack_named(estimate.stack).what, amount(rank.total, digits),
                       estimate.cluster.is_cpu() ? "rank" : "card", amount(estimate.capacity, digits));
  }
  if (estimate.verdict == Verdict::does_not_fit) {
    std::string over = "out of the memory that it may use";
    if (rank.total > estimate.capacity) {
      const Bytes missing = rank.total - estimate.capacity;
      over = fmt::format("+{}", amount(missing, digits_apart(missing, {}, digits)));
    }
    return fmt::format("{}: {}, {} in {}{}\n", styled(terminal, Style::bad, "DOES NOT FIT"), of, over,
                       phase_name(peak_phase(rank)), band(rank));
  }
  if (estimate.verdict == Verdict::at_risk && rank.reserved_grows) {
    return fmt::format("{}: {}, and reserved memory grows with every step\n",
                       styled(terminal, Style::warning, "AT RISK"), of);
  }
  if (estimate.verdict == Verdict::at_risk && rank.gives_back) {
    return fmt::format(
        "{}: {}; it takes {} GiB without a limit, and fits in {} GiB only by releasing cached memory (allocator "
        "retries: {}){}\n",
        styled(terminal, Style::warning, "AT RISK"), of, amount(rank.total, digits), amount(estimate.capacity, digits),
        retries_text(rank), band(rank));
  }
  if (estimate.verdict == Verdict::at_risk) {
    return fmt::format("{}: {}, and up to {} ({})\n", styled(terminal, Style::warning, "AT RISK"), of,
                       amount(rank.upper_bound, digits), printable(estimate.why, 500));
  }
  return fmt::format("{}: {}, {} free, peak in {}{}\n", styled(terminal, Style::good, "FITS"), of,
                     amount(estimate.capacity - rank.total), phase_name(peak_phase(rank)), band(rank));
}

std::string speed_line(const Estimate& estimate) {
  if (!estimate.speed) return "";
  const Speed& speed = *estimate.speed;
  const double step = speed.time.step_seconds;
  const int digits = step < 1 ? 4 : 2;
  const auto seconds = [&](double value) { return fmt::format("{:.{}f}", value, digits); };
  std::string text =
      fmt::format("Step {} s ({} to {}), {:.0f} tokens/s", seconds(step), seconds(speed.least_step_seconds),
                  seconds(speed.most_step_seconds), speed.tokens_per_second);
  if (estimate.cluster.cards() > 1) {
    text +=
        fmt::format(" ({:.0f} per {})", speed.tokens_per_second_per_card, estimate.cluster.is_cpu() ? "rank" : "GPU");
  }
  if (speed.model_flops_utilization > 0) text += fmt::format(", MFU {:.1f} %", 100 * speed.model_flops_utilization);
  if (estimate.cluster.cards() > 1) {
    text += fmt::format(", {} s of it waiting for other ranks", seconds(speed.exposed_communication_seconds));
  }
  if (!estimate.job.offload.empty()) {
    const auto part = [&](double value, std::string_view what) {
      const std::string shown = seconds(value);
      return shown.find_first_not_of("0.") == std::string::npos ? "" : fmt::format(", {} s of it {}", shown, what);
    };
    text += part(speed.exposed_copy_seconds, "copying to and from the host");
    text += part(speed.exposed_host_seconds, "computing on the CPU");
  }
  return text + " (predicted)\n";
}

std::string breakdown_table(const RankEstimate& rank, const Terminal& terminal, bool has_capacity) {
  std::string text = fmt::format("  {:<22}{:>9}\n", "At the peak", "GiB");
  const std::array<Bytes, kBreakdownParts> parts = breakdown_parts(rank.breakdown);
  for (std::size_t i = 0; i < kBreakdownParts; ++i) {
    if (parts[i].n > 0) text += table_row(terminal, breakdown_part_name(i), parts[i], rank.total);
  }
  const bool has_bound = has_capacity || !rank.reserved_grows;
  text += fmt::format("  {:<22}{:>9}   {}\n", "total", amount(rank.total),
                      has_bound ? fmt::format("upper bound {}", amount(rank.upper_bound))
                                : "no upper bound: reserved memory grows with every step");
  return text;
}

std::string managed_line(const RankEstimate& rank, Bytes capacity) {
  if (rank.managed.n == 0) return "";
  return fmt::format("  {:<22}{:>9}   in addition; the card has room for {} of it\n", "paged (managed)",
                     amount(rank.managed), amount(managed_on_card(rank, capacity)));
}

std::string phase_table(const RankEstimate& rank) {
  const bool has_host = std::ranges::any_of(rank.phases, [](const PhasePeak& p) { return p.host >= kHostSaid; });
  const auto row = [&](std::string_view name, const std::string& first, const std::string& steady, std::string host) {
    host = has_host ? fmt::format("  {:>9}", host) : "";
    return fmt::format("  {:<22}{:>9}  {:>9}{}\n", name, first, steady, host);
  };
  std::string text = row("Peak by phase", "first", "steady", "host");
  for (int i = 0; i < kPhases; ++i) {
    std::string first = "-", steady = "-";
    Bytes host;
    for (const PhasePeak& peak : rank.phases) {
      if (peak.phase != static_cast<Phase>(i)) continue;
      (peak.steady ? steady : first) = amount(peak.allocated);
      host = std::max(host, peak.host);
    }
    if (first != "-" || steady != "-") text += row(phase_name(static_cast<Phase>(i)), first, steady, amount(host));
  }
  return text;
}

std::string suggestion_lines(const Estimate& estimate, const Terminal& terminal) {
  if (estimate.suggestions.empty()) return "";
  std::string text = fmt::format("\n{:<45}{:>9}\n", "Single changes", "GiB");
  for (std::size_t i = 0; i < std::min(estimate.suggestions.size(), kShownSuggestions); ++i) {
    const Suggestion& s = estimate.suggestions[i];
    const std::string_view words = outcome_of(s.verdict);
    const std::string outcome = s.verdict == Verdict::fits ? styled(terminal, Style::good, words) : std::string(words);
    text += fmt::format("  {:<43}{:>9}  {:+.2f}  {}\n", printable(s.change), amount(s.total_after), -gib_of(s.saved),
                        outcome);
  }
  return text;
}

std::string job_line(const Estimate& estimate) {
  const std::string flags = whole_job_flags(estimate.job, stack_named(estimate.stack), estimate.cluster);
  return fmt::format("Job: {}{}\n", printable(flags, 4000), run_effect_flags(estimate.run));
}

std::string assumption_lines(const Estimate& estimate) {
  std::string text = estimate.assumptions.empty() ? "" : "Assumptions:\n";
  for (const std::string& assumption : estimate.assumptions) {
    text += fmt::format("  - {}\n", printable(assumption, 500));
  }
  return text;
}

std::string estimate_text(const Estimate& estimate, const Terminal& terminal) {
  std::string text = verdict_line(estimate, terminal);
  text += fmt::format("{}, {} parameters, on {}\n{}\n", printable(estimate.model_name),
                      short_count(estimate.parameters), printable(estimate.cluster.text), other_stacks_text(estimate));
  text += speed_line(estimate);
  if (!estimate.ranks.empty() && estimate.verdict != Verdict::not_modelled) {
    const RankEstimate& rank = worst_rank(estimate);
    text += fmt::format("\n{}{}\n{}", breakdown_table(rank, terminal), managed_line(rank, estimate.capacity),
                        phase_table(rank));
    text += suggestion_lines(estimate, terminal);
  }
  return text + "\n" + job_line(estimate) + assumption_lines(estimate);
}

}  // namespace vramfit
