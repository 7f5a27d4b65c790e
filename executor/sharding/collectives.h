// What sharded training needs from a process group. One implementation per library; tests run ranks as threads.
#pragma once

#include <functional>
#include <memory>
#include <vector>

namespace at {
class Tensor;
}

namespace vramfit {

/// A collective in flight. wait() before touching or releasing its tensors; it throws FaultError naming the rank or
/// peer.
struct PendingWork {
  virtual ~PendingWork() = default;
  virtual void wait() = 0;
};
using Pending = std::unique_ptr<PendingWork>;

/// Over the ranks of one axis of the mesh. No call allocates tensor memory on CPU ranks.
struct Collectives {
  virtual ~Collectives() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Each tensor is `size()` equal slices rank by rank, own slice filled in; afterwards all are, in place.
  virtual Pending all_gather(std::vector<at::Tensor> gathered) = 0;
  /// Each tensor is `size()` equal slices; afterwards the own slice of each holds the sum over ranks, in place.
  virtual Pending reduce_scatter(std::vector<at::Tensor> pieces) = 0;
  /// Sum over ranks, in place.
  virtual Pending all_reduce(std::vector<at::Tensor> tensors) = 0;
  /// Each tensor is `size()` equal slices, of which rank r receives the r-th of every rank, rank by rank.
  /// std::logic_error from groups that nothing is exchanged over.
  virtual Pending all_to_all(std::vector<at::Tensor> sent, std::vector<at::Tensor> received);
  /// Rank 0 gives slices of equal size, one a rank; `into` of each rank receives its own. Others give none. Any
  /// element type, as bytes. Here and below: std::logic_error from groups that no weights are sent over.
  virtual Pending scatter(std::vector<at::Tensor> slices, at::Tensor into);
  /// All ranks receive what rank 0 holds, in place; also as bytes.
  virtual Pending broadcast(at::Tensor tensor);
  virtual void barrier() = 0;
};

}  // namespace vramfit
