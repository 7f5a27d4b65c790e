#include "executor/checkpoint/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "base/text/suggest.h"
#include "executor/checkpoint/folder.h"
#include "program/files/checkpoint_steps.h"

namespace vramfit {
namespace {

/// What is wrong with a checkpoint as far as this rank sees; "" when nothing is.
std::string examine(const ResumeRequest& request, std::int64_t step, const Graph& graph, Resumed& resumed) {
  const std::string folder = committed_folder(request.directory, step);
  try {
    resumed.manifest = read_manifest(folder);
    if (resumed.manifest.step != step) {
      throw DamagedCheckpoint(fmt::format("checkpoint {}: its manifest is for step {}", folder, resumed.manifest.step));
    }
    check_facts(resumed.manifest, request.facts, folder);
    const auto stride = static_cast<std::size_t>(request.world);
    for (auto file = static_cast<std::size_t>(request.rank); file < resumed.manifest.files.size(); file += stride) {
      verify_file(folder, resumed.manifest, file);
    }
    resumed.states = std::make_unique<SavedStates>(folder, resumed.manifest, graph, request.is_scaled);
  } catch (const DamagedCheckpoint& error) {
    return error.what();
  }
  return "";
}

}  // namespace

Resumed resume(const ResumeRequest& request, const Graph& graph, ProcessGroups& groups) {
  std::vector<std::int64_t> steps = committed_steps(request.directory);
  std::ranges::reverse(steps);
  std::string listed;
  for (const std::int64_t step : steps) listed += fmt::format("{} ", step);
  for (const std::string& theirs : groups.share_texts("resume/steps", listed)) {
    if (theirs == listed) continue;
    throw FaultError(
        fmt::format("--resume {}: ranks see different checkpoints there; all ranks must share one directory",
                    printable(request.directory)));
  }
  for (const std::int64_t step : steps) {
    Resumed resumed;
    const std::string own = examine(request, step, graph, resumed);
    const std::vector<std::string> all = groups.share_texts(fmt::format("resume/{}", step), own);
    const auto wrong = std::ranges::find_if(all, [](const std::string& text) { return !text.empty(); });
    if (wrong == all.end()) return resumed;
    if (request.rank == 0) std::fputs(("vramfit-train: warning: skipped: " + *wrong + "\n").c_str(), stderr);
  }
  throw ModelError(fmt::format("--resume {}: {}", printable(request.directory),
                               steps.empty() ? "contains no complete checkpoint (step-N)"
                                             : "every checkpoint there is damaged (see the warnings above)"));
}

}  // namespace vramfit
