#include "base/process/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>

#include <fmt/format.h>

#include "base/files/result_file.h"
#include "base/text/suggest.h"
#include "base/text/system_reason.h"

namespace vramfit {
namespace {

using Handler = void (*)(int);

Handler inherited_sigpipe = SIG_DFL;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

}  // namespace

void take_over_standard_streams() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    const bool closed = fcntl(descriptor, F_GETFD) < 0 && errno == EBADF;
    if (!closed) continue;
    // The lowest free descriptor is this one. Without /dev/null there is nobody to tell why.
    if (open("/dev/null", O_RDWR) != descriptor) _exit(static_cast<int>(ExitCode::failed));
  }
  inherited_sigpipe = std::signal(SIGPIPE, SIG_IGN);
}

void restore_signals_for_child() { std::signal(SIGPIPE, inherited_sigpipe); }

void finish_stdout() {
  errno = 0;
  const bool failed = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (!failed) return;
  if (errno == EPIPE) throw ReaderGone();
  throw FaultError(fmt::format("stdout: can't be written: {}", system_reason(errno == 0 ? EIO : errno)));
}

void complain(std::string_view name, std::string_view text) {
  std::string shown;
  while (true) {
    const std::size_t end = text.find('\n');
    shown += printable(text.substr(0, end), text.size()) + "\n";
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  std::fputs(fmt::format("{}: {}", name, shown).c_str(), stderr);
}

}  // namespace vramfit
