#include "program/pytorch/record.h"

#include <utility>

#include "program/optimizers/optimizers.h"
#include "program/pytorch/modelings/torchtitan.h"
#include "program/pytorch/optimizers.h"

namespace vramfit::eager {

namespace {

using program::Section;

class Trainer {
 public:
  Trainer(const program::LowerInputs& inputs, MakeWrapper make)
      : job_(inputs.job),
        clip_(inputs.run.clip),
        torch_(recording_, inputs.device, inputs.graph.parameters.size()),
        model_(inputs.graph, job_, torch_),
        wrapper_(make(torch_, inputs.graph, job_, model_.modules())) {}

  program::Program run() {
    begin_section({.kind = Section::Kind::load});
    enter(Phase::load);
    wrapper_->load();
    model_.load();
    train(Section::Steps::first);
    train(Section::Steps::later);
    sections_.back().end = position();
    recording_.writer.be_quiet(true);  // what is allocated now lives on
    return {.labels = recording_.labels.take(),
            .segments = {},
            .outputs = {},
            .views = {},
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

  bool is_checkpointed(std::size_t block) const {
    if (const auto* every = std::get_if<EveryNth>(&job_.checkpointing)) {
      return (static_cast<std::int64_t>(block) + 1) % every->n == 0;
    }
    return !std::holds_alternative<NoCheckpointing>(job_.checkpointing);
  }

  /// What the micro-batch before left is let go of where Python assigns its variables again.
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
    const std::int64_t count = job_.accumulation;
    if (count > 1) micro_batch({.kind = Section::Kind::first, .steps = steps}, true);
    if (count > 2) micro_batch({.kind = Section::Kind::middle, .times = count - 2, .steps = steps}, false);
    micro_batch({.kind = Section::Kind::last, .steps = steps}, count == 1);
    begin_section({.kind = Section::Kind::update, .steps = steps});
    enter(Phase::clip);
    if (clip_) clip_gradients(torch_, *wrapper_);
    enter(Phase::optimizer);
    optimizer_named(job_.optimizer)
        .pytorch_step(torch_, *wrapper_, job_.optimizer_implementation, job_.precision.state);
  }

  void micro_batch(const Section& section, bool is_first) {
    begin_section(section);
    enter(Phase::forward);
    copy_inputs();
    if (is_first) wrapper_->zero_gradients();
    Tensor logits = forward();
    enter(Phase::loss);
    Tensor loss = model_.loss(logits, labels_);
    logits = {};
    if (job_.accumulation > 1) {
      const Scope scope(torch_.heap(), "loss");
      loss = torch_.divide(loss);
    }
    enter(Phase::backward);
    torch_.backward(loss, [this] { wrapper_->finish_backward(); });
    torch_.heap().keep(std::move(loss));  // for the log
  }

  Tensor block(std::size_t number, const Tensor& input) {
    if (!is_checkpointed(number)) return model_.block(number, input);
    const auto body = [this, number](const Tensor& x) { return model_.block(number, x); };
    const bool selective = std::holds_alternative<SelectiveCheckpointing>(job_.checkpointing);
    return checkpoint(torch_.checkpoints(), body, input, selective);
  }

  Tensor forward() {
    wrapper_->begin_forward();
    Tensor h = model_.embed(wrapper_->pre_forward(0, ids_));
    wrapper_->post_forward(0, h);
    for (std::size_t b = 0; b < model_.blocks(); ++b) {
      Tensor input = wrapper_->pre_forward(b + 1, h);
      Tensor output = block(b, input);
      wrapper_->post_forward(b + 1, output);
      input = {};
      h = std::move(output);
    }
    const std::size_t last = model_.blocks() + 1;
    Tensor logits = model_.head(wrapper_->pre_forward(last, std::move(h)));
    wrapper_->post_forward(last, logits);
    wrapper_->end_forward(logits);
    return logits;
  }

  Job job_;
  bool clip_;
  Recording recording_;
  std::vector<Section> sections_;
  Torch torch_;
  Torchtitan model_;
  std::unique_ptr<Wrapper> wrapper_;
  Tensor ids_, labels_;
};

}  // namespace

program::Program record(const program::LowerInputs& inputs, MakeWrapper make) { return Trainer(inputs, make).run(); }

}  // namespace vramfit::eager
