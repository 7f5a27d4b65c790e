#include "cli/recipes/libraries.h"

#include <chrono>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/result_file.h"
#include "base/text/shell_quoted.h"
#include "base/text/suggest.h"
#include "cli/files.h"
#include "cli/launch/signal_descriptor.h"
#include "cli/private_folder.h"
#include "cli/rehearse/processes/command.h"
#include "cli/rehearse/processes/program_file.h"

namespace vramfit {
namespace {

constexpr std::chrono::seconds kMost{60};

// A line for each library: its state, what pip takes, its version, with tabs between them. Then "all" and the hash of
// what is installed.
constexpr const char* kProbe = R"python(
import hashlib, importlib.metadata, re, sys
def numbers(text):
    found = [int(number) for number in re.findall(r"\d+", re.split("[+a-z]", text)[0])]
    while found and found[-1] == 0:
        found.pop()
    return found
def judge(version, limits):
    for sign, limit in re.findall("(>=|==|<)([^,]+)", limits):
        if sign != "<" and numbers(version) < numbers(limit):
            return "old"
        if sign == "==" and numbers(version) > numbers(limit) or sign == "<" and numbers(version) >= numbers(limit):
            return "new"
    return "there"
with open(sys.argv[1], "w") as out:
    for wanted in sys.argv[2:]:
        name = re.match("[^<>=]*", wanted)[0]
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = ""
        state = judge(version, wanted[len(name):]) if version else "missing"
        out.write(f"{state}\t{wanted}\t{version}\n")
    there = sorted({f"{each.metadata['Name']} {each.version}" for each in importlib.metadata.distributions()})
    out.write(f"all\t{hashlib.sha256(repr([sys.version, there]).encode()).hexdigest()}\t\n")
)python";

struct Found {
  std::string there;                  // "torch 2.11.0, trl 1.16.0"
  std::string identity;               // of all that are installed
  std::string lacking;                // "trl is missing", "transformers 4.57.0 is too old"
  std::vector<std::string> pip = {};  // what pip takes for those
};

void append(std::string& list, const std::string& item) { list += (list.empty() ? "" : ", ") + item; }

Found read_lines(const std::string& text) {
  Found found;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    const std::size_t first = line.find('\t'), second = line.find('\t', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string state = line.substr(0, first), wanted = line.substr(first + 1, second - first - 1);
    const std::string version = printable(line.substr(second + 1), 40),
                      name = wanted.substr(0, wanted.find_first_of("<>="));
    if (state == "all") {
      found.identity = wanted;
      continue;
    }
    if (state == "there") {
      append(found.there, fmt::format("{} {}", name, version));
      continue;
    }
    append(found.lacking,
           state == "missing" ? name + " is missing" : fmt::format("{} {} is too {}", name, version, state));
    found.pip.push_back(wanted);
  }
  return found;
}

}  // namespace

std::string find_python(const std::string& wanted) {
  if (!wanted.empty()) return find_program(wanted);
  try {
    return find_program("python");
  } catch (const InputError&) {
    return find_program("python3");
  }
}

Libraries check_libraries(const Recipe& recipe, const std::string& python) {
  const PrivateFolder folder("rehearsal");
  const std::string facts = folder.path() + "/libraries";
  write_file(facts, "");
  std::vector<std::string> words{python, "-c", kProbe, facts};
  words.insert(words.end(), recipe.libraries.begin(), recipe.libraries.end());
  const SignalDescriptor signals;
  const CommandEnd end = run_command(
      {.program = python, .words = words, .environment = {}, .timeout = kMost, .output_to_stderr = true, .warm = {}},
      signals);
  const Found found = read_lines(read_file(facts));
  if (end.exit_code != 0 || (found.there.empty() && found.lacking.empty())) {
    throw FaultError(
        fmt::format("{}: does not run a few lines of Python 3.8; name another with --python PATH", printable(python)));
  }
  if (found.lacking.empty()) return {.text = found.there, .identity = found.identity};
  std::vector<std::string> install{python, "-m", "pip", "install", "-U"};
  install.insert(install.end(), found.pip.begin(), found.pip.end());
  throw FaultError(fmt::format("recipe {}: {}; install with: {} (or name another Python with --python PATH)",
                               recipe.name, found.lacking, printable(shell_words(install), 1000)));
}

}  // namespace vramfit
