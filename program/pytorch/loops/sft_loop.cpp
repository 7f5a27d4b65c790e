// The loop of TRL's SFTTrainer (1.16): transformers' Trainer with a loss of its own, and what it computes for its log
// (trl/trainer/sft_trainer.py: compute_loss).
#include <utility>

#include "program/pytorch/loops/deepspeed_loop.h"
#include "program/pytorch/loops/scored_loop.h"

namespace vramfit::eager {

namespace {

class SftLoop : public ScoredLoop {
 public:
  using ScoredLoop::ScoredLoop;

 private:
  /// Of packed documents, what is for kernels of the flash-attn package and of linear attention, too
  /// (DataCollatorForLanguageModeling, padding_free).
  Inputs moved_inputs() override {
    if (parts_.documents == 0) return ScoredLoop::moved_inputs();
    heap().values = Category::activations;
    Inputs inputs;
    inputs.ids = tokens("ids");
    inputs.labels = tokens("labels");
    inputs.mask = tokens("positions");
    const auto ends = [&](const char* what) { return sent(checked_add(parts_.documents, 1), Dtype::i32, what); };
    inputs.documents.count = parts_.documents;
    inputs.documents.ends_of_queries = ends("ends of queries' documents");
    inputs.documents.ends_of_keys = ends("ends of keys' documents");
    inputs.others.push_back(sent(parts_.job.sequence, Dtype::i32, "documents of tokens"));
    return inputs;
  }

  Tensor loss_of(const Inputs& inputs) override {
    const Outputs outputs = returned(parts_.wrapper, forward_with_scores(trained_model(), inputs, {}));
    const Scope scope(heap(), "loss");
    const Tensor losses = torch().negative(outputs.scores.log_probabilities);
    Tensor loss;
    {
      const Tensor sum = torch().sum(losses);
      const Tensor items = number("aten::clamp", {reads(this->items())}, Dtype::f32, "labels that count, at least 1");
      loss = torch().divide_by(sum, items);
    }
    loss = torch().scale(loss);  // by the number of processes
    log_metrics(inputs, outputs);
    return loss;
  }

  /// Entropy and token accuracy, and how many tokens there were. They live until compute_loss returns, which also lets
  /// go of what the model returned.
  void log_metrics(const Inputs& inputs, const Outputs& outputs) {
    const Tensor valid = total(torch().count_true(outputs.mask));
    const Tensor entropy = total(torch().sum(detached(outputs.scores.entropy)));
    const Tensor correct = total(torch().count_true(outputs.scores.is_top));
    for (const Tensor& sum : {entropy, correct}) log_share(sum, valid);
    if (parts_.documents == 0) {
      const Tensor tokens = total(torch().sum(inputs.mask));
    } else {
      const Tensor here = number("aten::_to_copy", {}, Dtype::i64, "tokens of this rank");
      const Tensor tokens = total(here);
    }
  }
};

}  // namespace

std::unique_ptr<Loop> make_sft_loop(LoopParts parts) {
  if (parts.job.runtime == Runtime::deepspeed) return std::make_unique<UnderDeepSpeed<SftLoop>>(std::move(parts));
  return std::make_unique<SftLoop>(std::move(parts));
}

}  // namespace vramfit::eager
