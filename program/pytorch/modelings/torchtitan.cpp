#include "program/pytorch/modelings/torchtitan.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"

namespace vramfit::eager {

namespace {

constexpr std::array kBlockOps{OpKind::rms_norm, OpKind::linear,    OpKind::linear, OpKind::linear, OpKind::rope,
                               OpKind::rope,     OpKind::attention, OpKind::linear, OpKind::add,    OpKind::rms_norm,
                               OpKind::linear,   OpKind::linear,    OpKind::glu,    OpKind::linear, OpKind::add};

[[noreturn]] void refuse(const std::string& what) { throw NotModelled("modeling torchtitan of " + what); }

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

Torchtitan::Torchtitan(const Graph& graph, const Job& job, Torch& torch)
    : torch_(torch), compute_(job.precision.compute) {
  const std::size_t n = graph.segments.size();
  if (n < 4 || graph.masked_lm || graph.ropes.size() != 1) refuse("a model other than Llama");
  const Segment& first = graph.segments.front();
  const Segment& head = graph.segments[n - 2];
  require_ops(first, std::array{OpKind::embedding});
  require_ops(head, std::array{OpKind::rms_norm, OpKind::linear});
  require_ops(graph.segments[n - 1], std::array{OpKind::cross_entropy});
  for (std::size_t s = 1; s + 2 < n; ++s) {
    const Segment& segment = graph.segments[s];
    require_ops(segment, kBlockOps);
    blocks_.push_back({.name = segment.name,
                       .wq = parameter_of(segment, 1),
                       .wk = parameter_of(segment, 2),
                       .wv = parameter_of(segment, 3),
                       .wo = parameter_of(segment, 7),
                       .w1 = parameter_of(segment, 10),
                       .w2 = parameter_of(segment, 13),
                       .w3 = parameter_of(segment, 11),
                       .attention_norm = parameter_of(segment, 0),
                       .ffn_norm = parameter_of(segment, 9)});
  }
  embedding_ = parameter_of(first, 0);
  norm_ = parameter_of(head, 0);
  output_ = parameter_of(head, 1);
  if (embedding_ == output_) refuse("tied embeddings");
  const auto shape = [&](int p) { return graph.parameters[static_cast<std::size_t>(p)].shape; };
  const Attributes& attention = graph.segments[1].ops[6].attributes;
  sizes_ = {.batch = job.micro_batch,
            .sequence = job.sequence,
            .hidden = shape(embedding_)[1],
            .heads = attention.heads,
            .kv_heads = attention.kv_heads,
            .head_dim = attention.head_dim,
            .ffn = shape(blocks_.front().w1)[0],
            .vocabulary = shape(embedding_)[0]};
}

std::vector<Module> Torchtitan::modules() const {
  std::vector<Module> modules{{"tok_embeddings", {embedding_}}};
  for (const TitanBlock& b : blocks_) {
    modules.push_back({b.name, {b.wq, b.wk, b.wv, b.wo, b.w1, b.w2, b.w3, b.attention_norm, b.ffn_norm}});
  }
  modules.push_back({"output", {norm_, output_}});
  return modules;
}

void Torchtitan::load() {
  const Scope scope(torch_.heap(), "rotations");
  const auto make = [&](std::int64_t elements, Dtype dtype, const char* what) {
    return torch_.heap().make(elements, dtype, Category::workspace, what);
  };
  const std::int64_t pairs = sizes_.head_dim / 2;
  const std::int64_t angles = checked_mul(sizes_.sequence, pairs);
  const Tensor empty = make(2 * angles, Dtype::f32, "empty table");
  const auto computed = [&](const char* call, Accesses accesses, Tensor made) {
    accesses.push_back(writes(made));
    torch_.heap().run(call, accesses);
    return made;
  };
  const Tensor exponents = computed("aten::arange", {}, make(pairs, Dtype::f32, "exponents"));
  const Tensor frequencies = computed("aten::pow", {reads(exponents)}, make(pairs, Dtype::f32, "frequencies"));
  const Tensor positions = computed("aten::arange", {}, make(sizes_.sequence, Dtype::i64, "positions"));
  const Tensor angle =
      computed("aten::outer", {reads(positions), reads(frequencies)}, make(angles, Dtype::f32, "angles"));
  const Tensor ones = computed("aten::ones_like", {}, make(angles, Dtype::f32, "lengths"));
  turns_ = computed("aten::polar", {reads(ones), reads(angle)}, make(2 * angles, Dtype::f32, "table"));
}

Tensor Torchtitan::embed(const Tensor& ids) {
  const Scope scope(torch_.heap(), "tok_embeddings");
  return torch_.embedding(ids, embedding_, sizes_.vocabulary, sizes_.hidden, compute_);
}

/// x.float() is a local of the function that normalizes, and is freed when that returns.
Tensor Torchtitan::norm(const Tensor& x, int weight) {
  Tensor normalized;
  {
    const Tensor wide = torch_.cast(x, Dtype::f32);
    Tensor scale = torch_.square(wide);
    scale = torch_.mean_of_rows(scale, sizes_.hidden);
    scale = torch_.add_scalar(scale);
    scale = torch_.rsqrt(scale);
    normalized = torch_.multiply_rows(wide, scale);
  }
  const Tensor rounded = torch_.cast(normalized, x.dtype);
  normalized = {};
  return torch_.multiply_by_parameter(rounded, weight, sizes_.hidden);
}

/// Its four intermediate products are locals, held until both results are there.
std::pair<Tensor, Tensor> Torchtitan::rotated(const Tensor& q, const Tensor& k) {
  const Tensor q_pairs = torch_.cast(q, Dtype::f32);
  const Tensor k_pairs = torch_.cast(k, Dtype::f32);
  const Tensor q_turned = torch_.rotate(q_pairs, turns_);
  const Tensor k_turned = torch_.rotate(k_pairs, turns_);
  Tensor q_out = torch_.cast(q_turned, q.dtype);
  return {std::move(q_out), torch_.cast(k_turned, k.dtype)};
}

Tensor Torchtitan::attention(const TitanBlock& b, const Tensor& x) {
  const std::int64_t queries = sizes_.heads * sizes_.head_dim;
  const std::int64_t keys = sizes_.kv_heads * sizes_.head_dim;
  Tensor q = torch_.linear(x, b.wq, sizes_.hidden, queries);
  Tensor k = torch_.linear(x, b.wk, sizes_.hidden, keys);
  Tensor v = torch_.linear(x, b.wv, sizes_.hidden, keys);
  std::tie(q, k) = rotated(q, k);
  const std::int64_t times = sizes_.heads / sizes_.kv_heads;
  const Tensor all_keys = torch_.repeat_heads(k, sizes_.kv_heads, times);
  const Tensor all_values = torch_.repeat_heads(v, sizes_.kv_heads, times);
  k = all_keys;
  v = all_values;
  const Tensor out = torch_.attention(q, k, v, {sizes_.batch, sizes_.sequence, sizes_.heads, sizes_.head_dim});
  return torch_.linear(out, b.wo, queries, sizes_.hidden);
}

Tensor Torchtitan::feed_forward(const TitanBlock& b, const Tensor& x) {
  Tensor gate = torch_.linear(x, b.w1, sizes_.hidden, sizes_.ffn);
  gate = torch_.silu(gate);
  Tensor up = torch_.linear(x, b.w3, sizes_.hidden, sizes_.ffn);
  const Tensor product = torch_.multiply(gate, up);
  gate = {};
  up = {};
  return torch_.linear(product, b.w2, sizes_.ffn, sizes_.hidden);
}

Tensor Torchtitan::run(const TitanBlock& b, const Tensor& x) {
  Heap& heap = torch_.heap();
  const auto normed = [&](const char* name, const Tensor& input, int weight) {
    const Scope scope(heap, b.name + "." + name);
    return norm(input, weight);
  };
  Tensor h;
  {
    Tensor attended;
    {
      const Tensor input = normed("attention_norm", x, b.attention_norm);
      const Scope scope(heap, b.name + ".attention");
      attended = attention(b, input);
    }
    const Scope scope(heap, b.name);
    h = torch_.add(x, attended);
  }
  Tensor fed;
  {
    const Tensor input = normed("ffn_norm", h, b.ffn_norm);
    const Scope scope(heap, b.name + ".feed_forward");
    fed = feed_forward(b, input);
  }
  const Scope scope(heap, b.name);
  return torch_.add(h, fed);
}

Tensor Torchtitan::head(Tensor h) {
  {
    const Scope scope(torch_.heap(), "norm");
    h = norm(h, norm_);
  }
  const Scope scope(torch_.heap(), "output");
  torch_.heap().values = Category::logits_and_loss;
  return torch_.linear(h, output_, sizes_.hidden, sizes_.vocabulary);
}

}  // namespace vramfit::eager
