// The rehearsals of a search, several at once.
#pragma once

#include <list>
#include <optional>
#include <vector>

#include "cli/launch/signal_descriptor.h"
#include "cli/rehearse/processes/process_tree.h"
#include "cli/rehearse/search/search_schedule.h"
#include "cli/rehearse/search/trial_process.h"

namespace vramfit {

/// What a search does with a point, besides rehearsing it.
struct TrialActions {
  StartTrial start;
  std::function<std::optional<RehearsalTrial>(const SearchPoint& point)> kept;
  std::function<void(const RehearsalTrial& trial)> ended;   // all that were rehearsed
  std::function<void(const RehearsalTrial& trial)> accept;  // those that the result has
};

class ProcessPool final : public TrialPool {
 public:
  /// `jobs`: how many run at once. Without it, as many as there are cores for their processes, and as fit the host's
  /// memory if each takes as much as the largest so far, and a quarter more; the first runs alone, so that this is
  /// known.
  ProcessPool(TrialActions actions, std::optional<int> jobs);
  /// Ends what still runs, and waits for it.
  ~ProcessPool() override;
  ProcessPool(const ProcessPool&) = delete;
  ProcessPool& operator=(const ProcessPool&) = delete;
  ProcessPool(ProcessPool&&) = delete;
  ProcessPool& operator=(ProcessPool&&) = delete;

  std::optional<RehearsalTrial> kept(const SearchPoint& point) override { return actions_.kept(point); }
  bool has_room() override;
  void start(const SearchPoint& point) override;
  void cancel(const SearchPoint& point) override;
  std::optional<Ended> wait() override;
  bool is_idle() override { return running_.empty() && not_started_.empty(); }
  void accept(const RehearsalTrial& trial) override { actions_.accept(trial); }

 private:
  struct Running {
    TrialProcess process;
    bool was_alone, is_wanted = true;
    Bytes memory;  // of the host, now
  };
  using Place = std::list<Running>::iterator;

  void pass_signals_on();
  void measure();
  void poll_all() const;
  std::optional<Ended> end_of(Place running);

  TrialActions actions_;
  std::optional<int> jobs_;
  SignalDescriptor signals_;
  Subreaper subreaper_;  // if a process of ours is killed, what it started comes to us
  std::list<Running> running_;
  std::vector<RehearsalTrial> not_started_;  // because a signal had come
  int interrupted_by_ = 0;
  int cores_, processes_ = 0;  // of one rehearsal; 0: none has ended
  Bytes largest_memory_;
};

}  // namespace vramfit
