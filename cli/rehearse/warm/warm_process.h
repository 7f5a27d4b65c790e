// A Python process with a program's imports done, which waits for what to run (phantom/python/vramfit_warm/server.py).
// It is rehearsed in place of one that this program would start.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace vramfit {

struct CommandStart;

struct WarmProcess {
  pid_t process = 0;
  int descriptor = -1;  // a socket, of which it reads what to run, up to the end
};

/// That of VRAMFIT_WARM=PROCESS:DESCRIPTOR, which is then no longer in the environment. Throws InputError unless it is
/// a living child of this process, and a socket.
std::optional<WarmProcess> take_warm_process();

/// Tells it the words, the environment and where its output goes, and puts it into the control group of `join`, if that
/// is not -1. Throws FaultError if it is gone.
void hand_over(const CommandStart& start, int join);

/// How texts are passed to the process with the imports: each ends with a zero byte, which none of them can contain.
std::string zero_ended(const std::vector<std::string>& fields);

}  // namespace vramfit
