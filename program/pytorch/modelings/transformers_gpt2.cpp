#include "program/pytorch/modelings/transformers_gpt2.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/error.h"
#include "job/fields/job_fields.h"
#include "program/pytorch/modelings/activations.h"
#include "program/pytorch/modelings/transformers_masks.h"

namespace vramfit::eager {

Gpt2::Gpt2(const Graph& graph, const Job& job, Torch& torch)
    : torch_(torch),
      adapters_(torch, job),
      gpt2_(gpt2_graph(graph, job)),
      is_scored_(has_trl(job) && !is_classifier(job)),
      is_eager_(job.attention == Attention::math),
      may_be_cudnn_(job.attention == Attention::automatic || job.attention == Attention::cudnn),
      hidden_dtype_(hidden_dtype(graph, job, gpt2_.words)) {
  require_usual_attention(graph, job);
  require_code(job);
  if (has_pairs(job)) gpt2_.dropout = {};  // disable_dropout
}

void Gpt2::require_code(const Job& job) const {
  if (job.runtime == Runtime::deepspeed) {
    refuse_model(job, "GPT-2 with --runtime deepspeed (--stack " + job_field_named("modeling").get(job) + " is)");
  }
  if (is_eager_ && gpt2_.upcasts_scores) refuse_model(job, "GPT-2 with reorder_and_upcast_attn and --attention math");
  if (job.attention == Attention::flash_attn) refuse_model(job, "GPT-2 with --attention flash-attn");
  if (job.packs_documents) refuse_model(job, "GPT-2 with --packing bfd");
  // Its mask is passed by position, so that it goes before what else a checkpoint is passed.
  const bool is_checkpointed = !std::holds_alternative<NoCheckpointing>(job.checkpointing);
  if (is_eager_ && is_checkpointed && job.reentrant_checkpoints) {
    refuse_model(job, "GPT-2 with --reentrant-checkpoints on and --attention math");
  }
  if (gpt2_.activation == Activation::relu) refuse_model(job, "GPT-2 with relu");
  for (const double rate : {gpt2_.dropout.embedding, gpt2_.dropout.attention, gpt2_.dropout.hidden}) {
    if (rate == 1) refuse_model(job, "GPT-2 with a dropout of 1");  // which PyTorch computes otherwise
  }
}

std::vector<Module> Gpt2::modules() const {
  std::vector<Module> modules{{.name = "wte", .parameters = {gpt2_.words}, .beside = {gpt2_.positions}}};
  for (const Gpt2Block& l : gpt2_.blocks) {
    Module layer{.name = l.name, .parameters = {}};
    const auto add = [&](const auto& by) { append_parameters(layer.parameters, by); };
    add(l.ln_1);
    add(l.c_attn);
    add(l.attention_out);
    add(l.ln_2);
    add(l.c_fc);
    add(l.mlp_out);
    modules.push_back(std::move(layer));
  }
  // Its body is called transformer, under which PEFT's model passes it on.
  modules.push_back({.name = "lm_head", .parameters = {gpt2_.norm.weight, gpt2_.norm.bias}, .is_found_in_peft = true});
  modules.back().beside = gpt2_.scores;
  if (gpt2_.scores.empty() && gpt2_.output != gpt2_.words) modules.back().parameters.push_back(gpt2_.output);
  return modules;
}

Tensor Gpt2::embed(const Tensor& ids) {
  const Scope scope(torch_.heap(), "wte");
  embedded_ = torch_.embedding(ids, gpt2_.words, gpt2_.sizes.vocabulary, gpt2_.sizes.hidden, hidden_dtype_);
  if (adapters_.need_input_gradients()) embedded_ = torch_.require_gradient(std::move(embedded_));
  return embedded_;
}

Tensor Gpt2::prepare(Tensor embedded, const Tensor& mask, const Tensor& items) {
  const Gpt2Sizes& s = gpt2_.sizes;
  Heap& heap = torch_.heap();
  const auto numbers = [&](const char* call, const Accesses& inputs, const char* what) {
    return torch_.computed(call, inputs, heap.make(s.sequence, Dtype::i64, Category::activations, what));
  };
  passed_.items = items;
  Tensor h;
  {
    const Scope scope(heap, "wpe");
    const Tensor range = numbers("aten::arange", {}, "range");
    passed_.position_ids = numbers("aten::add", {reads(range)}, "positions");
  }
  {
    const Scope scope(heap, "wpe");
    positions_ = torch_.embedding(passed_.position_ids, gpt2_.positions, s.positions, s.hidden, hidden_dtype_);
    h = torch_.add_to_each(embedded, positions_);
    embedded = {};
  }
  Masks masks(torch_, {.batch = s.batch, .sequence = s.sequence, .dtype = hidden_dtype_, .is_eager = is_eager_});
  passed_.mask = masks.of_scores(mask, 0);
  const Scope scope(heap, "drop");
  return dropped(h, gpt2_.dropout.embedding);
}

Tensor Gpt2::dropped(const Tensor& x, double rate) { return rate > 0 ? torch_.dropout(x) : x; }

Tensor Gpt2::norm(const Tensor& x, const NormParameters& by) {
  return torch_.layer_norm(x,
                           {.weight = by.weight, .bias = by.bias, .dtype = hidden_dtype_, .width = gpt2_.sizes.hidden});
}

Tensor Gpt2::conv1d(const Tensor& x, const LinearParameters& by, std::int64_t inputs, std::int64_t outputs) {
  Tensor result = torch_.is_quantized(by.weight) ? adapters_.quantized(x, by, inputs, outputs)
                                                 : torch_.conv1d(x, by.weight, inputs, outputs, by.bias);
  if (by.magnitudes >= 0) throw NotModelled("--dora on over Conv1D, whose norms take scratch memory (GPT-2)");
  return adapters_.added(std::move(result), x, by, inputs, outputs);
}

Tensor Gpt2::feed_forward(const Gpt2Block& l, const Tensor& x) {
  Tensor h = conv1d(x, l.c_fc, gpt2_.sizes.hidden, gpt2_.sizes.ffn);
  h = activated(torch_, h, gpt2_.activation, gpt2_.has_composed_activation);
  h = conv1d(h, l.mlp_out, gpt2_.sizes.ffn, gpt2_.sizes.hidden);
  return dropped(h, gpt2_.dropout.hidden);
}

CheckpointBody Gpt2::block(std::size_t number) {
  return [this, &layer = gpt2_.blocks.at(number), passed = passed_](const Tensor& x) { return run(layer, x, passed); };
}

/// What attention gave stays until the block returns.
Tensor Gpt2::run(const Gpt2Block& l, const Tensor& x, const Passed& passed) {
  Heap& heap = torch_.heap();
  const auto in = [&](const char* name, const auto& code) {
    const Scope scope(heap, l.name + "." + name);
    return code();
  };
  const Scope scope(heap, l.name);
  Tensor h = in("ln_1", [&] { return norm(x, l.ln_1); });
  const Attended attended = in("attn", [&] { return attention(l, h, passed.mask); });
  h = torch_.add(attended.out, x);
  const Tensor residual = h;
  h = in("ln_2", [&] { return norm(h, l.ln_2); });
  const Tensor fed = in("mlp", [&] { return feed_forward(l, h); });
  return torch_.add(residual, fed);
}

Tensor Gpt2::head(Tensor h, const std::function<Tensor(Tensor)>& before_output) {
  {
    const Scope scope(torch_.heap(), "ln_f");
    h = norm(h, gpt2_.norm);
  }
  passed_ = {};
  embedded_ = positions_ = {};
  h = before_output(std::move(h));
  hidden_ = h;
  const Scope scope(torch_.heap(), "lm_head");
  torch_.heap().values = Category::logits_and_loss;
  if (is_scored_) return h;
  return torch_.linear(h, gpt2_.output, gpt2_.sizes.hidden, gpt2_.sizes.outputs);
}

}  // namespace vramfit::eager
