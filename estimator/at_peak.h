// Which tensors are in memory when a job's requests peak: by module and by name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "estimator/estimate.h"

namespace vramfit {

/// Tensors whose names differ only in numbers of layers.
struct HeldTensors {
  std::string name;  // "layers.*.mlp.glu", as "vramfit program" calls them
  Category category{};
  Bytes bytes;  // of all, as requested
  std::int64_t count = 0;
};

/// A module with all that is below it.
struct HeldModule {
  std::string name;  // its last part: "self_attn"; layers are one: "layers.*"
  int depth = 0;     // 0: top
  Bytes bytes;
  std::int64_t tensors = 0;
};

struct AtPeak {
  Phase phase{};
  int step = 0;     // 0: load
  Bytes requested;  // of all that lives
  std::int64_t tensors = 0;
  std::vector<HeldModule> modules;   // as a tree, larger ones first
  std::vector<HeldTensors> largest;  // most bytes first
};

/// Of an estimate with ranks, on rank 0. The moment is that at which allocations, each a multiple of 512 bytes on a
/// card, first sum to the most: under expandable segments that of the estimate's breakdown.
AtPeak at_peak(const ModelSpec& spec, const Estimate& estimate, const RunEffects& run);

/// The same of a ledger.
AtPeak at_peak(const Ledger& ledger, Bytes granule);

/// The module that a label is of: "layers.*.self_attn.q_proj" of "adamw: exp_avg of
/// model.layers.3.self_attn.q_proj.weight".
std::string module_in(std::string_view label);

}  // namespace vramfit
