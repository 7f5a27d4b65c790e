#include <ATen/core/Tensor.h>

#include <stdexcept>

#include "executor/sharding/backends_torch.h"

namespace vramfit {

namespace {

class MeshCollectives final : public Collectives {
 public:
  MeshCollectives(Collectives& shard, Collectives& replicate, int rank)
      : shard_(shard), replicate_(replicate), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return shard_.size() * replicate_.size(); }
  Pending all_gather(std::vector<at::Tensor> /*gathered*/) override { refuse(); }
  Pending reduce_scatter(std::vector<at::Tensor> /*pieces*/) override { refuse(); }
  Pending all_reduce(std::vector<at::Tensor> tensors) override {
    if (const Pending sum = shard_.all_reduce(tensors)) sum->wait();
    return replicate_.all_reduce(std::move(tensors));
  }
  /// Who has passed the second one knows that each of its peers has passed the first.
  void barrier() override {
    shard_.barrier();
    replicate_.barrier();
  }

 private:
  [[noreturn]] static void refuse() { throw std::logic_error("parameters are gathered and reduced over one axis"); }

  Collectives& shard_;
  Collectives& replicate_;
  int rank_;
};

}  // namespace

Pending Collectives::all_to_all(std::vector<at::Tensor> /*sent*/, std::vector<at::Tensor> /*received*/) {
  throw std::logic_error("nothing is exchanged over this group");
}

Pending Collectives::scatter(std::vector<at::Tensor> /*slices*/, at::Tensor /*into*/) {
  throw std::logic_error("no weights are sent over this group");
}

Pending Collectives::broadcast(at::Tensor /*tensor*/) { throw std::logic_error("no weights are sent over this group"); }

std::unique_ptr<Collectives> mesh_collectives(Collectives& shard, Collectives& replicate, int rank) {
  return std::make_unique<MeshCollectives>(shard, replicate, rank);
}

}  // namespace vramfit
