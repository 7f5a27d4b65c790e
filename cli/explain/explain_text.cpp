#include <algorithm>

#include <fmt/format.h>

#include "base/text/suggest.h"
#include "cli/explain/explanation.h"
#include "cli/format/estimate_text.h"
#include "cli/format/wrap.h"

namespace vramfit {
namespace {

constexpr int kBarCells = 30;
constexpr std::size_t kShownLines = 10, kShownFailures = 8, kWidth = 100;
constexpr Bytes kRounding{32 * kMiB.n};  // of the figures that a message has, together

/// In GiB, with a third digit below one.
std::string amount(Bytes bytes) { return fmt::format("{:.{}f}", gib_of(bytes), bytes < kGiB ? 3 : 2); }

std::string amount(std::optional<Bytes> bytes) { return bytes ? amount(*bytes) : "-"; }

std::string part_row(const Terminal& terminal, std::string_view name, Bytes bytes, std::optional<Bytes> of) {
  if (!of || of->n <= 0) return fmt::format("  {:<36}{:>9}\n", name, amount(bytes));
  const double share = static_cast<double>(bytes.n) / static_cast<double>(of->n);
  return fmt::format("  {:<36}{:>9}  {:>4.0f} %  {}\n", name, amount(bytes), 100 * share,
                     bar(terminal, std::clamp(share, 0.0, 1.0), kBarCells));
}

/// A sentence of a list, wrapped.
std::string list_item(std::string_view text) {
  std::string item;
  for (const std::string& line : wrapped(text, kWidth)) {
    item += fmt::format("  {} {}\n", item.empty() ? '-' : ' ', line);
  }
  return item;
}

std::string card_table(const CardUse& use, const Terminal& terminal) {
  std::string text = fmt::format("\n  {:<36}{:>9}\n", use.total ? "On the card" : "Of the card", "GiB");
  const auto row = [&](std::string_view name, std::optional<Bytes> bytes) {
    if (bytes) text += part_row(terminal, name, *bytes, use.total);
  };
  row("in PyTorch's tensors", use.allocated);
  row("reserved by PyTorch beyond them", use.unallocated);
  row("outside PyTorch, this process", use.own_outside);
  if (use.others && use.others->n > 0) row("other processes", use.others);
  if (use.rest && (*use.rest > kRounding || !use.own_outside)) {
    row(use.own_outside ? "in no process that is known" : "outside PyTorch, any process", use.rest);
  }
  row("free", use.free);
  if (use.limit) text += fmt::format("  {:<36}{:>9}\n", "PyTorch may reserve at most", amount(*use.limit));
  if (use.asked) text += fmt::format("  {:<36}{:>9}\n", "asked for", amount(*use.asked));
  const std::optional<Bytes> lacking = use.lacking();
  if (lacking && lacking->n > 0) text += fmt::format("  {:<36}{:>9}\n", "too large by at least", amount(*lacking));
  return text;
}

std::string site_lines(const CodeSite& site) {
  std::string text;
  const auto line = [&](std::string_view name, const std::optional<CodePlace>& place) {
    if (place) text += fmt::format("  {:<18}{}\n", name, place_text(*place));
  };
  line("your line", site.own);
  line("library", site.library);
  if (site.innermost != site.own && site.innermost != site.library) line("innermost", site.innermost);
  return text.empty() ? "" : fmt::format("\nWhere\n{}", text);
}

std::string advice_lines(const std::vector<Advice>& advice) {
  std::string text = "\nWhat would help\n";
  for (const Advice& each : advice) {
    text += list_item(fmt::format("{}{}: {}", each.what, each.enough ? " (enough for this request)" : "", each.why));
  }
  return text;
}

/// "2.00 GiB asked for, 0.31 GiB free, in forward".
std::string request_text(const CardUse& use, const CodeSite& site) {
  std::string text = use.asked ? fmt::format("{} asked for", format_size(*use.asked)) : "memory asked for";
  if (use.free) text += fmt::format(", {} free", format_size(*use.free));
  if (use.total) text += fmt::format(" of {}", format_size(*use.total));
  if (site.phase) text += fmt::format(", in {}", phase_text(site));
  return text;
}

std::string who(const LoggedFailure& failure) {
  std::string text;
  if (failure.rank) text += fmt::format("rank {}", *failure.rank);
  if (failure.message.gpu) text += fmt::format("{}GPU {}", text.empty() ? "" : ", ", *failure.message.gpu);
  return text;
}

std::string_view refused_text(RefusedBy by) {
  switch (by) {
    case RefusedBy::async_allocator:
      return "cudaMallocAsync refused it";
    case RefusedBy::memory_fraction:
      return "PyTorch's memory fraction refused it";
    case RefusedBy::library:
      return "a library asked for it, past PyTorch's allocator, and gives no figures";
    case RefusedBy::caching_allocator:
      return "";
  }
  return "";
}

std::string log_text(const Explanation& explanation, const Terminal& terminal) {
  const LoggedFailure& failure = explanation.log.failures[explanation.failure];
  std::string text =
      fmt::format("{}: {}\n{}:{}", styled(terminal, Style::bad, "OUT OF MEMORY"),
                  request_text(explanation.use, failure.site), printable(explanation.file, 300), failure.line);
  if (const std::string name = who(failure); !name.empty()) text += fmt::format(", {}", name);
  if (const std::string_view by = refused_text(failure.message.by); !by.empty()) text += fmt::format("; {}", by);
  text += "\n";
  if (explanation.use.allocated) text += card_table(explanation.use, terminal);
  text += site_lines(failure.site) + advice_lines(explanation.advice);
  const std::size_t others = explanation.log.failures.size() - 1;
  if (others == 0) return text;
  text += "\nOther messages in this file\n";
  std::size_t shown = 0;
  for (std::size_t i = 0; i < explanation.log.failures.size() && shown < kShownFailures; ++i) {
    if (i == explanation.failure) continue;
    const LoggedFailure& other = explanation.log.failures[i];
    const std::string name = who(other);
    text += fmt::format("  line {}{}{}: {}\n", other.line, name.empty() ? "" : ", ", name,
                        request_text(use_of(other.message), other.site));
    ++shown;
  }
  const std::int64_t more = static_cast<std::int64_t>(others - shown) + explanation.log.more;
  if (more > 0) text += fmt::format("  and {} more\n", more);
  return text;
}

std::string held_text(const HeldMemory& held, std::string_view heading, const Terminal& terminal) {
  std::string text = fmt::format("\n{}, by phase of its allocation\n", heading);
  for (const HeldByPhase& part : held.phases) text += part_row(terminal, part.phase, part.bytes, held.bytes);
  text += fmt::format("\n{}, by line\n  {:>9}  {:>7}  {:>9}\n", heading, "GiB", "blocks", "largest");
  for (std::size_t i = 0; i < std::min(held.lines.size(), kShownLines); ++i) {
    const HeldByLine& line = held.lines[i];
    std::string name = line.place ? place_text(*line.place) : line.why_unknown;
    if (line.own) name += fmt::format(", from {}", place_text(*line.own));
    if (!line.phase.empty()) name += fmt::format(" ({})", line.phase);
    text += fmt::format("  {:>9}  {:>7}  {:>9}  {}\n", amount(line.bytes), line.blocks, amount(line.largest), name);
  }
  if (held.lines.size() > kShownLines) text += fmt::format("  and {} more lines\n", held.lines.size() - kShownLines);
  return text;
}

std::string snapshot_table(const SnapshotFacts& facts) {
  std::string text = fmt::format("\n  {:<36}{:>9}\n", "In the snapshot", "GiB");
  const auto row = [&](std::string_view name, Bytes bytes) {
    if (bytes.n > 0) text += fmt::format("  {:<36}{:>9}\n", name, amount(bytes));
  };
  row("reserved", facts.reserved);
  row("in tensors", facts.allocated);
  row("freed, in use by another stream", facts.awaiting_free);
  row("reserved beyond them", facts.unallocated);
  row("of it between blocks in use", facts.stuck);
  row("largest free block", facts.largest_free);
  row("private pools (CUDA graphs)", facts.private_pools);
  return text;
}

std::string snapshot_text(const Explanation& explanation, const Terminal& terminal) {
  const SnapshotFacts& facts = explanation.facts();
  std::string text;
  if (facts.oom) {
    text = fmt::format("{}: {}\n", styled(terminal, Style::bad, "OUT OF MEMORY"),
                       request_text(explanation.use, explanation.site));
  }
  text += fmt::format("{}: GPU {}, {} in {} blocks, {} reserved in {} segments{}\n", printable(explanation.file, 300),
                      facts.device, format_size(facts.allocated), facts.blocks, format_size(facts.reserved),
                      facts.segments, facts.expandable ? " (expandable)" : "");
  text += snapshot_table(facts) + site_lines(explanation.site);
  if (!explanation.advice.empty()) text += advice_lines(explanation.advice);
  if (facts.peak) {
    const SnapshotPeak& peak = *facts.peak;
    text += fmt::format("\nPeak: {} in tensors after event {} of {}, at most {} reserved\n",
                        format_size(peak.held.bytes), peak.event, peak.events, format_size(peak.reserved));
    if (facts.unmatched > 0) {
      text +=
          list_item(fmt::format("{} events don't lead to what the snapshot holds: it was taken after the recording "
                                "ended, and the peak may be off",
                                facts.unmatched));
    }
    text += held_text(peak.held, "At the peak", terminal);
  } else {
    text += held_text(facts.held, "In tensors", terminal);
    text +=
        "\nNo allocations were recorded, so the peak isn't known: call torch.cuda.memory._record_memory_history() "
        "first\n";
  }
  for (std::size_t i = 0; i < explanation.devices.size(); ++i) {
    if (i == explanation.device) continue;
    const SnapshotFacts& other = explanation.devices[i];
    text += fmt::format("GPU {}: {} in tensors, {} reserved\n", other.device, format_size(other.allocated),
                        format_size(other.reserved));
  }
  return text;
}

std::string beside_rows(const std::vector<BesideRow>& rows, std::string_view heading) {
  if (rows.empty()) return "";
  std::string text = fmt::format("  {:<36}{:>9}  {:>9}  {:>9}\n", heading, "measured", "estimated", "more");
  for (const BesideRow& row : rows) {
    const std::string more =
        row.measured && row.estimated ? fmt::format("{:+.2f}", gib_of(*row.measured) - gib_of(*row.estimated)) : "";
    text += fmt::format("  {:<36}{:>9}  {:>9}  {:>9}\n", row.what, amount(row.measured), amount(row.estimated), more);
  }
  return text + "\n";
}

std::string beside_text(const BesideEstimate& beside, const Terminal& terminal) {
  const Estimate& estimate = beside.estimate;
  std::string text =
      fmt::format("\nCompared with the estimate of the job, which says\n  {}\n", verdict_line(estimate, terminal));
  if (estimate.ranks.empty()) return text;  // not modelled: the verdict says what is not
  text += beside_rows(beside.rows, "GiB") + beside_rows(beside.kinds, "GiB at the peak");
  for (const std::string& finding : beside.findings) text += list_item(printable(finding, 2000));
  const RankEstimate& rank = worst_rank(estimate);
  text += fmt::format("\n{}{}", breakdown_table(rank, terminal), managed_line(rank, estimate.capacity));
  text += suggestion_lines(estimate, terminal);
  return text + "\n" + job_line(estimate);
}

}  // namespace

std::string explanation_text(const Explanation& explanation, const Terminal& terminal) {
  std::string text = explanation.is_snapshot() ? snapshot_text(explanation, terminal) : log_text(explanation, terminal);
  if (explanation.beside) text += beside_text(*explanation.beside, terminal);
  return text;
}

}  // namespace vramfit
