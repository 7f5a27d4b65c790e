#include "cli/rehearse/search/trial_pool.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/rehearse/processes/host_use.h"

namespace vramfit {
namespace {

constexpr int kTickMilliseconds = 500;  // between two looks at what they take of the host
constexpr std::chrono::milliseconds kKilling{10000};

Bytes with_reserve(Bytes need) { return {need.n + need.n / 4}; }

}  // namespace

ProcessPool::ProcessPool(TrialActions actions, std::optional<int> jobs)
    : actions_(std::move(actions)), jobs_(jobs), cores_(usable_cores()) {}

ProcessPool::~ProcessPool() {
  for (const Running& running : running_) {
    if (interrupted_by_ == 0 && running.is_wanted) running.process.signal(SIGTERM);
  }
  try {
    while (!running_.empty()) wait();
  } catch (const std::exception&) {  // its end is all that is wanted
  }
  kill_descendants(kKilling, [](pid_t, int) {});
}

bool ProcessPool::has_room() {
  if (is_idle()) return true;
  if (interrupted_by_ != 0) return false;
  const auto count = static_cast<int>(running_.size());
  if (jobs_) return count < *jobs_;
  if (processes_ == 0 || count >= std::max(1, cores_ / processes_)) return false;
  measure();
  Bytes needed = with_reserve(largest_memory_);
  for (const Running& running : running_) {  // what they may still take
    needed += Bytes{std::max<std::int64_t>(0, largest_memory_.n - running.memory.n)};
  }
  return needed <= available_host_memory();
}

void ProcessPool::start(const SearchPoint& point) {
  pass_signals_on();
  if (interrupted_by_ != 0) {
    not_started_.push_back({.point = point,
                            .verdict = "interrupted",
                            .why = fmt::format("by signal {}", interrupted_by_),
                            .total = {},
                            .exit_code = 128 + interrupted_by_,
                            .is_interrupted = true,
                            .is_cached = false});
    return;
  }
  const bool is_alone = running_.empty();
  for (Running& running : running_) running.was_alone = false;
  running_.push_back({.process = TrialProcess(point, actions_.start, jobs_ != 1), .was_alone = is_alone, .memory = {}});
}

void ProcessPool::cancel(const SearchPoint& point) {
  const auto found = std::ranges::find_if(
      running_, [&](const Running& running) { return running.is_wanted && running.process.point() == point; });
  if (found == running_.end()) return;
  found->is_wanted = false;
  if (interrupted_by_ == 0) found->process.signal(SIGTERM);
}

std::optional<TrialPool::Ended> ProcessPool::wait() {
  if (!not_started_.empty()) {
    Ended ended{std::move(not_started_.back())};
    not_started_.pop_back();
    return ended;
  }
  while (true) {
    poll_all();
    pass_signals_on();
    measure();
    for (auto running = running_.begin(); running != running_.end(); ++running) {
      if (running->process.read()) return end_of(running);
    }
  }
}

std::optional<TrialPool::Ended> ProcessPool::end_of(Place running) {
  Running ended = std::move(*running);
  running_.erase(running);
  if (!ended.is_wanted) return std::nullopt;  // it was interrupted by us
  RehearsalTrial trial = ended.process.take_trial();
  if (trial.is_interrupted && interrupted_by_ == 0)
    interrupted_by_ = trial.exit_code > 128 ? trial.exit_code - 128 : SIGTERM;
  processes_ = std::max({processes_, trial.processes, 1});
  if (!trial.is_failure() && !trial.is_interrupted) actions_.ended(trial);
  return Ended{std::move(trial), ended.was_alone};
}

/// From a terminal they have it already.
void ProcessPool::pass_signals_on() {
  const TakenSignal taken = signals_.take();
  if (taken.number == 0) return;
  interrupted_by_ = taken.number;
  if (taken.from_terminal) return;
  for (const Running& running : running_) running.process.signal(taken.number);
}

void ProcessPool::measure() {
  if (jobs_) return;
  std::vector<pid_t> processes;
  for (const Running& running : running_) processes.push_back(running.process.process());
  const std::vector<Bytes> memory = host_memory_of(processes);
  auto next = memory.begin();
  for (Running& running : running_) {
    running.memory = *next++;
    largest_memory_ = std::max(largest_memory_, running.memory);
  }
}

void ProcessPool::poll_all() const {
  std::vector<pollfd> descriptors{{signals_.descriptor(), POLLIN, 0}};
  for (const Running& running : running_) {
    descriptors.push_back({running.process.result_descriptor(), POLLIN, 0});
    descriptors.push_back({running.process.lines_descriptor(), POLLIN, 0});
  }
  poll(descriptors.data(), descriptors.size(), kTickMilliseconds);
}

}  // namespace vramfit
