// This process's descendants, whoever started them and whatever session they are in.
#pragma once

#include <sys/types.h>

#include <vector>

namespace vramfit {

/// While it lives, orphaned descendants become children of this process, so that none is lost.
class Subreaper {
 public:
  Subreaper();
  ~Subreaper();
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;
  Subreaper(Subreaper&&) = delete;
  Subreaper& operator=(Subreaper&&) = delete;
};

/// All that are running, without those that have ended and only wait to be collected.
std::vector<pid_t> descendants();

void send_to_all(const std::vector<pid_t>& processes, int signal);

}  // namespace vramfit
