#include "estimator/least/leaving_activations.h"

#include <algorithm>

#include "program/schedules/schedule.h"
#include "program/stages/kept_values.h"

namespace vramfit {

std::vector<Kept> kept_by(const Graph& graph, const Job& job, const std::vector<bool>& has_backward, bool is_open) {
  std::vector<Kept> kept(graph.segments.size(), Kept::all);
  for (std::size_t s = 0; s < kept.size(); ++s) {
    const bool may_recompute = graph.segments[s].role == SegmentRole::block && has_backward[s];
    if (is_open && may_recompute) kept[s] = Kept::unknown;
    if (!is_open && is_checkpointed(job, graph, has_backward, static_cast<int>(s))) kept[s] = Kept::checkpointed;
  }
  return kept;
}

std::optional<std::size_t> policy_of(const Job& job) {
  return is_selective(job.checkpointing) ? std::optional(policy_number(job.checkpointing)) : std::nullopt;
}

std::vector<Bytes> leaving_activations(const std::vector<SavedActivations>& saved, const Graph& graph, const Job& job,
                                       const std::vector<bool>& has_backward, OpenChoices open) {
  const std::vector<Kept> kept = kept_by(graph, job, has_backward, open.has(OpenChoice::checkpointing));
  const std::vector<bool> leave = segments_that_leave(job, graph, has_backward);
  const std::optional<std::size_t> policy = policy_of(job);
  std::vector<Bytes> leaving(saved.size());
  for (std::size_t s = 0; s < saved.size(); ++s) {
    if (!leave[s]) continue;
    const bool shares_input = s > 0 && kept[s - 1] != Kept::checkpointed && saved[s - 1].holds_output;
    const auto left = [&](const auto& activations) {
      return (activations.holds_input && !shares_input ? saved[s].leaving_input : Bytes{}) + activations.leaving;
    };
    Bytes& least = leaving[s];
    least = kept[s] == Kept::checkpointed ? left(checkpointed_by(policy, saved[s])) : left(saved[s]);
    if (kept[s] == Kept::unknown) {
      least = std::min(least, left(saved[s].full));
      for (const CheckpointedActivations& selective : saved[s].selective) least = std::min(least, left(selective));
    }
  }
  return leaving;
}

}  // namespace vramfit
