// One rank as a child process: started, read from, ended.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "cli/launch/environment.h"

namespace vramfit {

/// What a rank's process is started with.
struct RankStart {
  std::string program;
  std::vector<std::string> arguments;
  EnvironmentChanges environment;
};

class RankProcess {
 public:
  /// Throws FaultError when the process can't be made. A program that can't be executed ends with exit 127.
  RankProcess(int rank, const RankStart& start);
  ~RankProcess();
  RankProcess(RankProcess&& other) noexcept;
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;
  RankProcess& operator=(RankProcess&&) = delete;

  int rank() const { return rank_; }
  pid_t process() const { return process_; }
  int error_pipe() const { return pipe_; }
  bool running() const { return running_; }

  /// Complete lines of stderr since the last call; sets `open` to false once the pipe has ended.
  std::vector<std::string> read_lines(bool& open);
  /// Marks it ended with a status of waitpid(2).
  void ended(int status);
  void send(int signal) const;

  bool failed() const;
  int exit_code() const;    // -1 when a signal ended it
  int exit_signal() const;  // 0 when none did
  std::string last_error;   // the last line it reported as an error, without the program's name

 private:
  int rank_;
  pid_t process_ = -1;
  int pipe_ = -1, status_ = 0;
  bool running_ = true;
  std::string partial_;
};

}  // namespace vramfit
