#include "program/ops/attention.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "program/model_flops.h"
#include "program/ops/rules.h"

namespace vramfit {

std::int64_t flash_splits(std::int64_t heads, std::int64_t sequence, std::int64_t head_dim, const Device& device) {
  const std::int64_t slots = 2 * static_cast<std::int64_t>(device.sm_count);
  const std::int64_t blocks = checked_mul(heads, ceil_div(sequence, 64));
  if (slots == 0 || static_cast<double>(blocks) >= 0.8 * static_cast<double>(slots)) return 1;
  const std::int64_t keys_a_block = head_dim <= 64 ? 256 : (head_dim <= 128 ? 128 : 64);
  const std::int64_t key_blocks = ceil_div(sequence, keys_a_block);
  const std::int64_t most = std::min({std::int64_t{128}, slots, key_blocks});
  const auto eligible = [&](std::int64_t n) {
    return n == 1 || ceil_div(key_blocks, n) != ceil_div(key_blocks, n - 1);
  };
  const auto efficiency = [&](std::int64_t n) {
    const double waves = static_cast<double>(blocks * n) / static_cast<double>(slots);
    return waves / static_cast<double>(ceil_div(blocks * n, slots));
  };
  double best = 0;
  for (std::int64_t n = 1; n <= most; ++n) best = eligible(n) ? std::max(best, efficiency(n)) : best;
  for (std::int64_t n = 1; n <= most; ++n) {
    if (eligible(n) && efficiency(n) >= 0.85 * best) return n;
  }
  return 1;
}

bool has_large_blocks(const Device& device) {
  const int capability = device.compute_capability;
  return capability >= 80 && capability != 86 && capability != 89 && capability < 120;
}

/// A lock and the block of queries for each. Source: mem_eff_attention/kernel_backward.h (workspace_elements_gq); block
/// sizes are those of the kernel that LibTorch picks for the type and head_dim (cutlassB.h), the largest that fits into
/// the shared memory of a block.
std::int64_t efficient_dq_bytes(std::int64_t heads, std::int64_t sequence, std::int64_t head_dim,
                                const Device& device) {
  const std::int64_t queries = head_dim > 64 && has_large_blocks(device) ? 128 : 64, columns = 64;
  const std::int64_t blocks = checked_mul(ceil_div(sequence, queries), ceil_div(head_dim, columns));
  return checked_mul(heads, checked_mul(blocks, 16 + 4 * queries * columns));
}

namespace {

/// Queries that the CPU path scores at a time: [128, S] of fp32 stays in cache for the sequences a CPU trains on.
constexpr std::int64_t kQueryBlock = 128;

struct Sizes {
  std::int64_t batch = 0, sequence = 0, heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t query_elements() const {
    return checked_mul(checked_mul(batch, sequence), checked_mul(heads, head_dim));
  }
  std::int64_t rows() const { return checked_mul(checked_mul(batch, heads), sequence); }
};

Sizes sizes_of(const OpContext& context) {
  const Attributes& a = context.op.attributes;
  return {context.shape.batch, context.shape.sequence, a.heads, a.kv_heads, a.head_dim};
}

/// CPU: one head at a time, a block of queries against all keys. Products need fp32 operands, so 16-bit inputs are
/// copied a head at a time.
void add_cpu_steps(const OpContext& context, Rule& rule) {
  const Sizes s = sizes_of(context);
  const std::int64_t scores = checked_mul(std::min(s.sequence, kQueryBlock), s.sequence);
  const std::int64_t head = checked_mul(s.sequence, s.head_dim);
  const bool copies = context.compute() != Dtype::f32;
  const auto add = [](std::vector<Step>& steps, std::int64_t elements, std::initializer_list<const char*> names) {
    for (const char* name : names) steps.push_back(temporary(name, elements, Dtype::f32));
  };
  add(rule.forward, scores, {"scores"});
  if (copies) add(rule.forward, head, {"q32", "k32", "v32", "out32"});
  add(rule.backward, scores, {"scores", "dscores"});
  add(rule.backward, s.rows(), {"delta"});
  if (copies) add(rule.backward, head, {"q32", "k32", "v32", "dout32", "dq32", "dk32", "dv32"});
}

/// The gradients of q, k and v, all of which the call always computes; one that isn't needed is a temporary.
std::vector<Step> gradient_steps(const Sizes& s, const Needs& needs, Dtype dtype) {
  const std::int64_t keys = checked_mul(checked_mul(s.batch, s.sequence), checked_mul(s.kv_heads, s.head_dim));
  std::vector<Step> steps;
  for (int i = 0; i < 3; ++i) {
    const char* name = i == 0 ? "q_gradient" : (i == 1 ? "k_gradient" : "v_gradient");
    steps.push_back(wants_input(needs, static_cast<std::size_t>(i))
                        ? input_gradient_step(i)
                        : temporary(name, i == 0 ? s.query_elements() : keys, dtype));
  }
  return steps;
}

/// at::_flash_attention_forward / _backward of LibTorch 2.11: allocations in the order of its traces.
void add_flash_steps(const OpContext& context, const Needs& needs, Rule& rule) {
  const Sizes s = sizes_of(context);
  rule.outputs_inside = rule.gradients_inside = true;
  rule.forward = {output_step(0), output_step(1)};
  const std::int64_t padded_dim = round_up(s.head_dim, 32);
  if (const std::int64_t splits = flash_splits(checked_mul(s.batch, s.heads), s.sequence, s.head_dim, context.device);
      splits > 1) {
    rule.forward.push_back(temporary("split_lse", checked_mul(splits, s.rows()), Dtype::f32));
    rule.forward.push_back(temporary("split_out", checked_mul(checked_mul(splits, s.rows()), padded_dim), Dtype::f32));
  }
  rule.forward.push_back(temporary("rng_state", 2, Dtype::i64));
  rule.forward.push_back(temporary("rng_unused", 1, Dtype::i64));

  rule.backward = gradient_steps(s, needs, context.compute());
  const std::int64_t padded_rows = checked_mul(checked_mul(s.batch, s.heads), round_up(s.sequence, 128));
  const std::int64_t copies =
      context.deterministic ? ceil_div(std::max(context.device.sm_count, 1), checked_mul(s.batch, s.heads)) : 1;
  rule.backward.push_back(temporary("softmax_d", padded_rows, Dtype::f32));
  rule.backward.push_back(temporary("dq_accum", checked_mul(checked_mul(padded_rows, padded_dim), copies), Dtype::f32));
  if (s.heads != s.kv_heads) {
    rule.backward.push_back(temporary("dk_expanded", s.query_elements(), context.compute()));
    rule.backward.push_back(temporary("dv_expanded", s.query_elements(), context.compute()));
  }
}

bool is_16_bit(const OpContext& context) { return context.compute() == Dtype::bf16 || context.compute() == Dtype::f16; }

/// at::_efficient_attention_forward / _backward: doesn't support grouped heads, so keys and values are expanded first
/// and their gradients summed afterwards. Backward needs delta = row sums of out * d out, computed in fp32 by ATen
/// calls.
void add_efficient_steps(const OpContext& context, const Needs& needs, Rule& rule) {
  const Sizes s = sizes_of(context);
  const bool expands = s.heads != s.kv_heads;
  rule.outputs_inside = true;
  rule.gradients_inside = !expands;
  if (expands) {
    for (std::vector<Step>* steps : {&rule.forward, &rule.backward}) {
      steps->push_back(temporary("k_expanded", s.query_elements(), context.compute()));
      steps->push_back(temporary("v_expanded", s.query_elements(), context.compute()));
    }
  }
  rule.forward.push_back(output_step(0));
  rule.forward.push_back(output_step(1));
  if (expands) {
    for (const char* name : {"dq", "dk_expanded", "dv_expanded"}) {
      rule.backward.push_back(temporary(name, s.query_elements(), context.compute()));
    }
  } else {
    const std::vector<Step> gradients = gradient_steps(s, needs, context.compute());
    rule.backward.insert(rule.backward.end(), gradients.begin(), gradients.end());
  }
  // In 16-bit types the kernel computes delta itself.
  if (!is_16_bit(context)) {
    rule.backward.push_back(temporary("out_product", s.query_elements(), Dtype::f32));
    rule.backward.push_back(temporary("delta_sums", s.rows(), Dtype::f32));
  }
  rule.backward.push_back(temporary("delta", s.rows(), Dtype::f32));
  if (!is_16_bit(context)) {
    rule.backward.push_back(release("out_product"));
    rule.backward.push_back(release("delta_sums"));
  }
  rule.backward.push_back(
      temporary("dq_accum", efficient_dq_bytes(checked_mul(s.batch, s.heads), s.sequence, s.head_dim, context.device),
                Dtype::u8));
}

/// Why at::_flash_attention_forward doesn't support the op; "" if it does.
std::string flash_refuses(const OpContext& context) {
  const Attributes& a = context.op.attributes;
  if (a.softcap != 0) return "with a softcap";
  if (!is_16_bit(context)) return "in fp32";
  if (context.device.compute_capability < 80) return "below compute capability 8.0";
  if (a.head_dim % 8 != 0 || a.head_dim > 256) return "with a head_dim above 256 or not a multiple of 8";
  return "";
}

/// The same for at::_efficient_attention_forward, which pads lse to 32 queries and reads rows of heads 16 bytes at a
/// time.
std::string efficient_refuses(const OpContext& context) {
  const Attributes& a = context.op.attributes;
  if (a.softcap != 0) return "with a softcap";
  if (context.shape.sequence % 32 != 0) return "with a sequence that is not a multiple of 32";
  if ((a.head_dim * dtype_bytes(context.compute())).n % 16 != 0)
    return "with heads that are not a multiple of 16 bytes";
  if (is_16_bit(context) && a.head_dim > 64) return "in 16 bits with a head_dim above 64";
  return "";
}

AttentionPath required(AttentionPath path, const char* flag, const std::string& refusal) {
  if (!refusal.empty()) throw NotModelled(fmt::format("--attention {} {} (--attention auto is)", flag, refusal));
  return path;
}

AttentionPath cuda_path(const OpContext& context) {
  switch (context.attention) {
    case Attention::automatic:
      if (flash_refuses(context).empty()) return AttentionPath::flash;
      return efficient_refuses(context).empty() ? AttentionPath::efficient : AttentionPath::math;
    case Attention::flash:
      return required(AttentionPath::flash, "flash", flash_refuses(context));
    case Attention::efficient:
      return required(AttentionPath::efficient, "efficient", efficient_refuses(context));
    case Attention::math:
      return AttentionPath::math;
    case Attention::cudnn:
      throw NotModelled("--attention cudnn");
    case Attention::flash_attn:
      break;
  }
  throw NotModelled("--attention flash-attn with --runtime vramfit (PyTorch's own is: --attention flash)");
}

}  // namespace

AttentionPath attention_path(const OpContext& context) {
  if (is_cuda(context)) return cuda_path(context);
  if (context.attention == Attention::math) return AttentionPath::math;
  if (context.attention != Attention::automatic) throw NotModelled("--attention other than auto and math on CPU");
  return AttentionPath::blocks;
}

namespace {

/// softmax(scale q k^T) v. Saves its inputs, out and one fp32 lse per row and head; the [S, S] probabilities are
/// recomputed from them block by block and never kept.
Rule rule_of_attention(const OpContext& context, const Needs& needs) {
  Rule rule;
  rule.saved = {input(0), input(1), input(2), output(0), output(1)};
  const GradientSource fresh{GradientSource::From::fresh, 0};
  rule.gradients = {fresh, fresh, fresh};
  switch (attention_path(context)) {
    case AttentionPath::blocks:
      add_cpu_steps(context, rule);
      break;
    case AttentionPath::flash:
      add_flash_steps(context, needs, rule);
      break;
    case AttentionPath::efficient:
      add_efficient_steps(context, needs, rule);
      break;
    case AttentionPath::math:
      add_math_steps(context, rule);
      break;
  }
  return rule;
}

/// Fused kernels have two products in forward, Q K^T and P V; backward makes Q K^T again, and a product for each of the
/// gradients of V, P, Q and K.
OpWork work_of_attention(const OpContext& context, const Needs& needs) {
  if (attention_path(context) == AttentionPath::math) return work_of_math_attention(context, needs);
  constexpr double kBackwardProducts = 5.0 / 2;
  const double flops = forward_flops(context.graph, context.op, context.shape), bytes = bytes_of(context);
  const auto kernel = [&](Work::Unit unit, double products, double passes, std::int64_t launches) {
    return Work{.unit = unit,
                .dtype = context.compute(),
                .launches = launches,
                .flops = products * flops,
                .bytes = passes * bytes,
                .shape = {.rows = context.shape.sequence, .columns = context.op.attributes.head_dim}};
  };
  OpWork work{.forward = {kernel(Work::Unit::attention, 1, 1, 1)}, .backward = {}};
  if (needs.any()) work.backward = {kernel(Work::Unit::attention_backward, kBackwardProducts, 2, 2)};
  return work;
}

}  // namespace

const OpRow op_rows::attention{.rule = rule_of_attention, .work = work_of_attention, .model_flops = flops_of_attention};

}  // namespace vramfit
