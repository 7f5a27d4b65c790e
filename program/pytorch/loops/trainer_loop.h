// The loop of transformers' Trainer (5.23) with its defaults.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "program/pytorch/loops/accelerator_loop.h"

namespace vramfit::eager {

class TrainerLoop : public AcceleratorLoop {
 public:
  using AcceleratorLoop::AcceleratorLoop;

  void prepare() override;
  void micro_batch(Place place) override;
  void pass_over() override { ++next_; }
  void update() override;

 protected:
  /// Whether the batches have labels, which the Trainer counts.
  virtual bool counts_labels() const { return true; }
  /// compute_loss, by default the loss that transformers' models compute.
  virtual Tensor loss_of(const Inputs& inputs);

  /// How many labels count in all micro-batches of the step.
  const Tensor& items() const { return items_; }
  std::int64_t ranks() const { return checked_mul(parts_.job.mesh.shard, parts_.job.mesh.replicate); }
  /// accelerate's gather(x), of a vector; of a number it gathers a clone.
  Tensor gathered_from_ranks(const Tensor& x);
  Tensor cloned_number(const Tensor& x) { return number("aten::clone", {reads(x)}, x.dtype, "number of this rank"); }
  /// accelerate's gather(x).sum(), of one number of each rank; x is let go of where it was the caller's last.
  Tensor summed_over_ranks(Tensor x);

 private:
  void begin_step();
  Tensor counted_labels(const std::vector<Inputs>& batches);
  void look_at_loss();
  void schedule() override;
  bool has_rates_on_card() const { return parts_.job.optimizer_implementation == OptimizerImplementation::torchao; }
  std::vector<Tensor> rates(const char* what);

  std::vector<Tensor> rates_;
  std::vector<Inputs> batches_;
  std::size_t next_ = 0;
  Tensor items_, loss_, norm_;
};

}  // namespace vramfit::eager
