// NCCL in place: a rank's input is its own slice of the output, so neither direction needs a staging buffer. All
// tensors of a unit go in one coalesced group.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>

#include <exception>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>

#include "executor/meter/meter.h"
#include "executor/place/failure_watch.h"
#include "executor/place/first_line.h"
#include "executor/run/out_of_memory.h"
#include "executor/sharding/backends_torch.h"

// Compilers may inline the base class's own getMemoryInfo on suspicion (executor/meter/cuda_arena.cpp).
#pragma weak cudaMemGetInfo

namespace vramfit {

namespace {

[[noreturn]] void fail_nccl(const GroupPlace& place, const char* what, const std::exception& error) {
  if (is_out_of_memory(error.what())) {
    const auto [free, total] = c10::cuda::CUDACachingAllocator::get()->getMemoryInfo(c10::cuda::current_device());
    throw OutOfMemory(fmt::format(
        "out of memory: {}: {}: NCCL could not allocate memory on the card, which has {} free of {}", place.name, what,
        format_size(Bytes{static_cast<std::int64_t>(free)}), format_size(Bytes{static_cast<std::int64_t>(total)})));
  }
  throw PeerLost(fmt::format("{}: {} failed: {}", place.name, what, first_line(error)));
}

class NcclWork final : public PendingWork {
 public:
  NcclWork(const GroupPlace& place, const char* what, c10::intrusive_ptr<c10d::Work> work,
           std::vector<at::Tensor> tensors)
      : place_(place), what_(what), work_(std::move(work)), tensors_(std::move(tensors)) {}
  /// Makes the current stream wait; the host goes on.
  void wait() override {
    const WaitingScope waiting;
    try {
      if (work_) work_->wait();
    } catch (const std::exception& error) {
      fail_nccl(place_, what_, error);
    }
    work_.reset();
    tensors_.clear();
  }

 private:
  const GroupPlace& place_;
  const char* what_;
  c10::intrusive_ptr<c10d::Work> work_;
  std::vector<at::Tensor> tensors_;
};

class NcclCollectives final : public Collectives {
 public:
  NcclCollectives(const c10::intrusive_ptr<c10d::Store>& store, const GroupPlace& place) : place_(place) {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = place.timeout;
    try {
      group_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, place.rank, place.size, options);
      // Now, not in the first collective: it takes its memory before anything is allocated, as the prediction has it.
      const WaitingScope waiting;
      group_->eagerConnectSingleDevice(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(place.local_device)));
    } catch (const std::exception& error) {
      fail_nccl(place_, "connecting", error);
    }
  }

  NcclCollectives(const NcclCollectives&) = delete;
  NcclCollectives& operator=(const NcclCollectives&) = delete;
  /// LibTorch wants a group ended by name; after an error nobody may be there to end it with.
  ~NcclCollectives() override {
    if (group_ && std::uncaught_exceptions() == 0) group_->shutdown();
  }

  int rank() const override { return place_.rank; }
  int size() const override { return place_.size; }

  Pending all_gather(std::vector<at::Tensor> gathered) override {
    return start("gathering parameters", std::move(gathered), [&](std::vector<at::Tensor>& whole) {
      std::vector<at::Tensor> own = own_slices(whole);
      return group_->allgather_into_tensor_coalesced(whole, own);
    });
  }

  Pending reduce_scatter(std::vector<at::Tensor> pieces) override {
    return start("reducing gradients", std::move(pieces), [&](std::vector<at::Tensor>& whole) {
      std::vector<at::Tensor> own = own_slices(whole);
      c10d::ReduceScatterOptions options;
      options.reduceOp = c10d::ReduceOp::SUM;
      return group_->reduce_scatter_tensor_coalesced(own, whole, options);
    });
  }

  Pending all_reduce(std::vector<at::Tensor> tensors) override {
    return start("summing over ranks", std::move(tensors),
                 [&](std::vector<at::Tensor>& whole) { return group_->allreduce_coalesced(whole); });
  }

  Pending all_to_all(std::vector<at::Tensor> sent, std::vector<at::Tensor> received) override {
    const std::size_t count = sent.size();
    sent.insert(sent.end(), received.begin(), received.end());
    return start("exchanging gradients", std::move(sent), [&](std::vector<at::Tensor>& tensors) {
      group_->startCoalescing();
      std::vector<std::int64_t> equal;
      for (std::size_t i = 0; i < count; ++i) group_->alltoall_base(tensors[count + i], tensors[i], equal, equal);
      return group_->endCoalescing();
    });
  }

  Pending scatter(std::vector<at::Tensor> slices, at::Tensor into) override {
    slices.push_back(std::move(into));
    return start("sending rows", std::move(slices), [&](std::vector<at::Tensor>& tensors) {
      std::vector<at::Tensor> output{tensors.back().view(at::kByte)};
      std::vector<std::vector<at::Tensor>> inputs(place_.rank == 0 ? 1 : 0);
      for (std::size_t i = 0; i + 1 < tensors.size(); ++i) inputs.front().push_back(tensors[i].view(at::kByte));
      return group_->scatter(output, inputs);
    });
  }

  Pending broadcast(at::Tensor tensor) override {
    return start("sending rows", {std::move(tensor)}, [&](std::vector<at::Tensor>& tensors) {
      std::vector<at::Tensor> one{tensors.front().view(at::kByte)};
      return group_->broadcast(one);
    });
  }

  void barrier() override {
    const WaitingScope waiting;
    c10d::BarrierOptions options;
    options.device_ids = {place_.local_device};
    try {
      group_->barrier(options)->wait();
    } catch (const std::exception& error) {
      fail_nccl(place_, "waiting for all ranks", error);
    }
  }

 private:
  std::vector<at::Tensor> own_slices(const std::vector<at::Tensor>& tensors) const {
    std::vector<at::Tensor> slices;
    for (const at::Tensor& tensor : tensors) {
      const std::int64_t elements = tensor.numel() / place_.size;
      slices.push_back(tensor.narrow(0, place_.rank * elements, elements));
    }
    return slices;
  }

  template <typename Start>
  Pending start(const char* what, std::vector<at::Tensor> tensors, const Start& call) {
    c10::intrusive_ptr<c10d::Work> work;
    try {
      work = call(tensors);
    } catch (const std::exception& error) {
      fail_nccl(place_, what, error);
    }
    return std::make_unique<NcclWork>(place_, what, std::move(work), std::move(tensors));
  }

  GroupPlace place_;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group_;
};

}  // namespace

std::unique_ptr<Collectives> nccl_collectives(const c10::intrusive_ptr<c10d::Store>& store, const GroupPlace& place) {
  return std::make_unique<NcclCollectives>(store, place);
}

}  // namespace vramfit
