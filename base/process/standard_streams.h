// Descriptors 0 to 2, as both programs take them over when they start and leave them when they end.
#pragma once

#include <string_view>

namespace vramfit {

/// First thing in main. Descriptors 0 to 2 that are closed become /dev/null, or the next file or socket opened would be
/// taken for one of them; a write to a closed pipe is an error from then on, not the end of the process.
void take_over_standard_streams();

/// After fork: what take_over_standard_streams changed is again as whoever started us had it. Async-signal-safe.
void restore_signals_for_child();

/// Last thing in main: throws FaultError when something printed on stdout did not reach it, ReaderGone when its reader
/// has closed it.
void finish_stdout();

/// "NAME: TEXT\n" on stderr; control characters other than line ends become '?'.
void complain(std::string_view name, std::string_view text);

/// The exit code of a program whose reader went away: what a shell shows for SIGPIPE.
inline constexpr int kReaderGoneCode = 141;

}  // namespace vramfit
