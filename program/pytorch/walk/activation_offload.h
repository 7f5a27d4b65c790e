// What torchtune's enable_activation_offloading does with tensors that are saved for backward: they go to pinned host
// memory on a stream of their own, and come back when backward asks for them (torchtune 0.6.1,
// training/_activation_offloading.py: OffloadActivations).
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "program/pytorch/walk/autograd.h"

namespace vramfit::eager {

class ActivationOffload final : public SavedTensorHook {
 public:
  explicit ActivationOffload(Backend& backend) : backend_(backend) {}

  /// Anything but what is smaller than kLeast, which stays where it is.
  Saved pack(const Tensor& tensor) override;
  /// Called when a backward ends: lets go of what was brought back last.
  void finish_backward();

 private:
  class Away;
  class Small;
  Tensor bring(int number, const Tensor& on_host);
  void let_go(const std::vector<int>& numbers);
  void leave_to_others(int number);

  static constexpr Bytes kLeast{1024};
  static constexpr int kStash = 5;  // max_fwd_stash_size, in tensors that were packed

  Backend& backend_;
  int last_ = 0;
  std::map<int, Tensor> leaving_;  // by number: those that their copies may still read
  std::map<int, Tensor> brought_;  // those that are held until another node has used what it asked for
  const Node* node_ = nullptr;     // the last one that asked
  bool is_left_ = false;           // one of them was left to others, who return it to the pool of the copies' stream
};

}  // namespace vramfit::eager
