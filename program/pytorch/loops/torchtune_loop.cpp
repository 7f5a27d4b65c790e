// The loops of torchtune's recipes full_finetune_single_device and full_finetune_distributed (0.6.1), with
// CEWithChunkedOutputLoss, and with optimizer_in_bwd.
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "program/pytorch/loops/loop.h"
#include "program/pytorch/optimizers/optimizers.h"
#include "program/pytorch/walk/activation_offload.h"
#include "program/stages/offload.h"
#include "program/stages/optimizer_in_backward.h"

namespace vramfit::eager {

namespace {

/// A parameter of a wrapper's, as an optimizer of its own sees it.
class Alone final : public Wrapper {
 public:
  Alone(Wrapper& all, Trained& one) : all_(all), one_(one) {}

  void load() override {}
  void zero_gradients() override {}
  std::vector<Trained*> trained() override { return {&one_}; }
  std::vector<Tensor> gradients() override { return {all_.gradient_of(one_)}; }
  Tensor gradient_of(const Trained& p) override { return all_.gradient_of(p); }

 private:
  Wrapper& all_;
  Trained& one_;
};

class TorchtuneLoop final : public Loop {
 public:
  using Loop::Loop;

  /// register_optim_in_bwd_hooks, and ignore_labels_cache
  void prepare() override {
    require_optimizer_in_backward(parts_.job, parts_.clip);
    if (updates_in_backward()) {
      parts_.wrapper.update_in_backward([this](Trained& p) {
        Alone alone(parts_.wrapper, p);
        update_with(alone);
      });
    }
    const Scope scope(heap(), "loss");
    ignored_ = heap().make(parts_.job.micro_batch, Dtype::i64, Category::workspace, "ignored labels");
    heap().run("aten::full", {writes(ignored_)});
  }

  void micro_batch(Place place) override {
    parts_.enter(Phase::forward);
    ids_ = {};
    heap().values = Category::activations;
    ids_ = tokens("ids");
    Tensor labels = tokens("labels");
    count_labels(labels, place.is_first);
    if (is_sharded()) labels_ = {};
    std::vector<Tensor> logits = output_of(normed());
    parts_.enter(Phase::loss);
    {
      const Scope scope(heap(), "loss");
      Tensor shifted =
          numbers("aten::cat", {reads(labels), reads(ignored_)}, labels.elements, Dtype::i64, "shifted labels");
      labels = {};
      Tensor loss = mean_of(logits, shifted);
      if (!is_sharded()) {  // _loss_step, which only the recipe for one GPU has, returns and lets go of them
        logits.clear();
        shifted = {};
      }
      name(loss_, torch().multiply_by_constant(loss, counted_));
      loss = {};
      logits.clear();
      if (is_sharded()) labels_ = std::move(shifted);
      add_up(running_, reads(loss_), Dtype::f32, "running loss");
      if (is_sharded() && updates_in_backward()) {
        add_up_over_ranks();
        name(loss_, torch().multiply_by_constant(loss_, share("scale of the loss")));
      }
    }
    parts_.enter(Phase::backward);
    torch().backward(loss_, [this] {
      parts_.wrapper.finish_backward();  // whose callback was queued first
      if (offload_) offload_->finish_backward();
    });
    loss_ = detached(loss_);
  }

  void update() override {
    Tensor norm;
    if (!updates_in_backward()) {
      parts_.enter(Phase::clip);
      scale_gradients();
      if (parts_.clip) norm = clip_gradients(torch(), parts_.wrapper);
      step_optimizer();
      parts_.wrapper.zero_gradients();
    }
    const Scope scope(heap(), "log");
    Tensor loss = share("loss");
    Tensor rate = numbers("aten::div", {reads(tokens_)}, 1, Dtype::f32, "tokens per second");
    name(logged_norm_, std::move(norm));
    name(logged_loss_, std::move(loss));
    name(logged_rate_, std::move(rate));
    running_ = tokens_ = {};
  }

 private:
  /// The model but for its output layer, for whose tensors there is no hook (get_act_offloading_ctx_manager).
  Tensor normed() {
    if (!offload_of(parts_.job).activations) return forward(ids_);
    if (!offload_) offload_.emplace(torch());
    torch().checkpoints().hook = &*offload_;
    Tensor made = forward(ids_);
    torch().checkpoints().hook = nullptr;
    return made;
  }

  bool updates_in_backward() const { return parts_.job.optimizer_in_backward; }
  bool is_sharded() const { return parts_.job.mesh.shard > 1; }

  /// What a Python variable names from here on, that named such a number already: of both buffers the first is kept, as
  /// a program must leave the same ones after each step.
  static void name(Tensor& variable, Tensor next) {
    if (variable.storage) next.storage = variable.storage;
    variable = std::move(next);
  }

  /// x += number, of a variable that is a Python number before a step's first micro-batch.
  void add_up(Tensor& sum, program::Access number, Dtype dtype, const char* what) {
    if (sum.storage) return heap().run("aten::add_", {number, changes(sum)});
    sum = numbers("aten::add", {number}, 1, dtype, what);
  }

  Tensor count_of(const Tensor& labels) {
    const Tensor flags = numbers("aten::ne", {reads(labels)}, labels.elements, Dtype::u8, "labels that count");
    return torch().count_true(flags);
  }

  void count_labels(const Tensor& labels, bool is_first) {
    const Scope scope(heap(), "loss");
    heap().values = Category::logits_and_loss;
    name(counted_, count_of(labels));
    if (is_first) tokens_ = {};
    add_up(tokens_, reads(counted_), Dtype::i64, "labels of the step");
    heap().values = Category::activations;
  }

  std::int64_t parts() const { return std::get<ChunkedLoss>(parts_.job.loss).chunks; }

  /// What chunk(count, dim=1) gives of `tokens` tokens a row: how many are in each part.
  std::vector<std::int64_t> lengths() const {
    const std::int64_t longest = ceil_div(parts_.job.sequence, parts());
    std::vector<std::int64_t> lengths;
    for (std::int64_t left = parts_.job.sequence; left > 0; left -= longest) lengths.push_back(std::min(left, longest));
    return lengths;
  }

  /// Whether a part of each row, of `length` tokens, is no matrix whose rows are equally far apart.
  bool lies_apart(std::int64_t length) const {
    return parts_.job.micro_batch > 1 && length > 1 && length < parts_.job.sequence;
  }

  /// Whether it is one token of each of several rows, which are equally far apart.
  bool is_column(std::int64_t length) const {
    return parts_.job.micro_batch > 1 && length == 1 && parts_.job.sequence > 1;
  }

  /// chunked_output: the output layer on parts of each row. Those that lie apart are copied where its weights are
  /// trained (ATen/native/LinearAlgebra.cpp: should_fold).
  std::vector<Tensor> output_of(const Tensor& normed) {
    const Scope scope(heap(), "output");
    heap().values = Category::logits_and_loss;
    const Model::OutputLayer by = parts_.model.output_layer();
    const std::vector<std::int64_t> tokens = lengths();
    std::vector<std::int64_t> sizes;
    for (const std::int64_t length : tokens) sizes.push_back(length * parts_.job.micro_batch * by.inputs);
    const std::vector<Tensor> inputs = torch().split(normed, sizes);
    std::vector<Tensor> logits;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      Tensor input = parts_.wrapper.pre_output(inputs[i]);
      if (lies_apart(tokens[i]) && torch().is_trained(by.weights)) input = torch().clone(input);
      logits.push_back(torch().linear(input, by.weights, by.inputs, by.outputs));
      parts_.wrapper.post_output(logits.back());
    }
    parts_.model.leave();
    parts_.wrapper.end_forward(logits.back());
    return logits;
  }

  /// CEWithChunkedOutputLoss.forward
  Tensor mean_of(const std::vector<Tensor>& logits, const Tensor& labels) {
    const Tensor count = count_of(labels);
    const std::vector<std::int64_t> tokens = lengths();
    std::vector<Tensor> targets;
    std::int64_t first = 0;
    for (const std::int64_t length : tokens) {
      const std::int64_t size = length * parts_.job.micro_batch;
      targets.push_back(lies_apart(length)
                            ? numbers("aten::clone", {reads(labels)}, size, Dtype::i64, "labels of a part")
                            : heap().narrow(labels, first, size));
      first += size;
    }
    Tensor total;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const Tensor loss = torch().cross_entropy(torch().cast(logits[i], Dtype::f32), targets[i], is_column(tokens[i]));
      total = i == 0 ? torch().add_scalar(loss) : torch().add_in_place(std::move(total), loss);
    }
    return torch().divide_by(total, count);
  }

  /// number / num_tokens
  Tensor share(const char* what) {
    const Tensor reciprocal = numbers("aten::reciprocal", {reads(tokens_)}, 1, Dtype::f32, "one by labels");
    return numbers("aten::mul", {reads(reciprocal)}, 1, Dtype::f32, what);
  }

  void add_up_over_ranks() {
    for (const Tensor& sum : {tokens_, running_}) {
      heap().wait(heap().start(program::Collective::all_reduce, program::Axis::shard, {changes(sum)}, Stream::compute),
                  Stream::compute);
    }
  }

  /// training.scale_grads; of shards once all ranks have added up how many labels there were.
  void scale_gradients() {
    const Scope scope(heap(), "clip");
    if (is_sharded()) add_up_over_ranks();
    const Tensor scale = share("scale of gradients");
    Accesses accesses{reads(scale)};
    for (const Tensor& gradient : parts_.wrapper.gradients()) accesses.push_back(changes(gradient));
    heap().run("aten::mul_", accesses);
  }

  std::optional<ActivationOffload> offload_;
  Tensor ids_, labels_, ignored_;
  Tensor counted_, tokens_, loss_, running_;
  Tensor logged_norm_, logged_loss_, logged_rate_;
};

}  // namespace

std::unique_ptr<Loop> make_torchtune_loop(LoopParts parts) { return std::make_unique<TorchtuneLoop>(std::move(parts)); }

}  // namespace vramfit::eager
