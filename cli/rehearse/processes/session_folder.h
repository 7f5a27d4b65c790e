// The folder where a rehearsal's processes read what to simulate and leave their records (docs/phantom.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/private_folder.h"
#include "job/cluster/cluster.h"

namespace vramfit {

/// How the phantom behaves where real GPUs differ from run to run, or where exactness costs time.
struct PhantomSettings {
  std::string addresses = "ascending";   // ascending, descending, driver, shuffled:SEED
  std::string completion = "immediate";  // immediate, late:SEED
  std::int64_t real_bytes = 1 << 20;     // copies, fills and collectives up to this size move data
  std::string values = "computed";       // or "unknown": nothing that a kernel writes is known
  std::string routing = "balanced";      // worst: all rows of unknown scores choose the same entries; or drawn:SEED
  double selected = 1;                   // share of an unknown mask that is true
  std::int64_t integer_bytes = 64 << 20, float_bytes = 4096;  // largest tensors that are computed
  std::string workspaces = "zero";                            // or "bound": those of unknown size take their bound
  bool trace = false;                                         // write every driver-level event
};

/// What parse_phantom_settings knows, for the help.
inline constexpr const char* kPhantomSettings =
    "Settings of the simulation: addresses=ascending|descending|driver|shuffled:SEED, completion=immediate|late:SEED, "
    "real-bytes=N, values=computed|unknown, routing=balanced|worst|drawn:SEED, selected=SHARE, integer-bytes=N, "
    "float-bytes=N, workspaces=zero|bound";

/// Reads "addresses=descending,completion=late:7,real-bytes=4096"; throws InputError.
PhantomSettings parse_phantom_settings(const std::string& text);

/// One of them; throws InputError.
void set_phantom_setting(PhantomSettings& settings, const std::string& key, const std::string& value);

/// vramfit/phantom-session@1. `played_rank` empty: every rank has its own process.
std::string session_to_json(const Cluster& cluster, std::optional<std::int64_t> played_rank,
                            const PhantomSettings& settings);

class SessionFolder {
 public:
  /// `keep` empty: a private folder in $TMPDIR, removed at the end; else that folder, made if needed and kept, which
  /// must be empty. Throws FaultError or InputError naming it.
  explicit SessionFolder(const std::string& keep);

  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::optional<PrivateFolder> removed_;  // unless it is kept
};

}  // namespace vramfit
