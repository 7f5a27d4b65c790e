// DeepSpeed's ZeRO-1 and ZeRO-2 (0.19) as transformers' Trainer sets them up: a whole model in bf16 or fp16 on each
// GPU, whose weights lie in one flat tensor for each of the optimizer's groups. Of that, each rank has a partition in
// fp32, with its states, and gathers what the others updated (deepspeed/runtime/zero/stage_1_and_2.py).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "program/pytorch/wrappers/whole_model.h"
#include "program/pytorch/zero/zero_numbers.h"

namespace vramfit::eager {

/// The partition of one of the optimizer's groups: `elements` from `begin` of the flat tensor.
struct Partition {
  std::int64_t begin = 0, elements = 0;
};

/// Of `sizes` that follow each other in a flat tensor, padded so that ranks' parts are equal and begin at 4 bytes.
Partition partition_of(const std::vector<std::int64_t>& sizes, std::int64_t ranks, std::int64_t rank);

/// Elements of the gradients that a rank keeps: of all parameters of which its partitions have a part, whole.
std::int64_t kept_elements(const std::vector<std::vector<std::int64_t>>& sizes_of_groups, std::int64_t ranks,
                           std::int64_t rank);

/// The rank that keeps most, which is the one whose memory counts; all else is the same on all ranks.
std::int64_t heaviest_rank(const std::vector<std::vector<std::int64_t>>& sizes_of_groups, std::int64_t ranks);

/// The rank whose partitions have the largest part of one parameter; of equal ones the last, as its gradients come
/// first in backward. With offload, what ranks need differs in what they make of their part of a gradient.
std::int64_t rank_with_largest_slice(const std::vector<std::vector<std::int64_t>>& sizes_of_groups, std::int64_t ranks);

class Zero final : public WholeModel, private ZeroNumbers {
 public:
  Zero(Torch& torch, const Graph& graph, const Job& job, const std::vector<Module>& modules);

  void load() override;
  void zero_gradients() override {}
  void sync_gradients(bool is_last) override { is_last_ = is_last; }
  void finish_backward() override;
  void step(bool clip, const std::function<void(Phase)>& enter, const std::function<void()>& optimizer) override;
  /// The one that is being updated, and its gradient.
  std::vector<OptimizerGroup> groups() override;
  Tensor gradient_of(const Trained& /*parameter*/) override { return groups_[updated_].gradient; }
  std::vector<Trained*> updated() override;
  bool updates_on_host() const override { return offloads_; }

 private:
  /// A parameter in its group's flat tensor.
  struct Place {
    Trained* parameter = nullptr;
    std::size_t group = 0;
    std::int64_t begin = 0;          // in the flat tensor
    Tensor kept = {};                // its gradient, if a part of it is the rank's
    Tensor accumulated = {};         // likewise, of the micro-batches so far
    Tensor on_host = {}, norm = {};  // with offload: the same there, and the norm of the rank's part
    std::int64_t end() const { return begin + parameter->elements; }
  };
  struct Group {
    std::string name;
    std::int64_t elements = 0;  // of the flat tensor, padded
    Partition partition;
    std::vector<std::size_t> places;
    Tensor flat;
    Trained master;              // the partition in fp32
    std::vector<Tensor> pieces;  // of the partition's gradient, averaged over ranks
    Tensor gradient;             // all of it, in fp32; with offload in host memory, for good
    Tensor narrow;               // with offload: the updated partition in the model's type, in host memory
  };
  /// A gradient that waits for its reduction.
  struct Ready {
    std::size_t place = 0;
    Tensor gradient;
  };
  /// Neighbours in a bucket that belong to one rank's partition.
  struct Slice {
    std::int64_t rank = 0, elements = 0;
  };

  Heap& heap() { return torch().heap(); }
  bool is_kept(const Place& place) const;
  void add_group(const std::vector<Trained*>& parameters, const Partition& partition);
  void flatten(Group& group);
  void make_gradients_once();
  void make_bucket();
  void take(int parameter);
  void wait_for_reductions() { heap().wait_for_stream(Stream::compute, Stream::reduce_scatter); }
  void make_ready(std::size_t place);
  void reduce_bucket();
  std::vector<Slice> slices() const;
  void reduce_slices(const Tensor& whole, const std::vector<Slice>& slices);
  void all_reduce(const std::vector<Tensor>& slices, const std::vector<std::int64_t>& ranks);
  void keep(Ready& ready);
  void add_up(Group& group);
  void cut(Group& group);

  // zero_offload.cpp
  void move_to_host(Group& group, const Tensor& copy);
  void make_host_gradients();
  void add_on_host(Place& place, const Tensor& gradient);
  void send_to_host(Ready& ready);
  void sum_on_card(Dtype dtype, const char* what);
  void update_on_host(Group& group, const std::function<void()>& optimizer);
  void step_on_host(const std::function<void(Phase)>& enter, const std::function<void()>& optimizer);

  // zero_step.cpp
  Tensor is_overflown(const Tensor& gradient);
  void check_overflow();
  Tensor norm_of(const Group& group);
  Tensor norm_of_all();
  void clip(const Tensor& gradient, const Tensor& norm);
  void update(Group& group, bool clips, const Tensor& norm, const std::function<void()>& optimizer);
  void gather_updated();

  int stage_;
  Dtype dtype_;  // of the model: bf16 or fp16
  std::int64_t ranks_, rank_ = 0, bucket_elements_;
  bool offloads_, pins_, accumulates_, overlaps_;
  bool is_last_ = true;           // of its step: the micro-batch
  std::int64_t micro_batch_ = 0;  // of its step
  std::vector<Group> groups_;
  std::vector<Place> places_;
  std::map<int, std::size_t> place_of_;  // in places_, by parameter
  std::size_t updated_ = 0;              // of groups_
  Tensor bucket_, other_bucket_, kept_;  // the other one: with overlap_comm, that is being reduced
  std::int64_t ready_elements_ = 0, kept_elements_ = 0, used_elements_ = 0;  // of kept_
  std::vector<Ready> ready_;
  std::vector<Tensor> held_;          // ZeRO-1's gradients that were too large for the bucket
  Tensor norm_;                       // of the latest step
  Tensor largest_, largest_on_host_;  // with offload: room for any gradient that comes back
};

}  // namespace vramfit::eager
