// Mixtures of experts as transformers 5.23 computes them (integrations/moe.py: grouped_mm_experts_forward, and the
// routers of models/mixtral and models/qwen3_moe).
#include <utility>

#include <fmt/format.h>

#include "base/conflict.h"
#include "base/error.h"
#include "job/fields/job_fields.h"
#include "program/pytorch/modelings/transformers.h"
#include "program/stages/adapters.h"

namespace vramfit::eager {

namespace {

/// From here on, topk works with several thread blocks a row in memory of its own.
constexpr std::int64_t kManyExperts = 400;

}  // namespace

void Transformers::require_experts(const Job& job) const {
  for (const LlamaBlock& layer : llama_.blocks) {
    const LlamaExperts& e = layer.experts;
    if (e.router < 0) continue;
    // TRL asks models with experts for their routers' scores, and adds a loss of them (router_aux_loss_coef).
    if (is_scored_) refuse_model(job, "experts");
    // PEFT adapts the routers and experts of Mixtral and Qwen, and of gpt-oss attention alone.
    if (job.method == Method::qlora || (has_adapters(job) && !llama_.style.has_sinks))
      refuse_model(job, fmt::format("experts with --method {}", job_field_named("method").get(job)));
    if (job.optimizer == "adafactor") refuse_model(job, "experts with --optimizer adafactor");
    if (e.count >= kManyExperts) refuse_model(job, fmt::format("{} experts or more", kManyExperts));
    // Of sums over one row, gradients are views where others are copied.
    if (e.per_token == 1) refuse_model(job, "experts of which each token has one");
    require_grouped_products(job, e);
  }
}

/// PyTorch's kernels for groups begin each row at a multiple of 16 bytes, and so does what stands in for them.
void Transformers::require_grouped_products(const Job& job, const LlamaExperts& e) const {
  const std::int64_t aligned = 16 / dtype_bytes(hidden_dtype_).n;
  if (llama_.sizes.hidden % aligned != 0 || e.ffn % aligned != 0) {
    throw LibraryFails(fmt::format("experts of {} by {} in {} (torch._grouped_mm wants rows of a multiple of 16 bytes)",
                                   llama_.sizes.hidden, e.ffn, dtype_name(hidden_dtype_)));
  }
  const int capability = torch_.device().compute_capability;
  // There, gradients come in another order; products in fp16 weren't compared with traces.
  if (capability < 80) refuse_model(job, "experts on cards below compute capability 8.0");
  if (hidden_dtype_ == Dtype::f16) refuse_model(job, "experts in fp16");
  if (hidden_dtype_ == Dtype::bf16 && capability >= 100 && capability < 120) {
    refuse_model(job, "experts in bf16 on compute capability 10.x");
  }
}

/// gpt-oss' router chooses by logits, and rates the chosen alone.
Transformers::Routed Transformers::routed_by_logits(const LlamaExperts& e, const Tensor& rows) {
  Routed routed;
  routed.logits = torch_.linear(rows, e.router, llama_.sizes.hidden, e.count, e.router_bias);
  auto [chosen_logits, choices] = torch_.topk(routed.logits, e.count, e.per_token);
  routed.scores = torch_.softmax(chosen_logits, chosen_logits.dtype);
  routed.choices = std::move(choices);
  return routed;
}

/// The scores of each row's experts, and which these are; what the router's forward returns.
Transformers::Routed Transformers::routed(const LlamaExperts& e, const Tensor& x) {
  if (e.router_bias >= 0) return routed_by_logits(e, x);
  const Tensor rows = torch_.seen_again(x);
  Routed routed;
  routed.logits = torch_.linear(rows, e.router, llama_.sizes.hidden, e.count);
  // Qwen asks softmax for fp32; Mixtral converts before.
  const Tensor probabilities =
      torch_.softmax(e.keeps_wide_scores ? torch_.cast(routed.logits, Dtype::f32) : routed.logits, Dtype::f32);
  auto [scores, choices] = torch_.topk(probabilities, e.count, e.per_token);
  if (e.normalizes_scores) scores = torch_.normalize_rows(scores, e.per_token);
  if (!e.keeps_wide_scores) scores = torch_.cast(scores, routed.logits.dtype);
  routed.scores = std::move(scores);
  routed.choices = std::move(choices);
  return routed;
}

Tensor Transformers::gated(const Tensor& x) {
  const std::vector<Tensor> halves = torch_.parts_of(x, 2);
  const Tensor &gate = halves[0], &up = halves[1];
  return torch_.multiply(activated(gate), up);
}

/// gpt-oss': gates and ups take turns; (up + 1) * gate * sigmoid(alpha * gate), of both within their limits.
Tensor Transformers::gated_within_limits(const Tensor& x) {
  const std::int64_t half = x.elements / 2;
  Tensor gate = torch_.part_of(x, half), up = torch_.part_of(x, half);
  gate = torch_.clamp(gate, 1);
  up = torch_.clamp(up, 2);
  Tensor product;
  {
    const Tensor scaled = torch_.scale(gate);
    product = torch_.sigmoid(scaled);
  }
  product = torch_.multiply(gate, product);
  return torch_.multiply(torch_.add_scalar(up), product);
}

/// Rows in the order of their experts; the experts' products; rows in their old order, and each token's summed.
Tensor Transformers::chosen(const LlamaExperts& e, const Tensor& x, const Routed& routed) {
  const std::int64_t hidden = llama_.sizes.hidden, rows = routed.choices.elements;
  const Tensor flat_scores = torch_.seen_again(routed.scores);
  const auto [ids, order] = torch_.sorted(routed.choices);
  Tensor selected;
  {
    const Tensor tokens = constant("aten::floor_divide", {reads(order)}, rows, Dtype::i64, "tokens");
    selected = torch_.rows_at(x, tokens, hidden);
  }
  const Tensor scores = torch_.rows_at(flat_scores, order, 1);
  const Tensor numbers = constant("aten::_to_copy", {reads(ids)}, rows, Dtype::i32, "experts");
  const Tensor counts = torch_.histogram(numbers, e.count);
  const Tensor ends = torch_.running_sum(counts);
  Tensor biases;
  const auto multiplied = [&](const Tensor& by_rows, int matrices, int bias, std::int64_t outputs,
                              std::int64_t inputs) {
    const bool has_bias = bias >= 0;
    if (has_bias) biases = torch_.parameter_rows_at(bias, ids, e.count, outputs);
    const GroupedShape shape{e.count, rows, outputs, inputs, has_bias};
    Tensor y = torch_.grouped_product(by_rows, matrices, shape, ends);
    return has_bias ? torch_.add_in_place(std::move(y), biases) : y;
  };
  Tensor out = multiplied(selected, e.gate_up, e.gate_up_bias, 2 * e.ffn, hidden);
  out = e.gate_up_bias < 0 ? gated(out) : gated_within_limits(out);
  out = multiplied(out, e.down, e.down_bias, hidden, e.ffn);
  Tensor weighted = torch_.weighted_rows(out, scores);
  const Tensor inverse = torch_.inverse_order(order);
  weighted = torch_.rows_at(weighted, inverse, hidden);
  return torch_.cast(torch_.sum_of_neighbours(weighted, e.per_token), x.dtype);
}

/// gpt-oss gives scores, too, which the layer has in place of what its attention gave beside.
Tensor Transformers::mixture(const LlamaExperts& e, const Tensor& x, Tensor& beside) {
  const Tensor rows = torch_.seen_again(x);
  const Routed to = routed(e, rows);
  Tensor out = torch_.seen_again(chosen(e, rows, to));
  if (e.router_bias >= 0) beside = to.scores;
  return out;
}

}  // namespace vramfit::eager
