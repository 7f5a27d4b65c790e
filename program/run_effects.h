// What flags of a run do to memory: an input of lowering besides the job.
#pragma once

namespace vramfit {

struct RunEffects {
  bool clip = true;             // gradients are clipped to a norm
  bool resumes = false;         // each rank reads its part of a checkpoint, so nothing is staged on rank 0
  bool saves = false;           // sharded checkpoints are written, from a copy on the host
  bool saves_full = false;      // the whole model is written by rank 0 at the end
  bool saves_adapters = false;  // likewise the adapters
};

inline bool saves_anything(const RunEffects& run) { return run.saves || run.saves_full || run.saves_adapters; }

}  // namespace vramfit
