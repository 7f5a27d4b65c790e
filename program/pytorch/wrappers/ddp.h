// DistributedDataParallel of torch 2.11 as far as memory goes, as transformers' Trainer sets it up: a whole model on
// each GPU, and buckets, which are another copy of the gradients, in which they are summed over ranks
// (torch/nn/parallel/distributed.py, torch/csrc/distributed/c10d/reducer.cpp).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "program/pytorch/modelings/modeling.h"
#include "program/pytorch/wrappers/whole_model.h"

namespace vramfit::eager {

/// The first bucket is small, so that reductions begin early (torch 2.11: _DEFAULT_FIRST_BUCKET_BYTES, bucket_cap_mb).
inline constexpr std::int64_t kFirstBucketBytes = std::int64_t{1} << 20, kBucketBytes = 25 * (std::int64_t{1} << 20);

/// Indices of consecutive sizes, a bucket ending with the one by which it reaches its limit: that of `limits` with its
/// number, or the last (reducer.cpp: compute_bucket_assignment_by_size).
std::vector<std::vector<std::size_t>> buckets_of(std::span<const std::int64_t> sizes,
                                                 std::span<const std::int64_t> limits);

class Ddp final : public WholeModel {
 public:
  Ddp(Torch& torch, const Graph& graph, const Job& job, const std::vector<Module>& modules, ModelBuffers buffers);

  void load() override;
  void begin_forward() override;
  void zero_gradients() override;
  void wrap_outputs(Tensor& loss, Tensor& logits) override;
  bool copies_outputs() const override { return finds_unused_; }
  void sync_gradients(bool is_last) override { is_last_ = is_last; }
  void finish_backward() override;

 private:
  struct Bucket {
    std::vector<std::size_t> parameters;  // of trained()
    std::size_t waits_for = 0;            // gradients
    Tensor sum;
    int all_reduce = -1;
  };

  void make_buckets(const std::vector<std::vector<std::size_t>>& parts, const std::vector<std::size_t>& order);
  void rebuild_buckets();
  void broadcast(std::span<const Tensor> tensors);
  void broadcast_weights();
  void broadcast_buffers();
  void take(int parameter);
  std::int64_t bytes_of(std::size_t parameter) const;

  bool finds_unused_;
  bool is_last_ = true, was_last_ = true;  // of its step: the micro-batch, and the one before it
  bool is_rebuilt_ = false;
  ModelBuffers buffers_;
  std::vector<Trained*> trained_;
  std::vector<std::size_t> ready_;  // in the order in which the first backward made their gradients
  std::vector<Bucket> buckets_;
  std::size_t next_ = 0;  // the bucket that is reduced next
  Tensor used_;           // which parameters were used
};

}  // namespace vramfit::eager
