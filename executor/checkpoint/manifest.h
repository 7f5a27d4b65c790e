// manifest.json of a sharded checkpoint (docs/checkpoints.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files/file.h"
#include "job/job.h"

namespace vramfit {

/// A checkpoint that can't be used: a file is missing, cut, changed, or not what its manifest says. The next older one
/// may do.
struct DamagedCheckpoint : ModelError {
  using ModelError::ModelError;
};

inline constexpr FileRole kCheckpointFile{"checkpoint", ExitCode::model};

struct SavedFile {
  std::int64_t bytes = 0;
  std::uint32_t crc32c = 0;
};

struct Manifest {
  std::int64_t step = 0;      // finished steps
  std::int64_t next_row = 0;  // of the data order: the first row of step + 1
  /// What a run that resumes must have in common, by flag: {"--seed", "0"}, ...; compared as text.
  std::vector<std::pair<std::string, std::string>> facts;
  /// State of the run that is a number: {"loss scale", 65536}, ...
  std::vector<std::pair<std::string, double>> numbers;
  std::vector<SavedFile> files;  // by rank
};

inline constexpr std::string_view kManifestFile = "manifest.json";
/// "rank-00003.safetensors"
std::string rank_file(std::size_t rank);

/// JSON; `job` is written for people. The last member is the CRC-32C of all bytes before it.
std::string manifest_to_json(const Manifest& manifest, const Job& job);

/// Throws DamagedCheckpoint "checkpoint WHERE: ..." for text that manifest_to_json can't have written, ModelError for a
/// newer format.
Manifest manifest_from_json(std::string_view text, const std::string& where);

/// Reads FOLDER/manifest.json.
Manifest read_manifest(const std::string& folder);

/// Reads the file of `rank` once. Throws DamagedCheckpoint unless size and checksum are the manifest's.
void verify_file(const std::string& folder, const Manifest& manifest, std::size_t rank);

/// Throws InputError naming the first fact in which the run and the checkpoint differ.
void check_facts(const Manifest& saved, const std::vector<std::pair<std::string, std::string>>& now,
                 const std::string& where);

}  // namespace vramfit
