// Names of signals.
#pragma once

#include <string_view>

namespace vramfit {

/// "KILL" of SIGKILL; "?" of a number that is none of the standard signals. (sigabbrev_np needs glibc 2.32.)
std::string_view signal_name(int signal);

}  // namespace vramfit
