#include "program/pytorch/modelings/transformers.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "job/cluster/reduce_scratch.h"

namespace vramfit::eager {

namespace {

constexpr std::array kLayerOps{OpKind::rms_norm, OpKind::linear,    OpKind::linear, OpKind::linear, OpKind::rope,
                               OpKind::rope,     OpKind::attention, OpKind::linear, OpKind::add,    OpKind::rms_norm,
                               OpKind::linear,   OpKind::linear,    OpKind::glu,    OpKind::linear, OpKind::add};

[[noreturn]] void refuse(const std::string& what) { throw NotModelled("modeling transformers of " + what); }

/// Kinds of a segment's ops, in order, and of parameters whole ones without bias.
void require_ops(const Segment& segment, const auto& kinds) {
  if (!std::ranges::equal(segment.ops, kinds, {}, &Op::kind)) refuse("a model other than Llama");
  for (const Op& op : segment.ops) {
    if (op.parameters.size() > 1) refuse("a model with biases");
    for (const ParameterUse& use : op.parameters) {
      if (use.count != -1) refuse("packed matrices");
    }
    const Attributes& a = op.attributes;
    if (a.window != 0 || a.softcap != 0 || a.weight_plus_one || a.transposed_weight || !a.causal || a.groups != 1) {
      refuse("a model other than Llama");
    }
  }
}

int parameter_of(const Segment& segment, std::size_t op) { return segment.ops[op].parameters.front().parameter; }

}  // namespace

Transformers::Transformers(const Graph& graph, const Job& job, Torch& torch)
    : torch_(torch), hidden_dtype_(job.precision.storage) {
  const std::size_t n = graph.segments.size();
  if (n < 4 || graph.masked_lm || graph.ropes.size() != 1) refuse("a model other than Llama");
  const Segment& first = graph.segments.front();
  const Segment& head = graph.segments[n - 2];
  require_ops(first, std::array{OpKind::embedding});
  require_ops(head, std::array{OpKind::rms_norm, OpKind::linear});
  require_ops(graph.segments[n - 1], std::array{OpKind::cross_entropy});
  for (std::size_t s = 1; s + 2 < n; ++s) {
    const Segment& segment = graph.segments[s];
    require_ops(segment, kLayerOps);
    layers_.push_back({.name = segment.name,
                       .q = parameter_of(segment, 1),
                       .k = parameter_of(segment, 2),
                       .v = parameter_of(segment, 3),
                       .o = parameter_of(segment, 7),
                       .gate = parameter_of(segment, 10),
                       .up = parameter_of(segment, 11),
                       .down = parameter_of(segment, 13),
                       .input_norm = parameter_of(segment, 0),
                       .post_attention_norm = parameter_of(segment, 9)});
  }
  embedding_ = parameter_of(first, 0);
  norm_ = parameter_of(head, 0);
  output_ = parameter_of(head, 1);
  const auto shape = [&](int p) { return graph.parameters[static_cast<std::size_t>(p)].shape; };
  const Attributes& attention = graph.segments[1].ops[6].attributes;
  sizes_ = {.batch = job.micro_batch,
            .sequence = job.sequence,
            .hidden = shape(embedding_)[1],
            .heads = attention.heads,
            .kv_heads = attention.kv_heads,
            .head_dim = attention.head_dim,
            .ffn = shape(layers_.front().gate)[0],
            .vocabulary = shape(embedding_)[0]};
}

std::vector<Module> Transformers::modules() const {
  std::vector<Module> modules{{"embed_tokens", {embedding_}}};
  for (const TransformersLayer& l : layers_) {
    modules.push_back({l.name, {l.q, l.k, l.v, l.o, l.gate, l.up, l.down, l.input_norm, l.post_attention_norm}});
  }
  modules.push_back({"lm_head", {norm_}});
  if (output_ != embedding_) modules.back().parameters.push_back(output_);
  return modules;
}

Tensor Transformers::constant(const char* call, Accesses inputs, std::int64_t elements, Dtype dtype, const char* what) {
  Tensor made = torch_.heap().make(elements, dtype, Category::activations, what);
  inputs.push_back(writes(made));
  torch_.heap().run(call, inputs);
  return made;
}

void Transformers::load() {
  const Scope scope(torch_.heap(), "rotary_emb");
  const std::int64_t pairs = sizes_.head_dim / 2;
  frequencies_ = torch_.heap().make(pairs, Dtype::f32, Category::workspace, "inv_freq");
  original_frequencies_ = torch_.heap().make(pairs, Dtype::f32, Category::workspace, "original_inv_freq");
  for (const Tensor* made : {&frequencies_, &original_frequencies_}) {
    torch_.heap().run("aten::_to_copy", {writes(*made)}, {.bytes = 0});
  }
}

Tensor Transformers::embed(const Tensor& ids) {
  const Scope scope(torch_.heap(), "embed_tokens");
  embedded_ = torch_.embedding(ids, embedding_, sizes_.vocabulary, sizes_.hidden, hidden_dtype_);
  return embedded_;
}

/// Whether all of it is 1 (masking_utils.py: fast_all), so that attention needs none.
void Transformers::look_at_mask(const Tensor& mask) {
  const Scope scope(torch_.heap(), "mask");
  const Tensor flags = constant("aten::_to_copy", {reads(mask)}, mask.elements, Dtype::u8, "flags");
  Tensor sum = constant("aten::zeros", {}, 1, Dtype::i64, "sum of flags");
  {
    const Tensor wide = constant("aten::_to_copy", {reads(flags)}, mask.elements, Dtype::i64, "flags as numbers");
    const ReduceScratch scratch = sum_over_all(mask.elements, torch_.device());
    const Tensor partials =
        torch_.heap().make(2 * scratch.partials.n, Dtype::u8, Category::temporaries, "partial sums");
    const Tensor counters =
        torch_.heap().make(scratch.counters.n, Dtype::u8, Category::temporaries, "reduction counters");
    torch_.heap().run("aten::sum", {reads(wide), changes(sum)});
  }
  const Tensor answer = constant("aten::eq", {reads(sum)}, 1, Dtype::u8, "all");
}

void Transformers::prepare(const Tensor& mask) {
  {
    const Scope scope(torch_.heap(), "model");
    const Tensor range = constant("aten::arange", {}, sizes_.sequence, Dtype::i64, "range");
    positions_.ids = constant("aten::add", {reads(range)}, sizes_.sequence, Dtype::i64, "positions");
  }
  look_at_mask(mask);
  const Scope scope(torch_.heap(), "rotary_emb");
  const std::int64_t numbers = checked_mul(sizes_.sequence, sizes_.head_dim);
  const auto table = [&](const char* function, const char* what, const Tensor& angles) {
    const Tensor values = constant(function, {reads(angles)}, numbers, Dtype::f32, what);
    return constant("aten::mul", {reads(values)}, numbers, Dtype::f32, what);
  };
  Tensor angles;
  {
    const Tensor positions =
        constant("aten::_to_copy", {reads(positions_.ids)}, sizes_.sequence, Dtype::f32, "positions");
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

/// `variance` and the widened input are locals, held until the product with the weight is there.
Tensor Transformers::norm(const Tensor& x, int weight) {
  Tensor h = torch_.cast(x, Dtype::f32);
  const Tensor variance = torch_.mean_of_rows(torch_.square(h), sizes_.hidden);
  {
    const Tensor scale = torch_.rsqrt(torch_.add_scalar(variance));
    h = torch_.multiply_rows(h, scale);
  }
  return torch_.parameter_times(weight, torch_.cast(h, x.dtype), sizes_.hidden);
}

/// (x * cos) + (rotate_half(x) * sin)
Tensor Transformers::rotated(const Tensor& x, const Positions& positions) {
  const Tensor turned_by_cosines = torch_.multiply_by_constant(x, positions.cosines);
  const Tensor turned_by_sines = torch_.multiply_by_constant(torch_.rotate_half(x), positions.sines);
  return torch_.add(turned_by_cosines, turned_by_sines);
}

Tensor Transformers::attention(const TransformersLayer& l, const Tensor& x, const Positions& positions) {
  const std::int64_t queries = sizes_.heads * sizes_.head_dim, keys = sizes_.kv_heads * sizes_.head_dim;
  const auto heads_first = [&](const Tensor& y, std::int64_t heads) {
    // The gradient of what is turned here has another layout, unless there is one head.
    return heads == 1 ? y : torch_.copied_in_backward(y);
  };
  Tensor q = heads_first(torch_.linear(x, l.q, sizes_.hidden, queries), sizes_.heads);
  Tensor k = heads_first(torch_.linear(x, l.k, sizes_.hidden, keys), sizes_.kv_heads);
  const Tensor v = torch_.linear(x, l.v, sizes_.hidden, keys);
  {
    Tensor q_turned = rotated(q, positions);
    Tensor k_turned = rotated(k, positions);
    q = std::move(q_turned);
    k = std::move(k_turned);
  }
  const Tensor out = torch_.attention(q, k, v,
                                      {.batch = sizes_.batch,
                                       .sequence = sizes_.sequence,
                                       .heads = sizes_.heads,
                                       .head_dim = sizes_.head_dim,
                                       .kv_heads = sizes_.kv_heads});
  return torch_.linear(out, l.o, queries, sizes_.hidden);
}

Tensor Transformers::feed_forward(const TransformersLayer& l, const Tensor& x) {
  Tensor product;
  {
    const Tensor gate = torch_.silu(torch_.linear(x, l.gate, sizes_.hidden, sizes_.ffn));
    product = torch_.multiply(gate, torch_.linear(x, l.up, sizes_.hidden, sizes_.ffn));
  }
  return torch_.linear(product, l.down, sizes_.ffn, sizes_.hidden);
}

CheckpointBody Transformers::block(std::size_t number) {
  return [this, number, positions = positions_](const Tensor& x) { return run(layers_.at(number), x, positions); };
}

Tensor Transformers::run(const TransformersLayer& l, const Tensor& x, const Positions& positions) {
  Heap& heap = torch_.heap();
  const auto in = [&](const char* name, const auto& code) {
    const Scope scope(heap, l.name + "." + name);
    return code();
  };
  Tensor h = in("input_layernorm", [&] { return norm(x, l.input_norm); });
  h = in("self_attn", [&] { return attention(l, h, positions); });
  const Scope scope(heap, l.name);
  h = torch_.add(x, h);
  const Tensor residual = h;
  h = in("post_attention_layernorm", [&] { return norm(h, l.post_attention_norm); });
  h = in("mlp", [&] { return feed_forward(l, h); });
  return torch_.add(residual, h);
}

Tensor Transformers::head(Tensor h) {
  {
    const Scope scope(torch_.heap(), "norm");
    h = norm(h, norm_);
  }
  positions_ = {};
  embedded_ = {};
  hidden_ = h;
  const Scope scope(torch_.heap(), "lm_head");
  torch_.heap().values = Category::logits_and_loss;
  return torch_.linear(h, output_, sizes_.hidden, sizes_.vocabulary);
}

}  // namespace vramfit::eager
