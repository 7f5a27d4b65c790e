// Gloo's own all-gather and reduce-scatter copy their tensors, unseen by the estimate. Broadcasts and reductions of
// slices, one a root, work in place and allocate nothing (measured on LibTorch 2.11).
#include <fmt/format.h>

#include <memory>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "executor/place/failure_watch.h"
#include "executor/place/first_line.h"
#include "executor/sharding/backends_torch.h"
#include "executor/training/tensor_torch.h"

namespace vramfit {

namespace {

using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;

[[noreturn]] void fail(const GroupPlace& place, const char* what, const std::exception& error) {
  throw PeerLost(
      fmt::format("{}: {} failed, most likely because another rank ended: {}", place.name, what, first_line(error)));
}

/// The same memory without a share in it. Gloo's threads let go of their tensors some time after wait() has returned;
/// with a share they would decide when the memory is freed.
at::Tensor borrowed(const at::Tensor& tensor, std::int64_t first, std::int64_t elements) {
  return tensor_over(tensor.narrow(0, first, elements).mutable_data_ptr(), elements, tensor.scalar_type());
}

at::Tensor borrowed_bytes(const at::Tensor& tensor) {
  return tensor_over(tensor.mutable_data_ptr(), static_cast<std::int64_t>(tensor.nbytes()), at::kByte);
}

class GlooWork final : public PendingWork {
 public:
  GlooWork(const GroupPlace& place, const char* what, Works works, std::vector<at::Tensor> tensors)
      : place_(place),
        what_(what),
        works_(std::move(works)),
        tensors_(std::make_unique<std::vector<at::Tensor>>(std::move(tensors))) {}
  ~GlooWork() override {
    // Given up in flight (another rank failed): Gloo may still write, so the memory must outlive the process.
    if (!works_.empty()) static_cast<void>(tensors_.release());
  }
  GlooWork(const GlooWork&) = delete;
  GlooWork& operator=(const GlooWork&) = delete;
  GlooWork(GlooWork&&) = delete;
  GlooWork& operator=(GlooWork&&) = delete;
  void wait() override {
    const WaitingScope waiting;
    try {
      for (auto& work : works_) work->wait();
    } catch (const std::exception& error) {
      fail(place_, what_, error);
    }
    works_.clear();
    tensors_.reset();
  }

 private:
  const GroupPlace& place_;
  const char* what_;
  Works works_;
  std::unique_ptr<std::vector<at::Tensor>> tensors_;  // kept while in flight
};

class GlooCollectives final : public Collectives {
 public:
  GlooCollectives(const c10::intrusive_ptr<c10d::Store>& store, const GroupPlace& place) : place_(place) {
    auto options = c10d::ProcessGroupGloo::Options::create(place.timeout);
    options->threads = 2;
    try {
      for (const std::string& name : place.interfaces) {
        options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name));
      }
      if (place.interfaces.empty()) {
        options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(place.address));
      }
      group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store, place.rank, place.size, options);
    } catch (const std::exception& error) {
      fail(place_, "connecting", error);
    }
  }

  int rank() const override { return place_.rank; }
  int size() const override { return place_.size; }

  Pending all_gather(std::vector<at::Tensor> gathered) override {
    return for_each_slice("gathering parameters", std::move(gathered), [&](std::vector<at::Tensor>& slice, int root) {
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return group_->broadcast(slice, options);
    });
  }

  Pending reduce_scatter(std::vector<at::Tensor> pieces) override {
    return for_each_slice("reducing gradients", std::move(pieces), [&](std::vector<at::Tensor>& slice, int root) {
      c10d::ReduceOptions options;
      options.reduceOp = c10d::ReduceOp::SUM;
      options.rootRank = root;
      return group_->reduce(slice, options);
    });
  }

  Pending all_reduce(std::vector<at::Tensor> tensors) override {
    Works works;
    try {
      for (const at::Tensor& tensor : tensors) {
        std::vector<at::Tensor> one{borrowed(tensor, 0, tensor.numel())};
        works.push_back(group_->allreduce(one));
      }
    } catch (const std::exception& error) {
      fail(place_, "summing over ranks", error);
    }
    return std::make_unique<GlooWork>(place_, "summing over ranks", std::move(works), std::move(tensors));
  }

  /// Slice by slice, as Gloo's own exchange of a tensor copies it.
  Pending all_to_all(std::vector<at::Tensor> sent, std::vector<at::Tensor> received) override {
    constexpr int kFirstTag = 2;
    constexpr const char* kWhat = "exchanging gradients";
    Works works;
    try {
      for (std::size_t i = 0; i < sent.size(); ++i) {
        const int tag = kFirstTag + static_cast<int>(i);
        const std::int64_t each = sent[i].numel() / place_.size;
        received[i].narrow(0, place_.rank * each, each).copy_(sent[i].narrow(0, place_.rank * each, each));
        for (int peer = 0; peer < place_.size; ++peer) {
          if (peer == place_.rank) continue;
          std::vector<at::Tensor> to{borrowed(sent[i], peer * each, each)},
              from{borrowed(received[i], peer * each, each)};
          works.push_back(group_->send(to, peer, tag));
          works.push_back(group_->recv(from, peer, tag));
        }
      }
    } catch (const std::exception& error) {
      fail(place_, kWhat, error);
    }
    sent.insert(sent.end(), received.begin(), received.end());
    return std::make_unique<GlooWork>(place_, kWhat, std::move(works), std::move(sent));
  }

  /// Gloo's own scatter flattens the slices into a copy, unseen by the estimate.
  Pending scatter(std::vector<at::Tensor> slices, at::Tensor into) override {
    constexpr int kTag = 1;
    Works works;
    try {
      if (place_.rank == 0) into.copy_(slices.front());
      for (int peer = 1; peer < static_cast<int>(slices.size()); ++peer) {
        std::vector<at::Tensor> one{borrowed_bytes(slices[static_cast<std::size_t>(peer)])};
        works.push_back(group_->send(one, peer, kTag));
      }
      std::vector<at::Tensor> own{borrowed_bytes(into)};
      if (place_.rank != 0) works.push_back(group_->recv(own, 0, kTag));
    } catch (const std::exception& error) {
      fail(place_, "sending rows", error);
    }
    slices.push_back(std::move(into));
    return std::make_unique<GlooWork>(place_, "sending rows", std::move(works), std::move(slices));
  }

  Pending broadcast(at::Tensor tensor) override {
    return send_rows({}, tensor, [&] {
      std::vector<at::Tensor> one{borrowed_bytes(tensor)};
      return group_->broadcast(one);
    });
  }

  void barrier() override {
    const WaitingScope waiting;
    try {
      group_->barrier()->wait();
    } catch (const std::exception& error) {
      fail(place_, "waiting for all ranks", error);
    }
  }

 private:
  template <typename Start>
  Pending for_each_slice(const char* what, std::vector<at::Tensor> tensors, const Start& start) {
    Works works;
    try {
      for (const at::Tensor& tensor : tensors) {
        const std::int64_t elements = tensor.numel() / place_.size;
        for (int root = 0; root < place_.size; ++root) {
          std::vector<at::Tensor> slice{borrowed(tensor, root * elements, elements)};
          works.push_back(start(slice, root));
        }
      }
    } catch (const std::exception& error) {
      fail(place_, what, error);
    }
    return std::make_unique<GlooWork>(place_, what, std::move(works), std::move(tensors));
  }

  template <typename Start>
  Pending send_rows(std::vector<at::Tensor> tensors, const at::Tensor& into, const Start& start) {
    constexpr const char* kWhat = "sending rows";
    Works works;
    try {
      works.push_back(start());
    } catch (const std::exception& error) {
      fail(place_, kWhat, error);
    }
    tensors.push_back(into);
    return std::make_unique<GlooWork>(place_, kWhat, std::move(works), std::move(tensors));
  }

  GroupPlace place_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

}  // namespace

std::unique_ptr<Collectives> gloo_collectives(const c10::intrusive_ptr<c10d::Store>& store, const GroupPlace& place) {
  return std::make_unique<GlooCollectives>(store, place);
}

}  // namespace vramfit
