#include "program/pytorch/count_eager.h"

#include <utility>

#include "base/error.h"
#include "job/sharding.h"
#include "program/pytorch/modelings/torchtitan.h"
#include "program/pytorch/optimizers.h"

namespace vramfit::eager {

namespace {

class Trainer {
 public:
  Trainer(const Graph& graph, const Job& job, const Device& device, const CountOptions& options)
      : job_(job),
        options_(options),
        torch_(writer_, device, graph.parameters.size()),
        model_(graph, job, torch_),
        fsdp_(torch_, job, job.precision) {
    const auto named = [&](const std::vector<int>& indices) {
      std::vector<std::pair<int, const Parameter*>> parameters;
      parameters.reserve(indices.size());
      for (const int p : indices) parameters.emplace_back(p, &graph.parameters[static_cast<std::size_t>(p)]);
      return parameters;
    };
    for (std::size_t b = 0; b < model_.blocks().size(); ++b) {
      const TitanBlock& block = model_.blocks()[b];
      fsdp_.add_group(block.name, named(Torchtitan::parameters_of(block)),
                      block_reshards(b + 1 == model_.blocks().size()));
    }
    root_ = fsdp_.add_group("root", named(model_.root_parameters()), job.reshard == Reshard::always);
  }

  Ledger run() {
    writer_.set_phase(Phase::load, 0);
    fsdp_.load();
    model_.load();
    for (int step = 1; step <= options_.steps; ++step) {
      const bool stands_for_all = options_.abbreviate && step == options_.steps && step >= 2;
      if (stands_for_all) writer_.begin_repeat(kForever);
      train(step);
      if (stands_for_all) writer_.end_repeat();
    }
    return writer_.take();
  }

 private:
  bool block_reshards(bool is_last) const {
    const Sharding& sharding = sharding_named(job_.sharding);
    if (!sharding.reshard || job_.reshard == Reshard::never) return false;
    return job_.reshard != Reshard::last_kept || !is_last;
  }

  bool is_checkpointed(std::size_t block) const {
    if (job_.checkpointing == Checkpointing::every) {
      return (static_cast<std::int64_t>(block) + 1) % job_.checkpoint_every == 0;
    }
    return job_.checkpointing != Checkpointing::none;
  }

  void train(int step) {
    writer_.set_phase(Phase::forward, step);
    ids_ = {};
    labels_ = {};
    const std::int64_t tokens = checked_mul(job_.micro_batch, job_.sequence);
    {
      const Scope scope(torch_.heap(), "inputs");
      torch_.heap().values = Category::activations;
      ids_ = torch_.heap().make(tokens, Dtype::i64, Category::activations, "ids");
      labels_ = torch_.heap().make(tokens, Dtype::i64, Category::activations, "labels");
    }
    fsdp_.zero_gradients();
    Tensor logits = forward();
    writer_.set_phase(Phase::loss, step);
    Tensor loss = model_.loss(logits);
    logits = {};
    writer_.set_phase(Phase::backward, step);
    torch_.backward(loss, [this] { fsdp_.finish_backward(); });
    losses_.push_back(detached(loss));
    writer_.set_phase(Phase::clip, step);
    if (options_.clip) clip_gradients(torch_, fsdp_);
    writer_.set_phase(Phase::optimizer, step);
    adamw_step(torch_, fsdp_, job_.optimizer_implementation, job_.precision.state);
  }

  Tensor forward() {
    fsdp_.pre_forward(root_, ids_);
    Tensor h = model_.embed(ids_);
    for (std::size_t b = 0; b < model_.blocks().size(); ++b) {
      const auto group = static_cast<int>(b);
      const TitanBlock& block = model_.blocks()[b];
      Tensor input = fsdp_.pre_forward(group, h);
      const bool is_selective = job_.checkpointing == Checkpointing::selective;
      Tensor output = is_checkpointed(b)
                          ? checkpoint(
                                torch_.checkpoints(),
                                [this, &block](const Tensor& x) { return model_.block(block, x); }, input, is_selective)
                          : model_.block(block, input);
      fsdp_.post_forward(group, output);
      input = {};
      h = std::move(output);
    }
    Tensor logits = model_.head(std::move(h));
    fsdp_.post_forward(root_, logits);
    return logits;
  }

  Job job_;
  CountOptions options_;
  LedgerWriter writer_;
  Torch torch_;
  Torchtitan model_;
  Fsdp2 fsdp_;
  int root_ = -1;
  Tensor ids_, labels_;
  std::vector<Tensor> losses_;  // kept for the log
};

}  // namespace

Ledger count_eager(const Graph& graph, const Job& job, const Device& device, const CountOptions& options) {
  return Trainer(graph, job, device, options).run();
}

}  // namespace vramfit::eager
