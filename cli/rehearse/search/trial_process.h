// A rehearsal of a search in a process of its own, so that several can run at the same time: it is the subreaper of
// what it starts, has a session folder and a control group of its own, and ends with its parent.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "cli/rehearse/search/search.h"

namespace vramfit {

/// Rehearses with these values.
using RunTrial = std::function<RehearsalTrial(const SearchPoint& point)>;

/// Starts a process, our child, that rehearses, writes the result to `result` and ends with us. It prints to `output`.
/// Throws FaultError.
using StartTrial = std::function<pid_t(const SearchPoint& point, int output, int result)>;

/// As a fork of this process.
StartTrial forked_trial(RunTrial run);

/// Rehearses, and writes what take_trial reads.
void write_trial(int result, const SearchPoint& point, const RunTrial& run);

class TrialProcess {
 public:
  /// Starts it. `shows_lines`: what its command prints is shown on stderr in whole lines, each with the point in front;
  /// otherwise the command has our stderr. Its stdin is empty. Throws FaultError.
  TrialProcess(const SearchPoint& point, const StartTrial& start, bool shows_lines);
  ~TrialProcess();
  TrialProcess(TrialProcess&& other) noexcept;
  TrialProcess(const TrialProcess&) = delete;
  TrialProcess& operator=(const TrialProcess&) = delete;
  TrialProcess& operator=(TrialProcess&&) = delete;

  const SearchPoint& point() const { return point_; }
  pid_t process() const { return process_; }
  /// Readable when there is something for `read`; -1 where there is no more.
  int result_descriptor() const { return result_; }
  int lines_descriptor() const { return lines_; }
  void signal(int number) const;
  /// Takes what has come; true once the process has ended.
  bool read();
  /// After its end. Throws the error that it ended with, or FaultError if it was killed.
  RehearsalTrial take_trial();

 private:
  void show_lines(bool to_the_end);

  SearchPoint point_;
  pid_t process_ = -1;
  int result_ = -1, lines_ = -1, status_ = 0;
  std::string document_, shown_;
};

}  // namespace vramfit
