#include "cli/rehearse/rehearsal.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <set>

#include <fmt/format.h>

#include "base/error.h"
#include "base/process/signal_name.h"
#include "base/text/suggest.h"
#include "cli/rehearse/report/assumptions.h"
#include "cli/rehearse/report/out_of_memory.h"

namespace vramfit {
namespace {

constexpr std::array<std::string_view, 7> kVerdicts{"fits",      "at_risk",     "does_not_fit", "failed",
                                                    "timed_out", "interrupted", "no_gpu_used"};

bool same_phases(const std::vector<TorchPhase>& a, const std::vector<TorchPhase>& b) {
  return std::ranges::equal(a, b, [](const TorchPhase& x, const TorchPhase& y) {
    return x.phase == y.phase && x.step == y.step && x.requested == y.requested && x.allocated == y.allocated &&
           x.reserved == y.reserved;
  });
}

bool same_figures(const RehearsedRank& a, const RehearsedRank& b) {
  return a.by_torch == b.by_torch && a.requested == b.requested && a.allocated == b.allocated &&
         a.reserved == b.reserved && a.total == b.total && a.managed == b.managed && a.outside == b.outside &&
         a.retries == b.retries && a.out_of_memory == b.out_of_memory && a.steps == b.steps && a.pinned == b.pinned &&
         a.workspaces == b.workspaces && a.failures.size() == b.failures.size() && same_phases(a.phases, b.phases);
}

void add_torch(RehearsedRank& rank, const TorchRecord& torch, const DriverCard& card) {
  const auto device = std::ranges::find(torch.devices, rank.card, &TorchDevice::device);
  const bool is_running = torch.ended == "running";
  if (device == torch.devices.end()) {
    if (!is_running || card.allocated.n == 0) return;
    rank.by_torch = true;  // it came to no end of a phase
    rank.requested = card.requested;
    rank.allocated = card.allocated;
    return;
  }
  rank.by_torch = true;
  rank.requested = device->requested;
  rank.allocated = device->allocated;
  rank.reserved = device->reserved;
  rank.retries = device->retries;
  rank.out_of_memory = device->out_of_memory;
  rank.steps = torch.steps;
  rank.pinned = torch.pinned;
  rank.phases = device->phases;
  std::ranges::copy_if(torch.out_of_memory, std::back_inserter(rank.failures),
                       [&](const TorchOutOfMemory& event) { return event.device == rank.card; });
  rank.worked_inputs = torch.inputs;
  rank.total = std::max(rank.total, rank.reserved);
  // Without an end, torch's statistics are those of the last phase, while the record's hold to the end.
  if (is_running) {
    rank.requested = std::max(rank.requested, card.requested);
    rank.allocated = std::max(rank.allocated, card.allocated);
    rank.reserved = std::max(rank.reserved, rank.total - rank.outside);
  }
  rank.outside = rank.total - rank.reserved;
}

/// A thread has one at a time, which is given back before the next; those that are kept add up.
Bytes workspaces_of(const ProcessRecord& process) {
  std::int64_t kept = 0, largest = 0;
  for (const UnknownWorkspace& each : process.workspaces) {
    if (each.is_kept) {
      kept = checked_add(kept, each.most.n);
    } else {
      largest = std::max(largest, each.most.n);
    }
  }
  return {checked_add(kept, largest)};
}

RehearsedRank rank_of(const ProcessRecord& process, const DriverCard& card, std::int64_t number) {
  RehearsedRank rank;
  rank.first = rank.last = number;
  rank.card = card.card;
  rank.total = card.peak_used;
  rank.outside = std::min(card.outside, card.peak_used);
  rank.requested = rank.allocated = rank.reserved = rank.total - rank.outside;
  rank.managed = card.managed;
  rank.workspaces = workspaces_of(process);
  rank.out_of_memory = card.out_of_memory;
  if (process.torch) add_torch(rank, *process.torch, card);
  return rank;
}

std::vector<RehearsedRank> ranks_of(const std::vector<ProcessRecord>& processes) {
  std::vector<RehearsedRank> ranks;
  std::int64_t next = 0;
  for (const ProcessRecord& process : processes) {
    if (process.cards.empty()) continue;
    const std::int64_t number = process.rank.value_or(next);
    next = number + 1;
    for (const DriverCard& card : process.cards) {
      const RehearsedRank rank = rank_of(process, card, number);
      const bool joins = !ranks.empty() && process.cards.size() == 1 && ranks.back().last + 1 == number &&
                         same_figures(ranks.back(), rank);
      if (joins) {
        ranks.back().last = number;
      } else {
        ranks.push_back(rank);
      }
    }
  }
  return ranks;
}

std::string of_card(const Rehearsal& rehearsal, Bytes used) {
  return fmt::format("{:.1f} of {:.1f} GiB", gib_of(used), gib_of(rehearsal.cluster.card.memory));
}

std::string why_failed(const CommandEnd& end) {
  if (end.exit_signal == 0) return fmt::format("CMD ended with exit code {}", end.exit_code);
  return fmt::format("CMD was ended by signal {} ({}){}", end.exit_signal, signal_name(end.exit_signal),
                     end.exit_signal == SIGKILL ? "; if nobody did, the host may be out of memory: see dmesg" : "");
}

void decide(Rehearsal& rehearsal) {
  using enum RehearsalVerdict;
  const CommandEnd& end = rehearsal.end;
  const auto conclude = [&](RehearsalVerdict verdict, std::string why) {
    rehearsal.verdict = verdict;
    rehearsal.why = std::move(why);
  };
  const bool done = end.exit_code == 0 && !end.timed_out && end.interrupted_by == 0;
  // A launcher or a shell pipe may end well although one of its ranks died of memory.
  if (any_out_of_memory(rehearsal, done ? OutOfMemory::raised : OutOfMemory::stopped)) {
    return conclude(does_not_fit, why_out_of_memory(rehearsal));
  }
  if (end.interrupted_by != 0) return conclude(interrupted, fmt::format("by signal {}", end.interrupted_by));
  if (end.timed_out)
    return conclude(timed_out, fmt::format("after {:.0f} s; all its processes were ended", end.seconds));
  if (!done) return conclude(failed, why_failed(end));
  if (rehearsal.worst < 0) return conclude(no_gpu_used, "CMD ended well, but no process of it used a card");
  const RehearsedRank& worst = rehearsal.ranks[static_cast<std::size_t>(rehearsal.worst)];
  const std::string used = of_card(rehearsal, worst.total);
  if (any_out_of_memory(rehearsal, OutOfMemory::caught)) {
    const auto caught = std::ranges::max_element(rehearsal.ranks, {}, &RehearsedRank::out_of_memory);
    return conclude(at_risk, used + ", but " + how_it_went_on(*caught));
  }
  const std::vector<AssumedRead> reads = merged_reads(rehearsal.processes);
  if (const auto risky = std::ranges::find_if(reads, is_risky); risky != reads.end()) {
    return conclude(at_risk, fmt::format("{}, but sizes or branches follow from an assumed value: {}", used,
                                         printable(risky->what, 160)));
  }
  const bool retried = std::ranges::any_of(rehearsal.ranks, [](const RehearsedRank& rank) { return rank.retries > 0; });
  if (!retried) return conclude(fits, used);
  conclude(at_risk, used + ", but only after the allocator gave back its cache and tried again");
}

void note(Rehearsal& rehearsal, std::string text) {
  std::vector<std::string>& notes = rehearsal.notes;
  if (std::ranges::find(notes, text) == notes.end()) notes.push_back(std::move(text));
}

void note_torch(Rehearsal& rehearsal, const std::string& who, const TorchRecord& torch) {
  if (torch.ended == "running") {
    note(rehearsal, fmt::format("{}: did not come to its end; figures on the card are complete, those by phase end "
                                "with the last phase that began",
                                who));
  }
  for (const std::string& text : torch.notes) note(rehearsal, fmt::format("{}: {}", who, printable(text)));
}

std::string times(std::int64_t count) { return count == 1 ? "once" : fmt::format("{} times", count); }

std::string workspace_text(const std::string& who, const UnknownWorkspace& workspace) {
  const std::string begin = fmt::format("{}: the workspace of {} is not known and counts as 0 bytes (asked for {})",
                                        who, printable(workspace.what), times(workspace.count));
  if (!workspace.has_bound)
    return begin + "; nobody publishes a bound, so a real GPU may need more than the upper bound";
  return fmt::format("{}; it takes at most {:.1f} MiB {}, which the upper bound has", begin,
                     static_cast<double>(workspace.most.n) / static_cast<double>(kMiB.n),
                     workspace.is_kept ? "together" : "at once");
}

void note_process(Rehearsal& rehearsal, const ProcessRecord& process) {
  const std::string who =
      process.rank ? fmt::format("rank {}", *process.rank) : fmt::format("process {}", process.process);
  if (!process.cards.empty() && !process.torch) {
    note(rehearsal, fmt::format("{}: no statistics of PyTorch, so its figures are those of the driver", who));
  }
  for (const std::string& escape : process.escapes) {
    note(rehearsal, fmt::format("{} goes past a part of the phantom: {}", who, printable(escape)));
  }
  for (const auto& [function, calls] : process.unsupported) {
    note(rehearsal,
         fmt::format("{} called {} {}, which phantom GPUs don't support", who, printable(function), times(calls)));
  }
  for (const UnknownWorkspace& workspace : process.workspaces) note(rehearsal, workspace_text(who, workspace));
  if (process.torch) note_torch(rehearsal, who, *process.torch);
}

void note_outlived(Rehearsal& rehearsal) {
  for (const Descendant& left : rehearsal.end.outlived) {
    note(rehearsal,
         fmt::format("process {} ({}) could not be ended and may still run", left.process, printable(left.name, 40)));
  }
  if (rehearsal.end.outlived_unseen) {
    note(rehearsal, "processes that start each other could not be ended and may still run");
  }
}

void note_processes(Rehearsal& rehearsal) {
  for (const ProcessRecord& process : rehearsal.processes) note_process(rehearsal, process);
  for (const RehearsedRank& rank : rehearsal.ranks) {
    const bool went_on = rehearsal.verdict != RehearsalVerdict::does_not_fit;
    if (went_on && rank.by_torch && rank.out_of_memory > 0) note(rehearsal, how_it_went_on(rank));
  }
  if (rehearsal.end.left_behind > 0) {
    note(rehearsal, fmt::format("{} processes that CMD left running were ended", rehearsal.end.left_behind));
  }
  note_outlived(rehearsal);
}

/// "0, 3-5, 7"; at most `most` parts.
std::string rank_ranges(const std::vector<std::int64_t>& ranks, std::size_t most) {
  std::string text;
  std::size_t parts = 0;
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (++parts > most) return text + ", ...";
    text += fmt::format("{}{}", text.empty() ? "" : ", ", ranks[first]);
    if (last > first) text += fmt::format("-{}", ranks[last]);
    first = last + 1;
  }
  return text;
}

void note_played_ranks(Rehearsal& rehearsal) {
  if (rehearsal.played_ranks.empty()) return;
  constexpr std::size_t kMostParts = 40;
  std::vector<std::int64_t> others;
  for (std::int64_t rank = 0; rank < rehearsal.cluster.cards(); ++rank) {
    if (std::ranges::find(rehearsal.played_ranks, rank) == rehearsal.played_ranks.end()) others.push_back(rank);
  }
  std::string text =
      fmt::format("ranks {} were played, each alone among ghosts", rank_ranges(rehearsal.played_ranks, kMostParts));
  if (!others.empty())
    text += fmt::format("; ranks {} were not, and nothing is known of them", rank_ranges(others, kMostParts));
  rehearsal.notes.push_back(std::move(text));
}

void note_ghosts(Rehearsal& rehearsal) {
  if (!rehearsal.played_rank) return;
  std::int64_t answers = rehearsal.ghosts.answers;
  for (const ProcessRecord& process : rehearsal.processes) answers = checked_add(answers, process.ghost_answers);
  rehearsal.notes.push_back(fmt::format(
      "ghosts stood for the other ranks ({} of {}) and answered {} times, as if each had sent what rank {} sent",
      rehearsal.cluster.cards() - 1, rehearsal.cluster.cards(), answers, *rehearsal.played_rank));
  const auto players = std::ranges::count_if(rehearsal.processes, [](const auto& each) { return !each.cards.empty(); });
  if (players > 1) {
    rehearsal.notes.push_back(
        fmt::format("{} processes used a card, although --ranks {} plays one rank: if CMD starts ranks in a way that "
                    "vramfit doesn't know, start the program of one rank instead",
                    players, *rehearsal.played_rank));
  }
  for (const std::string& key : rehearsal.ghosts.never_set_keys) {
    rehearsal.notes.push_back(fmt::format("rank {} waited for \"{}\" in the store, which no ghost can know",
                                          *rehearsal.played_rank, printable(key, 80)));
  }
  for (const std::string& what : rehearsal.ghosts.refused) {
    rehearsal.notes.push_back(fmt::format("the store refused a connection: {}", printable(what)));
  }
}

CountedReads sum_of(const std::vector<ProcessRecord>& processes, CountedReads ProcessRecord::*reads) {
  CountedReads sum;
  std::set<std::string> places;
  for (const ProcessRecord& process : processes) {
    const CountedReads& own = process.*reads;
    sum.count = checked_add(sum.count, own.count);
    sum.bytes += own.bytes;
    places.insert(own.places.begin(), own.places.end());
  }
  sum.places.assign(places.begin(), places.end());
  return sum;
}

}  // namespace

std::string_view verdict_name(RehearsalVerdict verdict) { return kVerdicts.at(static_cast<std::size_t>(verdict)); }

CountedReads Rehearsal::uncertain_reads() const { return sum_of(processes, &ProcessRecord::uncertain); }

CountedReads Rehearsal::invented_reads() const { return sum_of(processes, &ProcessRecord::invented); }

int Rehearsal::exit_code() const {
  const bool is_strict = strict_out_of_memory && any_out_of_memory(*this, OutOfMemory::caught);
  if (is_strict || verdict == RehearsalVerdict::does_not_fit) return static_cast<int>(ExitCode::out_of_memory);
  if (end.interrupted_by != 0) return 128 + end.interrupted_by;
  if (end.timed_out) return static_cast<int>(ExitCode::failed);
  return end.exit_signal != 0 ? 128 + end.exit_signal : end.exit_code;
}

void judge(Rehearsal& rehearsal) {
  rehearsal.ranks = ranks_of(rehearsal.processes);
  for (RehearsedRank& rank : rehearsal.ranks) {
    const std::int64_t beside = checked_add(rank.managed.n, rank.workspaces.n);
    const Bytes all{checked_add(rank.total.n, beside)};
    rank.upper_bound = std::max(rank.total, std::min(rehearsal.cluster.card.memory, all));
  }
  const auto worst = std::ranges::max_element(rehearsal.ranks, {}, &RehearsedRank::total);
  rehearsal.worst = worst == rehearsal.ranks.end() ? -1 : static_cast<int>(worst - rehearsal.ranks.begin());
  decide(rehearsal);
  if (const auto played = std::ssize(rehearsal.played_ranks); played > 0 && played < rehearsal.cluster.cards()) {
    rehearsal.why += fmt::format("; of the ranks that were played ({} of {})", played, rehearsal.cluster.cards());
  }
  note_processes(rehearsal);
  note_played_ranks(rehearsal);
  note_ghosts(rehearsal);
}

}  // namespace vramfit
