#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/text/shell_quoted.h"
#include "base/text/suggest.h"
#include "cli/format/terminal.h"
#include "cli/rehearse/rehearsal.h"
#include "cli/rehearse/report/assumptions.h"

namespace vramfit {
namespace {

constexpr std::size_t kMostRanks = 16, kMostKinds = 6, kMostNotes = 20, kMostFailures = 2, kLongestPlaces = 200;

std::string headline(const Rehearsal& rehearsal, const Terminal& terminal) {
  using enum RehearsalVerdict;
  struct Row {
    RehearsalVerdict verdict;
    Style style;
    std::string_view text;
  };
  constexpr Row kRows[] = {// NOLINT(modernize-avoid-c-arrays): std::array can't deduce aggregates here
                           {fits, Style::good, "FITS"},
                           {at_risk, Style::warning, "AT RISK"},
                           {does_not_fit, Style::bad, "OUT OF MEMORY"},
                           {failed, Style::bad, "FAILED"},
                           {timed_out, Style::bad, "TIMED OUT"},
                           {interrupted, Style::warning, "INTERRUPTED"},
                           {no_gpu_used, Style::warning, "NO GPU USED"}};
  const Row* row = std::ranges::find(kRows, rehearsal.verdict, &Row::verdict);
  return fmt::format("{}: {} (rehearsed on phantom GPUs)\n", styled(terminal, row->style, row->text), rehearsal.why);
}

std::string name_of(const RehearsedRank& rank) {
  const std::string name =
      rank.first == rank.last ? fmt::format("rank {}", rank.first) : fmt::format("ranks {}-{}", rank.first, rank.last);
  return rank.card == 0 || rank.first != rank.last ? name : fmt::format("{}, card {}", name, rank.card);
}

std::string places_of(const CountedReads& reads) {
  if (reads.places.empty()) return "";
  return " at " + printable(fmt::format("{}", fmt::join(reads.places, "; ")), kLongestPlaces);
}

std::string values_lines(const Rehearsal& rehearsal) {
  const CountedReads uncertain = rehearsal.uncertain_reads(), invented = rehearsal.invented_reads();
  std::string text = assumed_lines(merged_reads(rehearsal.processes));
  if (uncertain.count > 0) {
    text += fmt::format(
        "values: {} uncertain reads ({} bytes){}: kernels are not executed, so what was read there is not what a card "
        "would\n  have written. Sizes that follow from it (nonzero, masked selection, MoE routing) may differ\n",
        uncertain.count, uncertain.bytes.n, places_of(uncertain));
  }
  if (invented.count > 0) {
    text += fmt::format(
        "values: {} invented reads ({} bytes){}: the other ranks don't run, so each is taken to have sent\n  what {} "
        "sent. Sizes that follow from it (uneven shards, token counts by rank) may differ\n",
        invented.count, invented.bytes.n, places_of(invented),
        rehearsal.played_rank ? fmt::format("rank {}", *rehearsal.played_rank) : "the played rank");
  }
  return text.empty() ? "values: certain\n" : text;
}

std::string line(std::string_view name, Bytes requested, Bytes allocated, Bytes reserved) {
  return fmt::format("  {:<22}{:>12}{:>12}{:>12}\n", name,
                     format_gib(requested, 3).substr(0, format_gib(requested, 3).find(' ')),
                     format_gib(allocated, 3).substr(0, format_gib(allocated, 3).find(' ')),
                     format_gib(reserved, 3).substr(0, format_gib(reserved, 3).find(' ')));
}

std::string rank_table(const RehearsedRank& rank, bool worst_of_several) {
  std::string text = fmt::format("\n{}{}{}, GiB\n", name_of(rank), worst_of_several ? ", the fullest" : "",
                                 rank.steps > 0 ? fmt::format(", {} steps", rank.steps) : "");
  if (rank.by_torch) {
    text += fmt::format("  {:<22}{:>12}{:>12}{:>12}\n", "peak", "requested", "allocated", "reserved");
    for (const TorchPhase& phase : rank.phases) {
      text += line(
          phase.phase == "load" ? "load" : fmt::format("{}, {}", printable(phase.phase, 12), printable(phase.step, 8)),
          phase.requested, phase.allocated, phase.reserved);
    }
    text += line("all", rank.requested, rank.allocated, rank.reserved);
  } else {
    text += fmt::format("  {:<46}{:>12}\n", "blocks taken from the driver", gib(rank.reserved));
  }
  text += fmt::format("  {:<46}{:>12}\n", "context, communicators, past torch", gib(rank.outside));
  text += fmt::format("  {:<46}{:>12}\n", "on the card", gib(rank.total));
  if (rank.managed.n > 0) {
    text += fmt::format("  {:<46}{:>12}\n", "paged (managed) memory, in addition", gib(rank.managed));
  }
  if (rank.workspaces.n > 0) {
    text += fmt::format("  {:<46}{:>12}\n", "workspaces that count as 0, at most", gib(rank.workspaces));
  }
  if (rank.managed.n > 0 || rank.workspaces.n > 0) {
    text += fmt::format("  {:<46}{:>12}\n", "on the card, with these as far as they fit", gib(rank.upper_bound));
  }
  return text;
}

std::string failures(const RehearsedRank& rank) {
  std::string text;
  for (std::size_t n = 0; n < std::min(kMostFailures, rank.failures.size()); ++n) {
    const TorchOutOfMemory& event = rank.failures[n];
    text += fmt::format("\n{} ran out of memory in {}, step {}: {} asked, {} free, {} allocated, {} reserved\n",
                        name_of(rank), printable(event.phase, 40), event.step, format_gib(event.asked),
                        format_gib(event.free), format_gib(event.allocated), format_gib(event.reserved));
    for (std::size_t i = 0; i < std::min(kMostKinds, event.live.size()); ++i) {
      text += fmt::format("  {:<46}{:>16}\n", printable(event.live[i].first, 44), format_gib(event.live[i].second, 3));
    }
    if (event.block_sizes.empty()) continue;
    text += "  most of it in blocks of";
    for (std::size_t i = 0; i < std::min(kMostKinds, event.block_sizes.size()); ++i) {
      const auto& [size, count] = event.block_sizes[i];
      text += fmt::format("{} {} x {:.2f} MiB", i == 0 ? "" : ",", count,
                          static_cast<double>(size.n) / static_cast<double>(kMiB.n));
    }
    text += "\n";
  }
  return text;
}

std::string rank_list(const Rehearsal& rehearsal) {
  if (rehearsal.ranks.size() < 2) return "";
  std::string text =
      fmt::format("\n{:<24}{:>12}{:>12}{:>12}{:>10}\n", "GiB", "allocated", "reserved", "on the card", "retries");
  for (std::size_t i = 0; i < std::min(kMostRanks, rehearsal.ranks.size()); ++i) {
    const RehearsedRank& rank = rehearsal.ranks[i];
    text += fmt::format("  {:<22}{:>12}{:>12}{:>12}{:>10}\n", name_of(rank), gib(rank.allocated), gib(rank.reserved),
                        gib(rank.total), rank.retries);
  }
  if (rehearsal.ranks.size() > kMostRanks) {
    text += fmt::format("  and {} more (--json has all)\n", rehearsal.ranks.size() - kMostRanks);
  }
  return text;
}

}  // namespace

std::string rehearsal_text(const Rehearsal& rehearsal) {
  std::string text = headline(rehearsal, detect_terminal());
  text += fmt::format(
      "{} on {}, {:.1f} s{}\n", printable(shell_words(rehearsal.command), 100), rehearsal.cluster.text,
      rehearsal.end.seconds,
      rehearsal.played_rank
          ? fmt::format("; rank {} of {}, the others are ghosts", *rehearsal.played_rank, rehearsal.cluster.cards())
      : rehearsal.played_ranks.empty() ? ""
                                       : fmt::format("; {} of {} ranks, each played alone",
                                                     rehearsal.played_ranks.size(), rehearsal.cluster.cards()));
  if (rehearsal.worst >= 0) {
    text += values_lines(rehearsal);
    text += rank_table(rehearsal.ranks[static_cast<std::size_t>(rehearsal.worst)], rehearsal.ranks.size() > 1);
    text += rank_list(rehearsal);
  }
  for (const RehearsedRank& rank : rehearsal.ranks) text += failures(rank);
  if (!rehearsal.notes.empty()) text += "\n";
  for (std::size_t i = 0; i < std::min(kMostNotes, rehearsal.notes.size()); ++i) {
    text += fmt::format("note: {}\n", printable(rehearsal.notes[i], 1000));
  }
  return text;
}

}  // namespace vramfit
