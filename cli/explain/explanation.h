// What "vramfit explain" answers: what ran out or what a snapshot holds, what would have helped, and how it compares
// with the estimate of the job.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/explain/advice.h"
#include "cli/explain/beside_estimate.h"
#include "cli/explain/log.h"
#include "cli/explain/snapshot_facts.h"
#include "cli/format/terminal.h"

namespace vramfit {

struct Explanation {
  std::string file;
  // Of a log: all failures, and which of them is explained: the first that has figures.
  MemoryLog log;
  std::size_t failure = 0;
  // Of a snapshot: all devices, and which of them is explained: the one that ran out, or the fullest.
  std::vector<SnapshotFacts> devices;
  std::size_t device = 0;
  std::vector<std::pair<std::string, std::string>> settings;

  CardUse use;
  CodeSite site;               // of the request that failed
  std::vector<Advice> advice;  // empty where nothing ran out
  std::optional<BesideEstimate> beside;

  bool is_snapshot() const { return !devices.empty(); }
  const SnapshotFacts& facts() const { return devices[device]; }
};

/// Reads a log or a snapshot, whichever `file` is. Throws InputError naming it.
Explanation explain(const std::string& file);

/// Adds the estimate of the job that ran.
void put_beside(Explanation& explanation, Estimate estimate);

std::string explanation_text(const Explanation& explanation, const Terminal& terminal);

/// vramfit/explanation@1.
std::string explanation_to_json(const Explanation& explanation);

}  // namespace vramfit
