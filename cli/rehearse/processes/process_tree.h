// This process's descendants, whoever started them and whatever session they are in.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>
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

struct Descendant {
  pid_t process = 0;
  std::string name;  // as the kernel knows it, at most 15 bytes
};

/// All that are running, without those that have ended and only wait to be collected. One that is started while this
/// looks may be missed; what collect_ended returns is certain.
std::vector<Descendant> descendants();

/// The parent of every process of this machine that can be seen.
std::map<pid_t, pid_t> parents_of_all();

void send_to_all(const std::vector<Descendant>& processes, int signal);

/// Called for each process that was collected, with its status as waitpid(2) gives it.
using Ended = std::function<void(pid_t process, int status)>;

/// Collects all children that have ended. Under a Subreaper a chain of processes that start each other always has a
/// link that is our child, so the answer is certain: whether any descendant is left.
bool collect_ended(const Ended& ended);

/// Ends all descendants, also those that keep forking: stops what there is until nothing new is found, kills it, and
/// goes after what a process that just ended may have left behind. Returns whether none is left; gives up after
/// `limit`.
bool kill_descendants(std::chrono::milliseconds limit, const Ended& ended);

}  // namespace vramfit
