#include "program/pytorch/loops/scored_loop.h"

#include <optional>
#include <utility>

#include "program/pytorch/calls/autocast.h"

namespace vramfit::eager {

ScoredLoop::Outputs ScoredLoop::forward_with_scores(const Wrapped& wrapped, const Inputs& inputs,
                                                    Torch::ScoresWanted wanted) {
  const Precision& precision = parts_.job.precision;
  const std::int64_t count = checked_mul(parts_.job.micro_batch, parts_.job.sequence - 1);
  const Autocast autocast(torch(), is_autocast() ? std::optional(precision.compute) : torch().autocast());
  if (const auto dtype = wrapped.wrapper.dtype_of_buffers()) wrapped.model.convert_buffers(*dtype);
  wrapped.wrapper.enter_model();
  Outputs outputs;
  const Tensor hidden = torch().part_of(forward_of(wrapped, inputs.ids, inputs.mask, {}),
                                        checked_mul(count, wrapped.model.output_layer().inputs));
  parts_.enter(Phase::loss);
  const Scope scope(heap(), "loss");
  wrapped.wrapper.look_at(wrapped.model.output_layer().weights);  // at which device they are
  outputs.mask = numbers("aten::ne", {reads(inputs.labels)}, count, Dtype::u8, "mask of labels");
  const Tensor weights = wrapped.wrapper.gathered_alone(wrapped.model.output_layer().weights);
  {
    const Torch::Scores scores =
        scores_of(wrapped.model.output_layer(), hidden, inputs.labels, outputs.mask, weights, wanted);
    const auto scattered = [&](const Tensor& of_labels, bool is_wanted = true) {
      return is_wanted ? torch().scattered(of_labels, outputs.mask) : Tensor{};
    };
    outputs.scores.log_probabilities = scattered(scores.log_probabilities);
    outputs.scores.entropy = scattered(scores.entropy, wanted.entropy);
    outputs.scores.mean_logits = scattered(scores.mean_logits, wanted.mean_logits);
    outputs.scores.is_top = scattered(scores.is_top, wanted.is_top);
  }
  add_own_loss(outputs);
  if (!outputs.scores.log_probabilities.wants_gradient) outputs.divisor = {};  // to which no node leads
  wrapped.model.leave();
  return outputs;
}

Torch::Scores ScoredLoop::scores_of(const Model::OutputLayer& output, const Tensor& hidden, const Tensor& labels,
                                    const Tensor& mask, const Tensor& weights, Torch::ScoresWanted wanted) {
  // The first token of each document has no label, and that of the first is cut off.
  const std::int64_t count = mask.elements - (parts_.documents > 0 ? parts_.documents - 1 : 0);
  const Tensor chosen = torch().chosen_rows(hidden, mask, count);
  Tensor shifted = labels;
  shifted.elements = mask.elements;
  const Tensor targets = torch().chosen_rows(shifted, mask, count);
  return torch().label_scores(chosen, targets, {output.weights, output.inputs, output.outputs}, weights, wanted);
}

void ScoredLoop::add_own_loss(Outputs& outputs) {
  Tensor negative;
  {
    const Tensor sum = torch().sum(detached(outputs.scores.log_probabilities));
    negative = number("aten::neg", {reads(sum)}, Dtype::f32, "sum, negated");
  }
  {
    const Tensor labels = torch().count_true(outputs.mask);
    outputs.divisor = number("aten::clamp", {reads(labels)}, Dtype::i64, "labels, at least 1");
  }
  outputs.loss = number("aten::div", {reads(negative), reads(outputs.divisor)}, Dtype::f32, "the model's own loss");
}

ScoredLoop::Outputs ScoredLoop::returned(Wrapper& wrapper, Outputs outputs) {
  const Scope scope(heap(), "loss");
  const Torch::Scores& scores = outputs.scores;
  Outputs made = outputs;
  wrapper.end_module(scores.log_probabilities);
  if (converts_outputs()) {
    const Dtype dtype = parts_.job.precision.compute;
    made.loss = torch().cast(outputs.loss, dtype);
    made.scores.log_probabilities = torch().cast(scores.log_probabilities, dtype);
    if (scores.entropy.storage) made.scores.entropy = torch().cast(scores.entropy, dtype);
    if (scores.mean_logits.storage) made.scores.mean_logits = torch().cast(scores.mean_logits, dtype);
  }
  wrapper.end_forward(scores.log_probabilities);  // before it is converted
  made.scores.log_probabilities = wrapper.leave_model(std::move(made.scores.log_probabilities));
  if (wrapper.copies_outputs()) {
    made.loss = torch().clone(outputs.loss);
    made.scores.log_probabilities = torch().clone_keeping(scores.log_probabilities, outputs.divisor);
    made.scores.entropy = torch().clone(scores.entropy);
    if (scores.mean_logits.storage) made.scores.mean_logits = torch().clone(scores.mean_logits);
    const Tensor is_top = torch().clone(scores.is_top), mask = torch().clone(outputs.mask);
    made.divisor = {};
  }
  return made;
}

Tensor ScoredLoop::total(Tensor x) {
  return gathers() ? summed_over_ranks(std::move(x)) : number("aten::sum", {reads(x)}, x.dtype, "sum over ranks");
}

void ScoredLoop::log_share(const Tensor& sum, const Tensor& count) {
  { const Tensor flag = number("aten::gt", {reads(count)}, Dtype::u8, "are there labels"); }
  const Dtype dtype = sum.dtype == Dtype::i64 ? Dtype::f32 : sum.dtype;
  const Tensor share = number("aten::div", {reads(sum), reads(count)}, dtype, "mean for the log");
}

}  // namespace vramfit::eager
