#include "program/pytorch/record.h"

#include <utility>

#include "base/error.h"
#include "job/sharding.h"
#include "program/optimizers/optimizers.h"
#include "program/pytorch/modelings/torchtitan.h"
#include "program/pytorch/optimizers.h"

namespace vramfit::eager {

namespace {

using program::Section;

class Trainer {
 public:
  Trainer(const Graph& graph, const Job& job, const Device& device, bool clip)
      : job_(job),
        clip_(clip),
        torch_(recording_, device, graph.parameters.size()),
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

  program::Program run() {
    begin_section({.kind = Section::Kind::load});
    enter(Phase::load);
    fsdp_.load();
    model_.load();
    train(Section::Steps::first);
    train(Section::Steps::later);
    sections_.back().end = position();
    recording_.writer.be_quiet(true);  // what is allocated now lives on
    return {.labels = recording_.labels.take(),
            .segments = {},
            .main = std::move(recording_.writer.code()),
            .blocks = {},
            .sections = std::move(sections_),
            .groups = program::groups_of(job_.mesh, 1),
            .tokens = recording_.tokens};
  }

 private:
  std::size_t position() { return recording_.writer.code().instructions.size(); }

  void begin_section(Section section) {
    if (!sections_.empty()) sections_.back().end = position();
    section.begin = position();
    sections_.push_back(section);
  }

  void enter(Phase phase) { recording_.writer.write(program::Mark{phase}); }

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

  /// What the step before left is let go of where Python assigns its variables again.
  void copy_inputs() {
    Heap& heap = torch_.heap();
    ids_ = {};
    labels_ = {};
    const Scope scope(heap, "inputs");
    heap.values = Category::activations;
    const std::int64_t tokens = checked_mul(job_.micro_batch, job_.sequence);
    ids_ = heap.make(tokens, Dtype::i64, Category::activations, "ids");
    labels_ = heap.make(tokens, Dtype::i64, Category::activations, "labels");
    for (const Tensor* input : {&ids_, &labels_}) heap.run("aten::_to_copy", {writes(*input)}, {.bytes = 0});
  }

  void train(Section::Steps steps) {
    begin_section({.kind = Section::Kind::last, .steps = steps});
    enter(Phase::forward);
    copy_inputs();
    fsdp_.zero_gradients();
    Tensor logits = forward();
    enter(Phase::loss);
    Tensor loss = model_.loss(logits, labels_);
    logits = {};
    enter(Phase::backward);
    torch_.backward(loss, [this] { fsdp_.finish_backward(); });
    torch_.heap().keep(std::move(loss));  // for the log
    begin_section({.kind = Section::Kind::update, .steps = steps});
    enter(Phase::clip);
    if (clip_) clip_gradients(torch_, fsdp_);
    enter(Phase::optimizer);
    optimizer_named(job_.optimizer).pytorch_step(torch_, fsdp_, job_.optimizer_implementation, job_.precision.state);
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
  bool clip_;
  Recording recording_;
  std::vector<Section> sections_;
  Torch torch_;
  Torchtitan model_;
  Fsdp2 fsdp_;
  int root_ = -1;
  Tensor ids_, labels_;
};

}  // namespace

program::Program record(const Graph& graph, const Job& job, const Device& device, bool clip) {
  return Trainer(graph, job, device, clip).run();
}

}  // namespace vramfit::eager
