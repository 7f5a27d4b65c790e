#include "cli/rehearse/warm/warm_process.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text/suggest.h"
#include "cli/launch/environment.h"
#include "cli/rehearse/processes/command.h"

namespace vramfit {
namespace {

constexpr const char* kVariable = "VRAMFIT_WARM";

bool read_number(std::string_view text, int& number) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && stop == text.data() + text.size() && number > 0;
}

bool is_socket(int descriptor) {
  int type = 0;
  socklen_t size = sizeof type;
  return getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
}

/// The number of words, the words, where the output goes, and the environment.
std::string document_of(const CommandStart& start) {
  std::vector<std::string> fields{fmt::to_string(start.words.size())};
  fields.insert(fields.end(), start.words.begin(), start.words.end());
  fields.emplace_back(start.output_to_stderr ? "stderr" : "stdout");
  const std::vector<std::string> variables = environment_with(start.environment);
  fields.insert(fields.end(), variables.begin(), variables.end());
  return zero_ended(fields);
}

bool send_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = send(descriptor, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

}  // namespace

std::string zero_ended(const std::vector<std::string>& fields) {
  std::string text;
  for (const std::string& field : fields) text.append(field.c_str(), field.size() + 1);
  return text;
}

std::optional<WarmProcess> take_warm_process() {
  const std::string text = environment_value(kVariable);
  if (text.empty()) return std::nullopt;
  unsetenv(kVariable);
  const std::size_t colon = std::min(text.find(':'), text.size());
  WarmProcess warm;
  const bool is_read = read_number(std::string_view(text).substr(0, colon), warm.process) && colon < text.size() &&
                       read_number(std::string_view(text).substr(colon + 1), warm.descriptor);
  if (!is_read || waitpid(warm.process, nullptr, WNOHANG) != 0 || !is_socket(warm.descriptor)) {
    throw InputError(
        fmt::format("{}={}: no process that was started for this rehearsal; vramfit.Warm sets it for one rehearsal "
                    "without --search",
                    kVariable, printable(text)));
  }
  return warm;
}

void hand_over(const CommandStart& start, int join) {
  const WarmProcess warm = *start.warm;
  // As in `become`: where this fails, it is ended without the group's help.
  const std::string process = fmt::to_string(warm.process);
  [[maybe_unused]] const ssize_t joined = join >= 0 ? write(join, process.data(), process.size()) : 0;
  const bool is_sent = send_all(warm.descriptor, document_of(start));
  close(warm.descriptor);
  if (!is_sent) throw FaultError(fmt::format("process {}, which was to be rehearsed, is gone", warm.process));
}

}  // namespace vramfit
