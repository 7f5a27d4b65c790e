#include "executor/observe/observed_collectives.h"

#include <ATen/core/Tensor.h>

#include <utility>

namespace vramfit {

namespace {

Bytes bytes_of(const std::vector<at::Tensor>& tensors) {
  Bytes bytes;
  for (const at::Tensor& tensor : tensors) bytes += Bytes{static_cast<std::int64_t>(tensor.nbytes())};
  return bytes;
}

class ObservedWork final : public PendingWork {
 public:
  ObservedWork(Pending inner, TrainObserver& observer, std::int64_t id)
      : inner_(std::move(inner)), observer_(observer), id_(id) {}
  void wait() override {
    inner_->wait();
    observer_.collective_ends(std::exchange(id_, 0));
  }

 private:
  Pending inner_;
  TrainObserver& observer_;
  std::int64_t id_;
};

class ObservedCollectives final : public Collectives {
 public:
  ObservedCollectives(std::unique_ptr<Collectives> inner, std::string group, TrainObserver& observer)
      : inner_(std::move(inner)), group_(std::move(group)), observer_(observer) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Pending all_gather(std::vector<at::Tensor> gathered) override {
    const std::int64_t id = begin("all-gather", gathered);
    return observed(inner_->all_gather(std::move(gathered)), id);
  }
  Pending reduce_scatter(std::vector<at::Tensor> pieces) override {
    const std::int64_t id = begin("reduce-scatter", pieces);
    return observed(inner_->reduce_scatter(std::move(pieces)), id);
  }
  Pending all_reduce(std::vector<at::Tensor> tensors) override {
    const std::int64_t id = begin("all-reduce", tensors);
    return observed(inner_->all_reduce(std::move(tensors)), id);
  }
  Pending all_to_all(std::vector<at::Tensor> sent, std::vector<at::Tensor> received) override {
    const std::int64_t id = begin("all-to-all", sent);
    return observed(inner_->all_to_all(std::move(sent), std::move(received)), id);
  }
  Pending scatter(std::vector<at::Tensor> slices, at::Tensor into) override {
    const std::int64_t id = begin("scatter", {into});
    return observed(inner_->scatter(std::move(slices), std::move(into)), id);
  }
  Pending broadcast(at::Tensor tensor) override {
    const std::int64_t id = begin("broadcast", {tensor});
    return observed(inner_->broadcast(std::move(tensor)), id);
  }
  void barrier() override { inner_->barrier(); }

 private:
  std::int64_t begin(const char* what, const std::vector<at::Tensor>& tensors) {
    return observer_.collective_begins(what, group_, bytes_of(tensors));
  }
  Pending observed(Pending work, std::int64_t id) {
    if (work) return std::make_unique<ObservedWork>(std::move(work), observer_, id);
    observer_.collective_ends(id);  // nothing is in flight
    return work;
  }

  std::unique_ptr<Collectives> inner_;
  std::string group_;
  TrainObserver& observer_;
};

}  // namespace

std::unique_ptr<Collectives> observed_collectives(std::unique_ptr<Collectives> inner, std::string group,
                                                  TrainObserver* observer) {
  if (observer == nullptr || inner->size() == 1) return inner;
  return std::make_unique<ObservedCollectives>(std::move(inner), std::move(group), *observer);
}

}  // namespace vramfit
