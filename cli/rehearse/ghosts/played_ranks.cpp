#include "cli/rehearse/ghosts/played_ranks.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/result_file.h"
#include "cli/private_folder.h"
#include "cli/rehearse/processes/host_use.h"

namespace vramfit {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kFew = 4;  // as many are all played
constexpr const char* kObjects = "VRAMFIT_REHEARSAL_OBJECTS";

/// The rank whose objects the last rehearsal lacked (phantom/python/vramfit_rehearsal/object_collectives.py).
std::optional<std::int64_t> take_needed(const std::string& objects) {
  const fs::path path = fs::path(objects) / "needed";
  std::ifstream file(path);
  std::int64_t rank = 0;
  const bool is_there = static_cast<bool>(file >> rank);
  std::error_code error;
  fs::remove(path, error);
  return is_there ? std::optional(rank) : std::nullopt;
}

void empty_folder(const std::string& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) fs::remove_all(entry.path(), error);
}

bool is_done(const Rehearsal& rehearsal) {
  return rehearsal.exit_code() == 0 || rehearsal.verdict == RehearsalVerdict::does_not_fit;
}

/// Each with the ranks that it needs first on top.
class Senders {
 public:
  Senders(RehearsalRequest request, const std::vector<std::string>& command, std::string objects,
          const SignalDescriptor& signals)
      : request_(std::move(request)), command_(command), objects_(std::move(objects)), signals_(signals) {
    request_.environment.emplace_back(kObjects, objects_);
  }

  Rehearsal play(const std::string& folder) {
    std::vector<std::int64_t> waiting{*request_.played_rank};
    std::vector<std::string> notes;
    while (true) {
      const std::int64_t rank = waiting.back();
      const bool is_wanted = waiting.size() == 1;
      empty_folder(folder);
      Rehearsal rehearsal = is_wanted ? play_rank(rank, folder) : play_sender(rank);
      const auto needed = take_needed(objects_);
      const bool is_new = needed && *needed >= 0 && *needed < request_.cluster.cards() &&
                          std::ranges::find(waiting, *needed) == waiting.end() && rehearsal.end.interrupted_by == 0;
      if (is_new) {
        waiting.push_back(*needed);
        continue;
      }
      if (!is_wanted && !is_done(rehearsal)) {
        notes.push_back(
            fmt::format("rank {}, whose objects another needs, could not be rehearsed: {}", rank, rehearsal.why));
      }
      write_file(fmt::format("{}/played.{}", objects_, rank), "");
      if (is_wanted || rehearsal.end.interrupted_by != 0) return with_notes(std::move(rehearsal), notes);
      notes.push_back(fmt::format("objects that rank {} receives are those that rank {} sent when it was played alone",
                                  waiting[waiting.size() - 2], rank));
      waiting.pop_back();
    }
  }

 private:
  Rehearsal play_rank(std::int64_t rank, const std::string& folder) {
    request_.played_rank = rank;
    return rehearse_once(request_, command_, folder, signals_);
  }

  Rehearsal play_sender(std::int64_t rank) {
    const SessionFolder session("");
    return play_rank(rank, session.path());
  }

  static Rehearsal with_notes(Rehearsal rehearsal, const std::vector<std::string>& notes) {
    rehearsal.notes.insert(rehearsal.notes.end(), notes.begin(), notes.end());
    return rehearsal;
  }

  RehearsalRequest request_;
  const std::vector<std::string>& command_;
  std::string objects_;
  const SignalDescriptor& signals_;
};

std::set<std::int64_t> first_middle_last(std::int64_t count) { return {0, count / 2, count - 1}; }

std::set<std::int64_t> first_choice(const Cluster& cluster) {
  std::set<std::int64_t> ranks;
  if (cluster.cards() <= kFew) {
    for (std::int64_t rank = 0; rank < cluster.cards(); ++rank) ranks.insert(rank);
    return ranks;
  }
  for (const std::int64_t node : first_middle_last(cluster.nodes)) {
    for (const std::int64_t local : first_middle_last(cluster.cards_per_node)) {
      ranks.insert(node * cluster.cards_per_node + local);
    }
  }
  return ranks;
}

bool differ(const Rehearsal& one, const Rehearsal& other) {
  return !std::ranges::equal(one.ranks, other.ranks, [](const RehearsedRank& a, const RehearsedRank& b) {
    return a.total == b.total && a.reserved == b.reserved && a.allocated == b.allocated && a.requested == b.requested;
  });
}

using Played = std::map<std::int64_t, Rehearsal>;

/// Two ranks next to each other among those that were played, that differ, and between which others lie.
std::optional<std::pair<std::int64_t, std::int64_t>> open_gap(const Played& played) {
  for (auto right = played.begin(); right != played.end(); ++right) {
    if (right == played.begin()) continue;
    const auto left = std::prev(right);
    if (right->first - left->first > 1 && differ(left->second, right->second)) return {{left->first, right->first}};
  }
  return std::nullopt;
}

void add_notes(Rehearsal& merged, const Played& played) {
  for (const auto& [rank, each] : played) {
    for (const std::string& note : each.notes) {
      if (std::ranges::find(merged.notes, note) == merged.notes.end()) merged.notes.push_back(note);
    }
  }
  if (const auto gap = open_gap(played)) {
    merged.notes.push_back(
        fmt::format("ranks {} and {} differ, and those between them were not played", gap->first, gap->second));
  }
}

Rehearsal merge(const RehearsalRequest& request, const std::vector<std::string>& command, Played played) {
  Rehearsal merged;
  merged.command = command;
  merged.cluster = request.cluster;
  merged.strict_out_of_memory = request.strict_out_of_memory;
  double seconds = 0;
  merged.end = played.begin()->second.end;
  for (auto& [rank, each] : played) {
    merged.played_ranks.push_back(rank);
    if (each.exit_code() != 0 || each.end.interrupted_by != 0) merged.end = each.end;
    seconds += each.end.seconds;
    merged.ghosts.answers += each.ghosts.answers;
    merged.processes.insert(merged.processes.end(), each.processes.begin(), each.processes.end());
  }
  merged.end.seconds = seconds;
  judge(merged);
  add_notes(merged, played);
  return merged;
}

}  // namespace

Rehearsal rehearse_after_senders(const RehearsalRequest& request, const std::vector<std::string>& command,
                                 const std::string& folder, const std::string& objects,
                                 const SignalDescriptor& signals) {
  return Senders(request, command, objects, signals).play(folder);
}

Rehearsal rehearse_with_senders(const RehearsalRequest& request, const std::vector<std::string>& command,
                                const std::string& folder, const SignalDescriptor& signals) {
  if (!request.played_rank) return rehearse_once(request, command, folder, signals);
  const PrivateFolder objects("rehearsal");
  return rehearse_after_senders(request, command, folder, objects.path(), signals);
}

void require_host_memory_for_all(const RehearsalRequest& request, const std::vector<std::string>& command,
                                 const SignalDescriptor& signals) {
  RehearsalRequest first = request;
  first.played_rank = 0;
  const SessionFolder session("");
  const Rehearsal rehearsal = rehearse_with_senders(first, command, session.path(), signals);
  if (rehearsal.end.interrupted_by != 0) throw FaultError("interrupted");
  const Bytes each = rehearsal.end.host_memory, all = request.cluster.cards() * each;
  const Bytes available = available_host_memory();
  if (all <= available) return;
  throw InputError(
      fmt::format("--ranks all: {} ranks would take {:.1f} GiB of host memory ({:.2f} each, as rank 0 did alone), and "
                  "{:.1f} GiB are available; play those that differ: --ranks worst",
                  request.cluster.cards(), gib_of(all), gib_of(each), gib_of(available)));
}

Rehearsal rehearse_ranks_that_differ(const RehearsalRequest& request, const std::vector<std::string>& command,
                                     const PlayRank& play, std::size_t most) {
  Played played;
  std::set<std::int64_t> next = first_choice(request.cluster);
  while (!next.empty()) {
    const std::int64_t rank = *next.begin();
    next.erase(next.begin());
    const Rehearsal& last = played.emplace(rank, play(rank)).first->second;
    if (!is_done(last) || last.end.interrupted_by != 0) break;  // the others would fail as well
    const auto gap = open_gap(played);
    if (next.empty() && gap && played.size() < most) next.insert(gap->first + (gap->second - gap->first) / 2);
  }
  return merge(request, command, std::move(played));
}

}  // namespace vramfit
