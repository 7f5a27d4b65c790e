#include "program/pytorch/modelings/transformers_bert.h"

#include <utility>

#include "base/conflict.h"
#include "program/pytorch/modelings/activations.h"
#include "program/pytorch/modelings/transformers_masks.h"

namespace vramfit::eager {

std::vector<std::int64_t> bert_buffers(const Graph& graph, const Job& job) {
  return std::vector<std::int64_t>(2, bert_graph(graph, job).sizes.positions);
}

Bert::Bert(const Graph& graph, const Job& job, Torch& torch)
    : torch_(torch),
      adapters_(torch, job),
      bert_(bert_graph(graph, job)),
      is_eager_(job.attention == Attention::math),
      may_be_cudnn_(job.attention == Attention::automatic || job.attention == Attention::cudnn),
      hidden_dtype_(hidden_dtype(graph, job, bert_.words)) {
  require_usual_attention(graph, job);
  require_code(job);
}

void Bert::require_code(const Job& job) const {
  if (has_trl(job)) refuse_model(job, "BERT as a causal model, which TRL makes of it");
  if (job.runtime == Runtime::deepspeed) refuse_model(job, "BERT with --runtime deepspeed (--stack transformers is)");
  if (job.method == Method::qlora) refuse_model(job, "BERT with --method qlora");
  if (job.runtime == Runtime::pytorch_fsdp2) {
    // accelerate/utils/fsdp_utils.py: fsdp2_prepare_model, by BertModel._no_split_modules
    throw LibraryFails(
        "BERT with FSDP2 (accelerate shards its embeddings as one unit and the words' table in it once more, which "
        "PyTorch refuses: --sharding no-shard works)");
  }
  if (job.attention == Attention::flash_attn) refuse_model(job, "BERT with --attention flash-attn");
  if (bert_.activation == Activation::relu) refuse_model(job, "BERT with relu");
  for (const double rate : {bert_.dropout.embedding, bert_.dropout.attention, bert_.dropout.hidden}) {
    if (rate == 1) refuse_model(job, "BERT with a dropout of 1");  // which PyTorch computes otherwise
  }
}

std::vector<Module> Bert::modules() const {
  Module embeddings{.name = "word_embeddings", .parameters = {bert_.words}, .beside = {bert_.positions, bert_.types}};
  append_parameters(embeddings.beside, bert_.embedding_norm);
  std::vector<Module> modules{std::move(embeddings)};
  for (const BertBlock& l : bert_.blocks) {
    Module layer{.name = l.name, .parameters = {}};
    const auto add = [&](const auto& by) { append_parameters(layer.parameters, by); };
    add(l.query);
    add(l.key);
    add(l.value);
    add(l.attention_out);
    add(l.attention_norm);
    add(l.intermediate);
    add(l.out);
    add(l.out_norm);
    modules.push_back(std::move(layer));
  }
  Module head{.name = "cls", .parameters = {bert_.output_bias}};
  append_parameters(head.parameters, bert_.transform);
  append_parameters(head.parameters, bert_.transform_norm);
  modules.push_back(std::move(head));
  return modules;
}

void Bert::load() {
  const Scope scope(torch_.heap(), "embeddings");
  const auto buffer = [&](const char* what) {
    Tensor made = torch_.heap().make(bert_.sizes.positions, Dtype::i64, Category::workspace, what);
    torch_.heap().run("aten::_to_copy", {writes(made)}, {.bytes = 0});
    return made;
  };
  position_ids_ = buffer("position_ids");
  type_ids_ = buffer("token_type_ids");
}

/// Where the loop passes no types, they are made before words are looked up.
Tensor Bert::embed(const Tensor& ids) {
  {
    const Scope scope(torch_.heap(), "embeddings");
    types_ = torch_.computed("aten::gather", {reads(type_ids_), reads(position_ids_)},
                             torch_.heap().make(bert_.sizes.sequence, Dtype::i64, Category::activations, "types"));
  }
  const Scope scope(torch_.heap(), "word_embeddings");
  Tensor words = torch_.embedding(ids, bert_.words, bert_.sizes.vocabulary, bert_.sizes.hidden, hidden_dtype_);
  return adapters_.need_input_gradients() ? torch_.require_gradient(std::move(words)) : words;
}

/// The rest of BertEmbeddings.forward; and create_bidirectional_mask, which makes none for rows that are full.
Tensor Bert::prepare(Tensor embedded, const Tensor& mask, const Tensor& items) {
  const BertSizes& s = bert_.sizes;
  items_ = items;
  {
    const Scope scope(torch_.heap(), "embeddings");
    const Tensor of_types = torch_.repeated_embedding(
        types_, s.batch, {.parameter = bert_.types, .rows = s.types, .width = s.hidden, .dtype = hidden_dtype_});
    Tensor h = torch_.add(embedded, of_types);
    Tensor positions = position_ids_;
    positions.elements = s.sequence;
    const Tensor of_positions = torch_.embedding(positions, bert_.positions, s.positions, s.hidden, hidden_dtype_);
    h = torch_.add_to_each(h, of_positions);
    h = norm(h, bert_.embedding_norm);
    embedded_ = dropped(h, bert_.dropout.embedding);
  }
  embedded = types_ = {};
  Masks(torch_, {.batch = s.batch, .sequence = s.sequence, .dtype = hidden_dtype_, .is_eager = is_eager_})
      .look_for_padding(mask);
  return embedded_;
}

Tensor Bert::dropped(const Tensor& x, double rate) { return rate > 0 ? torch_.dropout(x) : x; }

Tensor Bert::norm(const Tensor& x, const NormParameters& by) {
  return torch_.layer_norm(x,
                           {.weight = by.weight, .bias = by.bias, .dtype = hidden_dtype_, .width = bert_.sizes.hidden});
}

Tensor Bert::linear(const Tensor& x, const LinearParameters& by, std::int64_t inputs, std::int64_t outputs) {
  Tensor result = torch_.linear(x, by.weight, inputs, outputs, by.bias);
  return adapters_.added(std::move(result), x, by, inputs, outputs);
}

Tensor Bert::activated_linear(const Tensor& x, const LinearParameters& by, std::int64_t outputs) {
  const Tensor h = linear(x, by, bert_.sizes.hidden, outputs);
  return activated(torch_, h, bert_.activation, bert_.has_composed_activation);
}

Tensor Bert::added_to(const Tensor& residual, const Tensor& x, const LinearParameters& by,
                      const NormParameters& normed_by) {
  const std::int64_t width = bert_.sizes.hidden, rows = residual.elements / width;
  Tensor h = linear(x, by, x.elements / rows, width);
  h = dropped(h, bert_.dropout.hidden);
  return norm(torch_.add(h, residual), normed_by);
}

CheckpointBody Bert::block(std::size_t number) {
  return [this, &layer = bert_.blocks.at(number), items = items_](const Tensor& x) { return run(layer, x); };
}

/// The probabilities stay until the block returns.
Tensor Bert::run(const BertBlock& l, const Tensor& x) {
  Heap& heap = torch_.heap();
  const auto in = [&](const char* name, const auto& code) {
    const Scope scope(heap, l.name + "." + name);
    return code();
  };
  Attended attended = in("attention", [&] {
    Attended made = attention(l, x);
    made.out = added_to(x, made.out, l.attention_out, l.attention_norm);
    return made;
  });
  const Tensor inner =
      in("intermediate", [&] { return activated_linear(attended.out, l.intermediate, bert_.sizes.ffn); });
  return in("output", [&] { return added_to(attended.out, inner, l.out, l.out_norm); });
}

/// What the encoder gave stays until the model returns.
Tensor Bert::head(Tensor h, const std::function<Tensor(Tensor)>& before_output) {
  items_ = embedded_ = {};
  hidden_ = h;
  const Scope scope(torch_.heap(), "cls");
  h = activated_linear(h, bert_.transform, bert_.sizes.hidden);
  h = norm(h, bert_.transform_norm);
  h = before_output(std::move(h));
  torch_.heap().values = Category::logits_and_loss;
  return linear(h, {.weight = bert_.words, .bias = bert_.output_bias}, bert_.sizes.hidden, bert_.sizes.vocabulary);
}

}  // namespace vramfit::eager
