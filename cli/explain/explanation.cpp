#include "cli/explain/explanation.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "cli/explain/snapshot.h"

namespace vramfit {
namespace {

void explain_log(Explanation& explanation) {
  explanation.log = read_memory_log(explanation.file);
  const auto& failures = explanation.log.failures;
  const auto first =
      std::ranges::find_if(failures, [](const LoggedFailure& failure) { return failure.message.asked.has_value(); });
  explanation.failure = first == failures.end() ? 0 : static_cast<std::size_t>(first - failures.begin());
  const LoggedFailure& failure = failures[explanation.failure];
  explanation.use = use_of(failure.message);
  explanation.site = failure.site;
  explanation.advice = advice_for(explanation.use, failure.site);
}

void explain_snapshot(Explanation& explanation) {
  const Snapshot snapshot = read_snapshot(explanation.file);
  for (const SnapshotDevice& device : snapshot.devices) explanation.devices.push_back(facts_of(snapshot, device));
  if (explanation.devices.empty()) {
    throw InputError(
        fmt::format("{}: is a memory snapshot without any memory: the process that wrote it had nothing on a GPU then",
                    printable(explanation.file)));
  }
  const auto most = std::ranges::max_element(explanation.devices, {}, [](const SnapshotFacts& facts) {
    return std::pair(facts.oom.has_value(), facts.reserved);
  });
  explanation.device = static_cast<std::size_t>(most - explanation.devices.begin());
  explanation.settings = snapshot.settings;
  explanation.use = use_of(*most);
  for (const auto& [name, value] : snapshot.settings) {
    if (name == "expandable_segments" && value == "true") explanation.use.expandable = true;
  }
  if (!most->oom) return;
  if (most->oom->stack != kNoStack) {
    explanation.site = snapshot.stacks[static_cast<std::size_t>(most->oom->stack)].site;
  }
  explanation.advice = advice_for(explanation.use, explanation.site);
}

}  // namespace

Explanation explain(const std::string& file) {
  Explanation explanation;
  explanation.file = file;
  if (is_pickle(file)) {
    explain_snapshot(explanation);
  } else {
    explain_log(explanation);
  }
  return explanation;
}

void put_beside(Explanation& explanation, Estimate estimate) {
  const SnapshotFacts* const snapshot = explanation.is_snapshot() ? &explanation.facts() : nullptr;
  explanation.beside = beside(std::move(estimate), explanation.use, explanation.site, snapshot);
}

}  // namespace vramfit
