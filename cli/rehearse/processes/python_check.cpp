#include "cli/rehearse/processes/python_check.h"

#include <chrono>
#include <filesystem>

#include <fmt/format.h>

#include "base/text/suggest.h"
#include "cli/files.h"
#include "cli/rehearse/processes/command.h"
#include "cli/rehearse/processes/environment.h"
#include "cli/rehearse/processes/phantom_library.h"
#include "cli/rehearse/processes/program_file.h"
#include "cli/rehearse/processes/session_folder.h"
#include "job/cluster/cluster.h"

namespace vramfit {
namespace {

constexpr const char* kCard = "1xH100-80GB";
constexpr std::chrono::seconds kMost{120};

// One line a fact, its name and its value with a tab between them.
constexpr const char* kProbe = R"(
import os, sys
def said(name, value):
    with open(os.environ["VRAMFIT_PYTHON_CHECK"], "a") as out:
        out.write(name + "\t" + " ".join(str(value).split()) + "\n")
said("version", sys.version.split()[0])
try:
    import torch
    said("torch", torch.__version__)
    said("cuda", torch.version.cuda or "")
    product = torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
    torch.cuda.synchronize()
    said("card", torch.cuda.get_device_name(0))
    folder = os.environ["VRAMFIT_PHANTOM_LIB"] + "/"
    with open("/proc/self/maps") as maps:
        paths = {line.split(None, 5)[-1].strip() for line in maps if folder in line}
    for path in sorted(paths):
        said("stand_in", os.path.realpath(path)[len(os.path.realpath(folder)) + 1:])
except BaseException as error:
    said("why_not", f"{type(error).__name__}: {error}")
)";

/// The facts that the lines of the probe give.
void read_facts(const std::string& text, PythonCheck& check) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::size_t tab = std::min(text.find('\t', at), end);
    const std::string name = text.substr(at, tab - at);
    const std::string value = printable(text.substr(std::min(tab + 1, end), end - std::min(tab + 1, end)), 300);
    at = end + 1;
    if (name == "version") check.version = value;
    if (name == "torch") check.torch = value;
    if (name == "cuda") check.cuda = value;
    if (name == "card") check.card = value;
    if (name == "why_not") check.why_not = value;
    if (name == "stand_in") check.stand_ins.push_back(value);
  }
}

/// Why nothing ran, in terms of what to do about it.
std::string explained(const PythonCheck& check, const CommandEnd& end) {
  if (check.torch.empty()) {
    return check.why_not.empty() ? "it does not run a few lines of Python"
                                 : "torch can't be imported: " + check.why_not;
  }
  if (check.cuda.empty()) return fmt::format("torch {} is built without CUDA; install a CUDA build", check.torch);
  if (!check.why_not.empty()) return check.why_not;
  if (end.timed_out) return fmt::format("it took longer than {} s", kMost.count());
  if (check.card.empty()) return fmt::format("it ended with exit code {}", end.exit_code);
  return "";
}

}  // namespace

PythonCheck check_python(const std::string& python) {
  PythonCheck check;
  check.python = find_program(python);
  if (const std::string why = why_out_of_reach(check.python); !why.empty()) {
    check.why_not = fmt::format("it {}, so GPU libraries can't be replaced in it", why);
    return check;
  }
  const std::string library = find_phantom_library();
  const SessionFolder session("");
  write_file(session.path() + "/session.json", session_to_json(parse_cluster(kCard), std::nullopt, {}));
  const std::string facts = session.path() + "/facts";
  write_file(facts, "");
  CommandStart start{.program = check.python,
                     .words = {python, "-c", kProbe},
                     .environment = phantom_environment(library, session.path()),
                     .timeout = kMost,
                     .output_to_stderr = true,
                     .warm = {}};
  start.environment.emplace_back("VRAMFIT_PYTHON_CHECK", facts);
  const SignalDescriptor signals;
  const CommandEnd end = run_command(start, signals);
  read_facts(read_file(facts), check);
  check.why_not = explained(check, end);
  return check;
}

}  // namespace vramfit
