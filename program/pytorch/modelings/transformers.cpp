#include "program/pytorch/modelings/transformers.h"

#include <utility>
#include <variant>

#include "base/error.h"
#include "program/stages/adapters.h"
#include "program/stages/trainable.h"

namespace vramfit::eager {

Transformers::Transformers(const Graph& graph, const Job& job, Torch& torch)
    : torch_(torch),
      adapter_dtype_(job.runtime == Runtime::pytorch_fsdp2 ? job.precision.compute : job.precision.storage),
      compute_dtype_(job.precision.compute),
      drops_(job.lora.dropout > 0),
      may_be_cudnn_(job.attention == Attention::automatic || job.attention == Attention::cudnn),
      has_input_gradients_(has_adapters(job) && !std::holds_alternative<NoCheckpointing>(job.checkpointing)),
      llama_(llama_graph(graph, job)),
      // FSDP2 gathers in the compute dtype.
      hidden_dtype_(job.runtime == Runtime::pytorch_fsdp2
                        ? job.precision.compute
                        : held_parameters(graph, job)[static_cast<std::size_t>(llama_.embedding)].dtype) {}

std::vector<Module> Transformers::modules() const {
  std::vector<Module> modules{{"embed_tokens", {llama_.embedding}}};
  for (const LlamaBlock& l : llama_.blocks) {
    Module layer{.name = l.name, .parameters = {}};
    const auto add = [&](int parameter) {
      if (parameter >= 0) layer.parameters.push_back(parameter);
    };
    const auto add_linear = [&](const LlamaLinear& linear) {
      add(linear.weight);
      add(linear.bias);
      add(linear.lora_a);
      add(linear.lora_b);
    };
    for (const LlamaLinear& linear : {l.q, l.k, l.v, l.o}) add_linear(linear);
    for (const int parameter : {l.q_norm, l.k_norm}) add(parameter);
    for (const LlamaLinear& linear : {l.gate, l.up, l.down}) add_linear(linear);
    for (const int parameter : {l.attention_norm, l.ffn_norm}) add(parameter);
    modules.push_back(std::move(layer));
  }
  modules.push_back({"lm_head", {llama_.norm}});
  if (llama_.output != llama_.embedding) modules.back().parameters.push_back(llama_.output);
  return modules;
}

Tensor Transformers::constant(const char* call, const Accesses& inputs, std::int64_t elements, Dtype dtype,
                              const char* what) {
  return torch_.computed(call, inputs, torch_.heap().make(elements, dtype, Category::activations, what));
}

void Transformers::load() {
  const Scope scope(torch_.heap(), "rotary_emb");
  const std::int64_t pairs = llama_.sizes.head_dim / 2;
  frequencies_ = torch_.heap().make(pairs, Dtype::f32, Category::workspace, "inv_freq");
  original_frequencies_ = torch_.heap().make(pairs, Dtype::f32, Category::workspace, "original_inv_freq");
  for (const Tensor* made : {&frequencies_, &original_frequencies_}) {
    torch_.heap().run("aten::_to_copy", {writes(*made)}, {.bytes = 0});
  }
}

Tensor Transformers::embed(const Tensor& ids) {
  const Scope scope(torch_.heap(), "embed_tokens");
  embedded_ = torch_.embedding(ids, llama_.embedding, llama_.sizes.vocabulary, llama_.sizes.hidden, hidden_dtype_);
  if (has_input_gradients_) embedded_ = torch_.require_gradient(std::move(embedded_));
  return embedded_;
}

/// Whether all of it is 1 (masking_utils.py: fast_all), so that attention needs none.
void Transformers::look_at_mask(const Tensor& mask) {
  const Scope scope(torch_.heap(), "mask");
  const Tensor flags = constant("aten::_to_copy", {reads(mask)}, mask.elements, Dtype::u8, "flags");
  const Tensor sum = torch_.count_true(flags);
  const Tensor answer = constant("aten::eq", {reads(sum)}, 1, Dtype::u8, "all");
}

void Transformers::prepare(const Tensor& mask, const Tensor& items) {
  positions_.items = items;
  {
    const Scope scope(torch_.heap(), "model");
    const Tensor range = constant("aten::arange", {}, llama_.sizes.sequence, Dtype::i64, "range");
    positions_.ids = constant("aten::add", {reads(range)}, llama_.sizes.sequence, Dtype::i64, "positions");
  }
  look_at_mask(mask);
  const Scope scope(torch_.heap(), "rotary_emb");
  const std::int64_t numbers = checked_mul(llama_.sizes.sequence, llama_.sizes.head_dim);
  const auto table = [&](const char* function, const char* what, const Tensor& angles) {
    const Tensor values = constant(function, {reads(angles)}, numbers, Dtype::f32, what);
    return constant("aten::mul", {reads(values)}, numbers, Dtype::f32, what);
  };
  Tensor angles;
  {
    const Tensor positions =
        constant("aten::_to_copy", {reads(positions_.ids)}, llama_.sizes.sequence, Dtype::f32, "positions");
    angles = constant("aten::mul", {reads(positions), reads(frequencies_)}, numbers / 2, Dtype::f32, "angles");
  }
  const Tensor doubled = constant("aten::cat", {reads(angles)}, numbers, Dtype::f32, "angles of both halves");
  positions_.cosines = table("aten::cos", "cosines", doubled);
  positions_.sines = table("aten::sin", "sines", doubled);
  if (hidden_dtype_ == Dtype::f32) return;
  const Tensor cosines =
      constant("aten::_to_copy", {reads(positions_.cosines)}, numbers, hidden_dtype_, "cosines, rounded");
  positions_.sines = constant("aten::_to_copy", {reads(positions_.sines)}, numbers, hidden_dtype_, "sines, rounded");
  positions_.cosines = cosines;
}

Tensor Transformers::adapter(const Tensor& x, const LlamaLinear& by, std::int64_t inputs, std::int64_t outputs) {
  Tensor change = torch_.linear(drops_ ? torch_.dropout(x) : x, by.lora_a, inputs, llama_.sizes.lora_rank);
  change = torch_.linear(change, by.lora_b, llama_.sizes.lora_rank, outputs);
  return torch_.scale(change);
}

/// With PEFT's adapter around it (tuners/lora/bnb.py, Linear4bit.forward, under autocast).
Tensor Transformers::linear_4bit(const Tensor& x, const LlamaLinear& by, std::int64_t inputs, std::int64_t outputs) {
  if (by.bias >= 0) throw NotModelled("--method qlora of a model with biases");
  Tensor result = torch_.linear_4bit(x, by.weight, inputs, outputs, compute_dtype_);
  if (by.lora_a < 0) return result;
  result = torch_.clone(result);
  const Tensor change = adapter(x, by, inputs, outputs);
  return torch_.add(result, change);
}

/// With PEFT's adapter around it (tuners/lora/layer.py, Linear.forward).
Tensor Transformers::linear(const Tensor& x, const LlamaLinear& by, std::int64_t inputs, std::int64_t outputs) {
  if (torch_.is_quantized(by.weight)) return linear_4bit(x, by, inputs, outputs);
  Tensor result = torch_.linear(x, by.weight, inputs, outputs, by.bias);
  if (by.lora_a < 0) return result;
  const Tensor wide = torch_.cast(x, adapter_dtype_);
  const Tensor change = adapter(wide, by, inputs, outputs);
  const Dtype dtype = result.dtype;
  result = torch_.add(result, change);
  return torch_.cast(result, dtype);
}

/// `variance` and the widened input are locals, held until the product with the weight is there.
Tensor Transformers::norm(const Tensor& x, int weight, std::int64_t width) {
  Tensor h = torch_.cast(x, Dtype::f32);
  const Tensor variance = torch_.mean_of_rows(torch_.square(h), width);
  {
    const Tensor scale = torch_.rsqrt(torch_.add_scalar(variance));
    h = torch_.multiply_rows(h, scale);
  }
  return torch_.parameter_times(weight, hidden_dtype_, torch_.cast(h, x.dtype), width);
}

/// (x * cos) + (rotate_half(x) * sin)
Tensor Transformers::rotated(const Tensor& x, const Positions& positions) {
  const Tensor turned_by_cosines = torch_.multiply_by_constant(x, positions.cosines);
  const Tensor turned_by_sines = torch_.multiply_by_constant(torch_.rotate_half(x), positions.sines);
  return torch_.add(turned_by_cosines, turned_by_sines);
}

Tensor Transformers::attention(const LlamaBlock& l, const Tensor& x, const Positions& positions) {
  const std::int64_t queries = llama_.sizes.heads * llama_.sizes.head_dim,
                     keys = llama_.sizes.kv_heads * llama_.sizes.head_dim;
  const auto projected = [&](const LlamaLinear& by, std::int64_t heads, int weight) {
    Tensor y = linear(x, by, llama_.sizes.hidden, heads * llama_.sizes.head_dim);
    // Seen with heads first from here on, so its gradient has another layout, unless there is one head.
    if (heads > 1) y = torch_.copied_in_backward(y);
    return weight < 0 ? y : norm(y, weight, llama_.sizes.head_dim);
  };
  Tensor q = projected(l.q, llama_.sizes.heads, l.q_norm);
  Tensor k = projected(l.k, llama_.sizes.kv_heads, l.k_norm);
  const Tensor v = linear(x, l.v, llama_.sizes.hidden, keys);
  {
    Tensor q_turned = rotated(q, positions);
    Tensor k_turned = rotated(k, positions);
    q = std::move(q_turned);
    k = std::move(k_turned);
  }
  const Tensor out = torch_.attention(q, k, v,
                                      {.batch = llama_.sizes.batch,
                                       .sequence = llama_.sizes.sequence,
                                       .heads = llama_.sizes.heads,
                                       .head_dim = llama_.sizes.head_dim,
                                       .kv_heads = llama_.sizes.kv_heads,
                                       .may_be_cudnn = may_be_cudnn_});
  return linear(out, l.o, queries, llama_.sizes.hidden);
}

Tensor Transformers::feed_forward(const LlamaBlock& l, const Tensor& x) {
  Tensor product;
  {
    const Tensor gate = torch_.silu(linear(x, l.gate, llama_.sizes.hidden, llama_.sizes.ffn));
    product = torch_.multiply(gate, linear(x, l.up, llama_.sizes.hidden, llama_.sizes.ffn));
  }
  return linear(product, l.down, llama_.sizes.ffn, llama_.sizes.hidden);
}

CheckpointBody Transformers::block(std::size_t number) {
  return
      [this, number, positions = positions_](const Tensor& x) { return run(llama_.blocks.at(number), x, positions); };
}

Tensor Transformers::run(const LlamaBlock& l, const Tensor& x, const Positions& positions) {
  Heap& heap = torch_.heap();
  const auto in = [&](const char* name, const auto& code) {
    const Scope scope(heap, l.name + "." + name);
    return code();
  };
  Tensor h = in("input_layernorm", [&] { return norm(x, l.attention_norm, llama_.sizes.hidden); });
  h = in("self_attn", [&] { return attention(l, h, positions); });
  const Scope scope(heap, l.name);
  h = torch_.add(x, h);
  const Tensor residual = h;
  h = in("post_attention_layernorm", [&] { return norm(h, l.ffn_norm, llama_.sizes.hidden); });
  h = in("mlp", [&] { return feed_forward(l, h); });
  return torch_.add(residual, h);
}

Tensor Transformers::head(Tensor h, const std::function<Tensor(Tensor)>& before_output) {
  {
    const Scope scope(torch_.heap(), "norm");
    h = norm(h, llama_.norm, llama_.sizes.hidden);
  }
  positions_ = {};
  embedded_ = {};
  h = before_output(std::move(h));
  hidden_ = h;
  const Scope scope(torch_.heap(), "lm_head");
  torch_.heap().values = Category::logits_and_loss;
  return torch_.linear(h, llama_.output, llama_.sizes.hidden, llama_.sizes.vocabulary);
}

}  // namespace vramfit::eager
