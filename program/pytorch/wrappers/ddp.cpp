#include "program/pytorch/wrappers/ddp.h"

#include <algorithm>
#include <array>
#include <deque>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace vramfit::eager {

namespace {

constexpr std::int64_t kBroadcastBytes = 250 * (std::int64_t{1} << 20);  // distributed.py: broadcast_bucket_size
constexpr std::size_t kBroadcastsInFlight = 2;                           // c10d/comm.cpp

std::int64_t size_of(const Tensor& tensor) { return (tensor.elements * dtype_bytes(tensor.dtype)).n; }

}  // namespace

std::vector<std::vector<std::size_t>> buckets_of(std::span<const std::int64_t> sizes,
                                                 std::span<const std::int64_t> limits) {
  std::vector<std::vector<std::size_t>> buckets;
  std::vector<std::size_t> open;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    open.push_back(i);
    bytes = checked_add(bytes, sizes[i]);
    if (bytes < limits[std::min(buckets.size(), limits.size() - 1)]) continue;
    buckets.push_back(std::exchange(open, {}));
    bytes = 0;
  }
  if (!open.empty()) buckets.push_back(std::move(open));
  return buckets;
}

Ddp::Ddp(Torch& torch, const Graph& graph, const Job& job, const std::vector<Module>& modules, ModelBuffers buffers)
    : WholeModel(torch, graph, job, modules),
      finds_unused_(finds_unused_parameters(job)),
      buffers_(std::move(buffers)) {
  torch.on_gradient([this](int parameter) { take(parameter); });
}

std::int64_t Ddp::bytes_of(std::size_t parameter) const { return size_of(trained_[parameter]->value); }

/// In forward's order, and then the other way round; all in one bucket where the order of the first backward is taken
/// later.
void Ddp::load() {
  WholeModel::load();
  trained_ = trained();
  broadcast_weights();
  std::vector<std::int64_t> sizes;
  for (std::size_t p = 0; p < trained_.size(); ++p) sizes.push_back(bytes_of(p));
  std::vector<std::size_t> order(trained_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<std::vector<std::size_t>> parts{order};
  if (finds_unused_) parts = buckets_of(sizes, std::array{kFirstBucketBytes, kBucketBytes});
  std::ranges::reverse(parts);
  make_buckets(parts, order);
  if (!finds_unused_) return;
  const Scope scope(torch().heap(), "ddp");
  used_ = torch().heap().make(static_cast<std::int64_t>(trained_.size()), Dtype::i32, Category::communication,
                              "which parameters are used");
  torch().heap().run("aten::zeros", {writes(used_)});
}

void Ddp::make_buckets(const std::vector<std::vector<std::size_t>>& parts, const std::vector<std::size_t>& order) {
  const Scope scope(torch().heap(), "ddp");
  buckets_.clear();
  for (const std::vector<std::size_t>& part : parts) {
    Bucket bucket;
    std::int64_t elements = 0;
    for (const std::size_t place : part) {
      bucket.parameters.push_back(order[place]);
      elements = checked_add(elements, trained_[order[place]]->elements);
    }
    bucket.waits_for = part.size();
    bucket.sum = torch().heap().make(elements, trained_[order[part.front()]]->value.dtype, Category::communication,
                                     "bucket of gradients");
    buckets_.push_back(std::move(bucket));
  }
}

/// Ranks agree on the order in which gradients came (reducer.cpp: sync_bucket_indices).
void Ddp::rebuild_buckets() {
  is_rebuilt_ = true;
  std::vector<std::int64_t> sizes;
  for (const std::size_t p : ready_) sizes.push_back(bytes_of(p));
  const auto parts = buckets_of(sizes, std::array{kFirstBucketBytes, kBucketBytes});
  {
    const Scope scope(torch().heap(), "ddp");
    const auto numbers = [&](std::size_t count, const char* what) {
      Tensor made = torch().heap().make(static_cast<std::int64_t>(count), Dtype::i32, Category::communication, what);
      torch().heap().run("c10d::broadcast", {writes(made)});
      return made;
    };
    const Tensor indices = numbers(ready_.size() + 1, "order of gradients");
    const Tensor sizes_of_buckets = numbers(parts.size(), "sizes of buckets");
  }
  make_buckets(parts, ready_);
}

/// _broadcast_coalesced: copied into one tensor first, unless there is only one.
void Ddp::broadcast(std::span<const Tensor> tensors) {
  Heap& heap = torch().heap();
  const Scope scope(heap, "ddp");
  std::vector<std::int64_t> sizes;
  for (const Tensor& tensor : tensors) sizes.push_back(size_of(tensor));
  std::deque<Tensor> in_flight;
  for (const std::vector<std::size_t>& part : buckets_of(sizes, std::array{kBroadcastBytes})) {
    if (in_flight.size() == kBroadcastsInFlight) in_flight.pop_front();
    Tensor flat;
    if (part.size() > 1) {
      std::int64_t elements = 0;
      Accesses accesses;
      for (const std::size_t i : part) {
        elements = checked_add(elements, tensors[i].elements);
        accesses.push_back(reads(tensors[i]));
      }
      flat = heap.make(elements, tensors[part.front()].dtype, Category::communication, "flat broadcast");
      accesses.push_back(writes(flat));
      heap.run("aten::cat", accesses);
    }
    in_flight.push_back(std::move(flat));
  }
  while (!in_flight.empty()) in_flight.pop_front();
}

/// Of each dtype apart. Quantized weights and buffers are left out, which need little beside them.
void Ddp::broadcast_weights() {
  std::vector<Tensor> narrow, wide;
  for (const Trained& p : parameters()) {
    if (!p.value.storage) continue;
    (p.value.dtype == Dtype::f32 ? wide : narrow).push_back(p.value);
  }
  for (const std::vector<Tensor>& tensors : {narrow, wide}) broadcast(tensors);
}

void Ddp::broadcast_buffers() {
  const std::vector<std::int64_t>& elements = buffers_.elements;
  if (elements.size() < 2) return;
  const Scope scope(torch().heap(), "ddp");
  const Tensor flat = torch().heap().make(std::accumulate(elements.begin(), elements.end(), std::int64_t{0}),
                                          buffers_.dtype, Category::communication, "flat buffers");
  torch().heap().run("aten::cat", {writes(flat)});
}

/// After an update: not between the micro-batches of a step (distributed.py: require_forward_param_sync).
void Ddp::begin_forward() {
  if (was_last_) broadcast_buffers();
  was_last_ = is_last_;
}

/// The buckets are rebuilt where the second step's forward begins. They are here at the end of the first step, since a
/// program has a first step and one that stands for all later ones.
void Ddp::zero_gradients() {
  WholeModel::zero_gradients();
  if (!finds_unused_ && !is_rebuilt_ && !ready_.empty()) rebuild_buckets();
}

/// _DDPSink
void Ddp::wrap_outputs(Tensor& loss, Tensor& logits) {
  if (!finds_unused_) return;
  Tensor own_loss = torch().clone(loss);
  Tensor own_logits;
  if (logits.storage) own_logits = torch().clone(logits);
  loss = std::move(own_loss);
  logits = {};
}

/// A gradient is there. Buckets that have all of theirs are reduced, in their order. Each gradient is copied by itself
/// as soon as it is there; here all are, when the last one is.
void Ddp::take(int parameter) {
  if (!is_last_) return;
  Heap& heap = torch().heap();
  const auto is_it = [&](const Trained* p) { return p->parameter == parameter; };
  const auto number = static_cast<std::size_t>(std::ranges::find_if(trained_, is_it) - trained_.begin());
  if (!is_rebuilt_ && !finds_unused_) ready_.push_back(number);
  const auto has = [&](const Bucket& bucket) {
    return std::ranges::find(bucket.parameters, number) != bucket.parameters.end();
  };
  Bucket& bucket = *std::ranges::find_if(buckets_, has);
  if (--bucket.waits_for == 0) {
    Accesses accesses{writes(bucket.sum)};
    for (const std::size_t p : bucket.parameters) {
      accesses.push_back(reads(torch().gradient(trained_[p]->parameter)));
    }
    heap.run("ddp::copy_gradients_to_bucket", accesses);
  }
  for (; next_ < buckets_.size() && buckets_[next_].waits_for == 0; ++next_) {
    buckets_[next_].all_reduce = heap.start(program::Collective::all_reduce, program::Axis::replicate,
                                            {changes(buckets_[next_].sum)}, Stream::compute);
  }
}

void Ddp::finish_backward() {
  if (!is_last_) return;
  Heap& heap = torch().heap();
  for (Bucket& bucket : buckets_) {
    heap.wait(bucket.all_reduce, Stream::compute);
    Accesses accesses{reads(bucket.sum)};
    for (const std::size_t p : bucket.parameters) {
      accesses.push_back(writes(torch().gradient(trained_[p]->parameter)));
    }
    heap.run("ddp::copy_bucket_to_gradients", accesses);
    bucket.waits_for = bucket.parameters.size();
  }
  next_ = 0;
}

}  // namespace vramfit::eager
