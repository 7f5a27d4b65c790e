// Activation checkpointing as torch.utils.checkpoint does it without re-entering autograd, and its selective form.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <vector>

#include "program/pytorch/walk/autograd.h"

namespace vramfit::eager {

enum class Kept { matmul, attention };

/// Results of ops that selective checkpointing keeps: attention, and every second matrix product (torchtitan's policy).
/// The policy counts products separately in forward and recompute, so both keep the same ones.
class SelectiveCache {
 public:
  /// Whether the op that runs now is one that is kept.
  bool keeps(Kept kind);
  bool is_recomputing() const { return is_recomputing_; }
  void start_recompute();
  void put(Kept kind, std::vector<Tensor> outputs);
  std::vector<Tensor> take(Kept kind);

 private:
  std::array<std::deque<std::vector<Tensor>>, 2> outputs_;
  int matmuls_ = 0;
  bool is_recomputing_ = false;
};

/// The parts of the library's state that a checkpoint changes while its function runs.
struct CheckpointState {
  SavedTensorHook* hook = nullptr;
  SelectiveCache* cache = nullptr;
};

struct CheckpointForm {
  bool is_selective = false;
  bool stops_early = true;  // early_stop of torch.utils.checkpoint
};

using CheckpointBody = std::function<Tensor(const Tensor&)>;

/// One checkpointed call: its input, which hooks around it see as what is saved behind a tensor of no elements, its
/// function, and which tensors it will have to recompute.
class Frame : public std::enable_shared_from_this<Frame> {
 public:
  Frame(CheckpointState& state, CheckpointBody body, Tensor input, CheckpointForm form);
  Tensor forward(const Tensor& input);
  /// Runs the function again on first use, up to the last tensor that is waited for, if it stops early.
  Tensor unpack(Recomputed& wanted);

 private:
  class Forward;
  class Again;
  void recompute();

  CheckpointState& state_;
  CheckpointBody body_;
  Saved input_;
  CheckpointForm form_;
  bool is_recomputed_ = false;
  SelectiveCache cache_;
  std::vector<std::weak_ptr<Recomputed>> waiting_;
};

/// Runs `body(input)` so that only the input (and what a selective form keeps) is held until backward.
Tensor checkpoint(CheckpointState& state, CheckpointBody body, const Tensor& input, CheckpointForm form);

}  // namespace vramfit::eager
