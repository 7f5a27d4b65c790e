// What a run measured (vramfit/run@1), in the estimator's terms, so that `compare` can match the two.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "job/cluster/cluster.h"
#include "job/job.h"
#include "program/files/rank_memory.h"
#include "program/run_effects.h"

namespace vramfit {

class JsonObject;
class JsonWriter;

/// What `--allocator arena` did on one rank.
struct MeasuredArena {
  Bytes bytes;                   // of its block
  std::int64_t requests = 0;     // answered from it
  std::int64_t off_script = 0;   // that differed from the script, and went to the allocator that there is without it
  std::string first_off_script;  // the first of those; "" if there was none
};

/// One rank as measured: total = reserved (+ what lies outside the allocator, where that can be measured), upper_bound
/// = total.
struct MeasuredRank {
  RankEstimate memory;
  Bytes pinned;    // host memory pinned by PyTorch for copies to and from the GPU; 0 on CPU ranks
  Bytes host;      // at most in buffers of its program in other host memory: copies for checkpoints
  Bytes peak_rss;  // resident set of the process at its highest; 0: not measured
  std::optional<MeasuredArena> arena = {};  // none with other allocators
};

struct RunRecord {
  std::string model_name;
  std::int64_t parameters = 0;
  Job job;
  Cluster cluster;
  std::string device;                 // "cpu", "cuda", or "phantom": rehearsed, not measured
  std::optional<RunEffects> effects;  // none in older records
  std::string fingerprint;            // of the program that ran (program/readers/fingerprint.h); "" in older records
  std::string weights, data;          // where they came from: "random (seed 0)"
  std::vector<MeasuredRank> ranks;
  int worst = 0;                            // index of the rank with the largest total
  std::vector<double> loss;                 // of the global batch, one per step; none on phantoms
  std::vector<double> loss_scale;           // after each step; empty where the loss isn't scaled, and on phantoms
  std::vector<std::int64_t> skipped_steps;  // whose gradients overflowed: nothing was changed
  std::vector<double> step_seconds;         // phantom: of the host
  double tokens_per_second = 0;             // of the whole job, over the steps after the first
  bool out_of_memory = false;               // it ended with exit code 6; figures up to that point
  bool stopped_at_retries = false;          // and did because the allocator had to release cached memory and try again
  std::string message;                      // why it ended early, or ""
};

/// As a member "arena" of a rank; nothing is written without one.
void write_arena(JsonWriter& writer, const std::optional<MeasuredArena>& arena);
std::optional<MeasuredArena> read_arena(JsonObject& rank);

/// vramfit/run@1.
std::string run_to_json(const RunRecord& run);

/// Throws InputError naming `file` and the key.
RunRecord run_from_json(std::string_view text, const std::string& file);

}  // namespace vramfit
