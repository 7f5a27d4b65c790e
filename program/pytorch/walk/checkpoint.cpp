#include "program/pytorch/walk/checkpoint.h"

#include <utility>

namespace vramfit::eager {

namespace {

/// Ends a recomputation once its last needed tensor exists. Unwinding releases the function's locals, as in Python.
struct StopRecomputation {};

/// Installs hook and cache until the end of the scope, however it ends.
class Installed {
 public:
  Installed(CheckpointState& state, SavedTensorHook* hook, SelectiveCache* cache)
      : state_(state), outer_(std::exchange(state, CheckpointState{hook, cache})) {}
  ~Installed() { state_ = outer_; }
  Installed(const Installed&) = delete;
  Installed& operator=(const Installed&) = delete;
  Installed(Installed&&) = delete;
  Installed& operator=(Installed&&) = delete;

 private:
  CheckpointState& state_;
  CheckpointState outer_;
};

}  // namespace

bool SelectiveCache::keeps(Kept kind) {
  if (kind == Kept::attention) return true;
  return ++matmuls_ % 2 == 1;
}

void SelectiveCache::start_recompute() {
  matmuls_ = 0;
  is_recomputing_ = true;
}

void SelectiveCache::put(Kept kind, std::vector<Tensor> outputs) {
  outputs_.at(static_cast<std::size_t>(kind)).push_back(std::move(outputs));
}

std::vector<Tensor> SelectiveCache::take(Kept kind) {
  auto& queue = outputs_.at(static_cast<std::size_t>(kind));
  std::vector<Tensor> outputs = std::move(queue.front());
  queue.pop_front();
  return outputs;
}

class Frame::Forward final : public SavedTensorHook {
 public:
  explicit Forward(std::shared_ptr<Frame> frame) : frame_(std::move(frame)) {}
  Saved pack(const Tensor& /*tensor*/) override {
    Saved saved{.tensor = {}, .recomputed = std::make_shared<Recomputed>(Recomputed{frame_, {}})};
    frame_->waiting_.push_back(saved.recomputed);
    return saved;
  }

 private:
  std::shared_ptr<Frame> frame_;
};

class Frame::Again final : public SavedTensorHook {
 public:
  explicit Again(Frame& frame) : frame_(frame) {}
  Saved pack(const Tensor& tensor) override {
    if (const auto wanted = frame_.waiting_.at(next_++).lock()) wanted->tensor = detached(tensor);
    if (frame_.form_.stops_early && next_ == frame_.waiting_.size()) throw StopRecomputation{};
    return {.tensor = detached(tensor), .recomputed = nullptr};
  }

 private:
  Frame& frame_;
  std::size_t next_ = 0;
};

Frame::Frame(CheckpointState& state, CheckpointBody body, Tensor input, CheckpointForm form)
    : state_(state), body_(std::move(body)), form_(form) {
  if (state.hook == nullptr) {
    input_.tensor = std::move(input);
    return;
  }
  state.hook->pack({});
  input_ = state.hook->pack(input);
}

Tensor Frame::forward(const Tensor& input) {
  Forward hook(shared_from_this());
  const Installed installed(state_, &hook, form_.is_selective ? &cache_ : nullptr);
  return body_(input);
}

void Frame::recompute() {
  is_recomputed_ = true;
  cache_.start_recompute();
  Again hook(*this);
  const Installed installed(state_, &hook, form_.is_selective ? &cache_ : nullptr);
  try {
    body_(input_.absent != nullptr ? input_.absent->bring() : input_.tensor);
  } catch (const StopRecomputation&) {  // everything needed exists
  }
}

Tensor Frame::unpack(Recomputed& wanted) {
  if (!is_recomputed_) recompute();
  return std::exchange(wanted.tensor, {});
}

Tensor checkpoint(CheckpointState& state, CheckpointBody body, const Tensor& input, CheckpointForm form) {
  return std::make_shared<Frame>(state, std::move(body), detached(input), form)->forward(input);
}

}  // namespace vramfit::eager
