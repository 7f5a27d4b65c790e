#include "program/pytorch/walk/activation_offload.h"

#include <utility>
#include <vector>

namespace vramfit::eager {

/// A tensor in host memory, whose place there is free once it has been brought back.
class ActivationOffload::Away final : public Absent {
 public:
  Away(ActivationOffload& offload, int number, Tensor on_host, bool wants_gradient)
      : offload_(offload), number_(number), on_host_(std::move(on_host)), wants_gradient_(wants_gradient) {}
  Tensor bring() override {
    const Tensor there = std::exchange(on_host_, {});
    Tensor tensor = offload_.bring(number_, there);
    tensor.wants_gradient = wants_gradient_;
    return tensor;
  }

 private:
  ActivationOffload& offload_;
  int number_;
  Tensor on_host_;
  bool wants_gradient_;
};

/// A tensor that stays on the card, held by the manager alone until it is asked for.
class ActivationOffload::Small final : public Absent {
 public:
  explicit Small(Tensor tensor) : tensor_(std::move(tensor)) {}
  Tensor bring() override { return std::exchange(tensor_, {}); }

 private:
  Tensor tensor_;
};

/// pack_tensor. What stays on the card gets a number, too. A tensor that left kStash numbers ago is released.
Saved ActivationOffload::pack(const Tensor& tensor) {
  const int number = ++last_;
  if (tensor.elements * dtype_bytes(tensor.dtype) < kLeast) {
    return {.tensor = {}, .recomputed = nullptr, .absent = std::make_shared<Small>(detached(tensor))};
  }
  Heap& heap = backend_.heap();
  while (!leaving_.empty() && leaving_.begin()->first <= number - kStash) {
    heap.wait_for_stream(Stream::compute, Stream::to_host);
    leaving_.erase(leaving_.begin());
  }
  heap.wait_for_stream(Stream::to_host, Stream::compute);
  Tensor on_host = heap.make_pinned(tensor.elements, tensor.dtype, Category::activations, "activation in host memory");
  heap.wait_for_stream(Stream::to_host, Stream::host);
  heap.copy_over_link(tensor, on_host, Stream::to_host);
  leaving_[number] = detached(tensor);
  return {.tensor = {},
          .recomputed = nullptr,
          .absent = std::make_shared<Away>(*this, number, std::move(on_host), tensor.wants_gradient)};
}

/// unpack_tensor_with_streams: what hasn't been released is used where it is. What a node asked for is released when
/// the next node that asks for something has run.
Tensor ActivationOffload::bring(int number, const Tensor& on_host) {
  Heap& heap = backend_.heap();
  std::vector<int> before;
  if (node_ != backend_.running) {
    node_ = backend_.running;
    for (const auto& [held, tensor] : brought_) before.push_back(held);
  }
  const auto known = leaving_.find(number);
  const bool is_brought = known == leaving_.end();
  Tensor tensor;
  if (is_brought) {
    if (std::exchange(is_left_, false)) heap.wait_for_stream(Stream::to_host, Stream::compute);
    tensor =
        heap.make(on_host.elements, on_host.dtype, Category::activations, "activation, brought back", Stream::to_host);
    heap.copy_over_link(on_host, tensor, Stream::to_host);
    heap.wait_for_stream(Stream::compute, Stream::to_host);
    brought_[number] = tensor;
  } else {
    tensor = known->second;
  }
  backend_.running->after.emplace_back([this, number, is_brought, before] {
    if (is_brought) leave_to_others(number);
    if (!leaving_.empty()) backend_.heap().wait_for_stream(Stream::compute, Stream::to_host);
    leaving_.clear();
    let_go(before);
  });
  return tensor;
}

void ActivationOffload::finish_backward() {
  std::vector<int> numbers;
  for (const auto& [number, tensor] : brought_) numbers.push_back(number);
  let_go(numbers);
  node_ = nullptr;
  backend_.heap().wait_for_stream(Stream::host, Stream::to_host);  // before the pool of pinned memory has places again
}

/// A tensor that a recomputing checkpoint keeps, too, is left to the checkpoint (record_stream).
void ActivationOffload::leave_to_others(int number) {
  const auto known = brought_.find(number);
  if (known == brought_.end() || !backend_.heap().is_shared(known->second)) return;
  brought_.erase(known);
  is_left_ = true;
}

void ActivationOffload::let_go(const std::vector<int>& numbers) {
  if (numbers.empty()) return;
  backend_.heap().wait_for_stream(Stream::to_host, Stream::compute);  // before its pool has them again
  for (const int number : numbers) brought_.erase(number);
}

}  // namespace vramfit::eager
