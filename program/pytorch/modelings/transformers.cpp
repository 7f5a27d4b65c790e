#include "program/pytorch/modelings/transformers.h"

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "base/error.h"
#include "job/fields/job_fields.h"
#include "program/pytorch/modelings/axolotl.h"
#include "program/pytorch/modelings/transformers_masks.h"

namespace vramfit::eager {

Transformers::Transformers(const Graph& graph, const Job& job, Torch& torch)
    : torch_(torch),
      adapters_(torch, job),
      may_be_cudnn_(job.attention == Attention::automatic || job.attention == Attention::cudnn),
      is_scored_(has_trl(job) && !is_classifier(job)),
      llama_(llama_graph(graph, job)),
      uses_liger_(liger_kernels(job, llama_)),
      liger_(torch),
      is_flash_attn_(job.attention == Attention::flash_attn),
      // PyTorch's kernels have no caps, as Gemma 2 may, and no sinks (gpt-oss): the library then has code of its own.
      is_eager_((is_gemma2(llama_) && !is_flash_attn_) || llama_.style.has_sinks || job.attention == Attention::math),
      packs_documents_(job.packs_documents),
      hidden_dtype_(hidden_dtype(graph, job, llama_.embedding)),
      scale_dtype_(scale_dtype(graph, job, llama_)),
      uses_axolotl_(axolotl_kernels(job, llama_, hidden_dtype_)),
      makes_all_first_(job.axolotl.copies_attention()),
      lora_kernels_(torch, job) {
  require_usual_attention(graph, job);
  require_code(job);
  require_experts(job);
}

void Transformers::require_code(const Job& job) const {
  const bool is_left_to_library = job.attention == Attention::automatic || job.attention == Attention::math;
  const auto refuse_kernel = [&](const char* what) {
    constexpr auto kWhy =
        "--attention {} of a model with {}, which transformers computes otherwise (--attention auto is)";
    throw NotModelled(fmt::format(kWhy, job_field_named("attention").get(job), what));
  };
  const bool has_masks = std::ranges::any_of(
      llama_.blocks, [&](const LlamaBlock& l) { return hides_keys(l.window, llama_.sizes.sequence); });
  if ((is_eager_ || is_flash_attn_) && llama_.attention_dropout > 0) {
    refuse_model(job, fmt::format("attention_dropout in {} (with PyTorch's kernels it is)",
                                  is_eager_ ? "eager attention" : "the flash-attn package"));
  }
  if (!llama_.style.is_packed && llama_.sizes.rotated_dims != llama_.sizes.head_dim) {
    refuse_model(job, "heads that are rotated in part");
  }
  if (llama_.style.has_sinks && !is_left_to_library) refuse_kernel("attention sinks");
  if (is_flash_attn_) return;
  if (is_gemma2(llama_) && !is_left_to_library) refuse_kernel("Gemma 2's scores");
  if (has_masks && !is_left_to_library) refuse_kernel("sliding windows");
  if (job.packs_documents && !is_left_to_library) refuse_kernel("masks of packed documents");
}

std::vector<Module> Transformers::modules() const {
  std::vector<Module> modules{{"embed_tokens", {llama_.embedding}}};
  for (const LlamaBlock& l : llama_.blocks) {
    Module layer{.name = l.name, .parameters = {}};
    const auto add = [&](int parameter) {
      if (parameter >= 0) layer.parameters.push_back(parameter);
    };
    add(l.sinks);
    for (const LinearParameters& linear : {l.q, l.k, l.v, l.o, l.qkv}) append_parameters(layer.parameters, linear);
    for (const int parameter : {l.q_norm, l.k_norm}) add(parameter);
    for (const LinearParameters& linear : {l.gate, l.up, l.gate_up, l.down}) {
      append_parameters(layer.parameters, linear);
    }
    // Mixtral makes its router first, Qwen last: as the parameters are numbered.
    const LlamaExperts& e = l.experts;
    std::array mixture{e.router, e.router_bias, e.gate_up, e.gate_up_bias, e.down, e.down_bias};
    std::ranges::sort(mixture);
    for (const int parameter : mixture) add(parameter);
    for (const int parameter : {l.attention_norm, l.post_attention_norm, l.ffn_norm, l.post_ffn_norm}) add(parameter);
    modules.push_back(std::move(layer));
  }
  modules.push_back({"lm_head", {llama_.norm}});
  modules.back().beside = llama_.scores;
  if (llama_.scores.empty() && llama_.output != llama_.embedding) modules.back().parameters.push_back(llama_.output);
  return modules;
}

Tensor Transformers::constant(const char* call, const Accesses& inputs, std::int64_t elements, Dtype dtype,
                              const char* what) {
  return torch_.computed(call, inputs, torch_.heap().make(elements, dtype, Category::activations, what));
}

void Transformers::load() {
  const auto buffer = [&](std::int64_t elements, Dtype dtype, const char* what) {
    Tensor made = torch_.heap().make(elements, dtype, Category::workspace, what);
    torch_.heap().run("aten::_to_copy", {writes(made)}, {.bytes = 0});
    return made;
  };
  if (llama_.style.scales_embedding) {
    const Scope scope(torch_.heap(), "embed_tokens");
    embedding_scale_ = buffer(1, scale_dtype_, "embed_scale");
  }
  const Scope scope(torch_.heap(), "rotary_emb");
  const std::int64_t pairs = llama_.sizes.rotated_dims / 2;
  for (std::size_t table = 0; table < llama_.rope_tables; ++table) {
    frequencies_.push_back(buffer(pairs, Dtype::f32, "inv_freq"));
    original_frequencies_.push_back(buffer(pairs, Dtype::f32, "original_inv_freq"));
  }
}

void Transformers::convert_buffers(Dtype dtype) {
  const auto convert = [&](Tensor& buffer, const char* what) {
    if (!buffer.storage || buffer.dtype == dtype) return;
    Tensor converted = torch_.heap().make(buffer.elements, dtype, Category::workspace, what);
    buffer = torch_.computed("aten::_to_copy", {reads(buffer)}, std::move(converted));
  };
  {
    const Scope scope(torch_.heap(), "embed_tokens");
    convert(embedding_scale_, "embed_scale, converted for good");
  }
  const Scope scope(torch_.heap(), "rotary_emb");
  for (std::size_t table = 0; table < frequencies_.size(); ++table) {
    convert(frequencies_[table], "inv_freq, converted for good");
    convert(original_frequencies_[table], "original_inv_freq, converted for good");
  }
}

Tensor Transformers::embed(const Tensor& ids) {
  const Scope scope(torch_.heap(), "embed_tokens");
  const Submodule module = submodule({llama_.embedding});
  const Tensor input = torch_.enter(module, ids);
  embedded_ = torch_.embedding(input, llama_.embedding, llama_.sizes.vocabulary, llama_.sizes.hidden, hidden_dtype_);
  if (llama_.style.scales_embedding) {
    const bool has_its_type = embedding_scale_.dtype == hidden_dtype_;
    const Tensor scale = has_its_type ? embedding_scale_
                                      : constant("aten::_to_copy", {reads(embedding_scale_)}, 1, hidden_dtype_,
                                                 "embed_scale, converted");
    embedded_ = torch_.multiply_by_constant(embedded_, scale);
  }
  if (adapters_.need_input_gradients()) embedded_ = torch_.require_gradient(std::move(embedded_));  // the first hook
  embedded_ = torch_.leave(module, std::move(embedded_));
  if (adapters_.need_input_gradients_again()) embedded_.wants_gradient = true;
  return embedded_;
}

Tensor Transformers::multiplied_embedding(Tensor embedded) {
  if (!llama_.style.multiplies) return embedded;
  const Scope scope(torch_.heap(), "embed_tokens");
  embedded = {};
  embedded_ = torch_.scale(embedded_);
  return embedded_;
}

Transformers::Rotations Transformers::rotations_of(const Tensor& frequencies) {
  const std::int64_t dims = checked_mul(llama_.sizes.sequence, llama_.sizes.rotated_dims);
  const std::int64_t numbers = llama_.style.has_sinks ? dims / 2 : dims;
  const auto table = [&](const char* function, const char* what, const Tensor& angles) {
    const Tensor values = constant(function, {reads(angles)}, numbers, Dtype::f32, what);
    return constant("aten::mul", {reads(values)}, numbers, Dtype::f32, what);
  };
  Tensor angles;
  {
    const Tensor positions = constant("aten::_to_copy", {reads(ids_)}, llama_.sizes.sequence, Dtype::f32, "positions");
    const bool is_wide = frequencies.dtype == Dtype::f32;
    const Tensor wide = is_wide ? frequencies
                                : constant("aten::_to_copy", {reads(frequencies)}, frequencies.elements, Dtype::f32,
                                           "inv_freq, widened");
    angles = constant("aten::mul", {reads(positions), reads(wide)}, dims / 2, Dtype::f32, "angles");
  }
  const Tensor doubled = llama_.style.has_sinks
                             ? angles
                             : constant("aten::cat", {reads(angles)}, numbers, Dtype::f32, "angles of both halves");
  Rotations made{.cosines = table("aten::cos", "cosines", doubled), .sines = {}};
  made.sines = table("aten::sin", "sines", doubled);
  if (hidden_dtype_ == Dtype::f32) return made;
  const auto rounded = [&](const Tensor& x, const char* what) {
    return constant("aten::_to_copy", {reads(x)}, numbers, hidden_dtype_, what);
  };
  const Tensor cosines = rounded(made.cosines, "cosines, rounded");
  made.sines = rounded(made.sines, "sines, rounded");
  made.cosines = cosines;
  return made;
}

Tensor Transformers::prepare(Tensor embedded, const Tensor& mask, const Tensor& items) {
  Tensor h = multiplied_embedding(std::move(embedded));
  items_ = items;
  if (packs_documents_) {
    ids_ = mask;
  } else {
    const Scope scope(torch_.heap(), "model");
    const Tensor range = constant("aten::arange", {}, llama_.sizes.sequence, Dtype::i64, "range");
    ids_ = constant("aten::add", {reads(range)}, llama_.sizes.sequence, Dtype::i64, "positions");
  }
  make_masks(mask);
  const Scope scope(torch_.heap(), "rotary_emb");
  for (const Tensor& frequencies : frequencies_) {
    const Submodule module = submodule();
    const Tensor input = torch_.enter(module, h);
    rotations_.push_back(rotations_of(frequencies));
    torch_.leave(module, rotations_.back().cosines);
  }
  return h;
}

Tensor Transformers::linear(const Tensor& x, const LinearParameters& by, std::int64_t inputs, std::int64_t outputs) {
  const bool is_quantized = torch_.is_quantized(by.weight);
  const Submodule module = submodule({by.weight, by.bias});
  const auto plain = [&](const Tensor& x_of_caller) {
    const Tensor y = torch_.enter(module, x_of_caller);
    return torch_.leave(module, is_quantized ? adapters_.quantized(y, by, inputs, outputs)
                                             : torch_.linear(y, by.weight, inputs, outputs, by.bias));
  };
  if (by.lora_a < 0) return plain(x);
  const Submodule adapted{.name = module.name + " adapted", .parameters = {}};
  const Tensor input = torch_.enter(adapted, x);
  return torch_.leave(adapted, adapters_.added(plain(input), input, by, inputs, outputs, adapted.name));
}

/// Named after its place and its own parameters; -1: there is none.
Submodule Transformers::submodule(const std::vector<int>& parameters) const {
  Submodule module{.name = torch_.heap().scope, .parameters = {}};
  for (const int parameter : parameters) {
    if (parameter < 0) continue;
    module.name += fmt::format(" {}", parameter);
    module.parameters.push_back(parameter);
  }
  return module;
}

/// Gemma's: (x * w) in fp32, where Llama's is x * w in x's type.
Tensor Transformers::norm_with_one(const Tensor& x, int weight, std::int64_t width) {
  Tensor h;
  {
    const Tensor wide = torch_.cast(x, Dtype::f32);
    Tensor scale = torch_.mean_of_rows(torch_.power(wide), width);
    scale = torch_.add_scalar(scale);
    scale = torch_.rsqrt(scale);
    h = torch_.multiply_rows(wide, scale);
  }
  h = torch_.multiply_columns(h, torch_.one_plus(weight, hidden_dtype_, width));
  return torch_.cast(h, x.dtype);
}

Tensor Transformers::norm(const Tensor& x, int weight, std::int64_t width, HeadsApart apart) {
  const Submodule module = submodule({weight});
  const Tensor input = torch_.enter(module, x);
  return torch_.leave(module, normed(input, weight, width, apart));
}

Tensor Transformers::normed(const Tensor& x, int weight, std::int64_t width, HeadsApart apart) {
  if (uses_liger_.norm) {
    return liger_.rms_norm(x, {.weight = weight,
                               .width = width,
                               .in_place = uses_liger_.in_place,
                               .input_lies_apart = apart.input,
                               .gradient_lies_apart = apart.gradient});
  }
  return llama_.style.adds_one_to_norms ? norm_with_one(x, weight, width) : plain_norm(x, weight, width);
}

/// `variance` and the widened input are locals, held until the product with the weight is there.
Tensor Transformers::plain_norm(const Tensor& x, int weight, std::int64_t width) {
  Tensor h = torch_.cast(x, Dtype::f32);
  const Tensor variance = torch_.mean_of_rows(torch_.power(h), width);
  {
    const Tensor scale = torch_.rsqrt(torch_.add_scalar(variance));
    h = torch_.multiply_rows(h, scale);
  }
  if (llama_.style.has_sinks) return torch_.cast(torch_.parameter_times(weight, hidden_dtype_, h, width), x.dtype);
  return torch_.parameter_times(weight, hidden_dtype_, torch_.cast(h, x.dtype), width);
}

Tensor Transformers::activated(const Tensor& x) {
  Submodule module = submodule();
  module.name += ".act_fn";
  const Tensor input = torch_.enter(module, x);
  return torch_.leave(module, llama_.style.activation == Activation::silu ? torch_.silu(input) : torch_.gelu(input));
}

Tensor Transformers::feed_forward(const LlamaBlock& l, const Tensor& x, Tensor& beside) {
  if (l.experts.router >= 0) return mixture(l.experts, x, beside);
  Tensor product;
  if (llama_.style.is_packed) {
    std::vector<Tensor> halves = torch_.parts_of(linear(x, l.gate_up, llama_.sizes.hidden, 2 * llama_.sizes.ffn), 2);
    const Tensor& gate = halves[0];
    Tensor& up = halves[1];
    if (uses_liger_.gate) {
      return linear(liger_.gated(gate, up, true), l.down, llama_.sizes.ffn, llama_.sizes.hidden);
    }
    up = torch_.multiply(up, activated(gate));
    return linear(up, l.down, llama_.sizes.ffn, llama_.sizes.hidden);
  }
  const LlamaSizes& s = llama_.sizes;
  if (uses_axolotl_.mlp) {
    return lora_kernels_.feed_forward(x, {l.gate, s.hidden, s.ffn}, {l.up, s.hidden, s.ffn}, {l.down, s.ffn, s.hidden});
  }
  if (uses_liger_.gate) {
    const Tensor gate = linear(x, l.gate, llama_.sizes.hidden, llama_.sizes.ffn);
    const Tensor up = linear(x, l.up, llama_.sizes.hidden, llama_.sizes.ffn);
    product = liger_.gated(gate, up, false);
  } else {
    const Tensor gate = activated(linear(x, l.gate, llama_.sizes.hidden, llama_.sizes.ffn));
    product = torch_.multiply(gate, linear(x, l.up, llama_.sizes.hidden, llama_.sizes.ffn));
  }
  return linear(product, l.down, llama_.sizes.ffn, llama_.sizes.hidden);
}

CheckpointBody Transformers::block(std::size_t number) {
  const LlamaBlock& layer = llama_.blocks.at(number);
  const Positions positions{.ids = ids_,
                            .items = items_,
                            .rotations = rotations_.at(static_cast<std::size_t>(layer.rope_table)),
                            .mask = layer.window > 0 ? window_mask_ : mask_,
                            .documents = documents_};
  return [this, &layer, positions](const Tensor& x) { return run(layer, x, positions); };
}

/// Phi-3's dropouts behind attention and feed-forward drop nothing, but are modules.
Tensor Transformers::after(const LlamaBlock& l, const char* name, Tensor y) {
  if (!llama_.style.is_packed) return y;
  const Submodule module{.name = l.name + "." + name, .parameters = {}};
  return torch_.leave(module, torch_.enter(module, y));
}

Tensor Transformers::run(const LlamaBlock& l, const Tensor& x, const Positions& positions) {
  Heap& heap = torch_.heap();
  const auto in = [&](const char* name, const auto& code) {
    const Scope scope(heap, l.name + "." + name);
    return code();
  };
  const auto normed = [&](const char* name, const Tensor& y, int weight) {
    return in(name, [&] { return norm(y, weight, llama_.sizes.hidden); });
  };
  const bool has_post_norms = llama_.style.has_post_norms;
  Tensor h = normed("input_layernorm", x, l.attention_norm);
  Attended attended = in("self_attn", [&] {
    Submodule module = submodule();
    module.is_called_by_names = true;
    const Tensor input = torch_.enter(module, h);
    Attended made = attention(l, input, positions);
    made.out = torch_.leave(module, std::move(made.out));
    return made;
  });
  h = std::move(attended.out);
  h = after(l, "resid_attn_dropout", std::move(h));
  if (has_post_norms) h = normed("post_attention_layernorm", h, l.post_attention_norm);
  const Scope scope(heap, l.name);
  h = torch_.add(x, multiplied(h));
  const Tensor residual = h;
  h = normed(has_post_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm", h, l.ffn_norm);
  h = in("mlp", [&] {
    const Submodule module = submodule();
    const Tensor input = torch_.enter(module, h);
    return torch_.leave(module, feed_forward(l, input, attended.probabilities));
  });
  if (has_post_norms) h = normed("post_feedforward_layernorm", h, l.post_ffn_norm);
  h = after(l, "resid_mlp_dropout", std::move(h));
  return torch_.add(residual, multiplied(h));
}

Tensor Transformers::head(Tensor h, const std::function<Tensor(Tensor)>& before_output) {
  {
    const Scope scope(torch_.heap(), "norm");
    h = norm(h, llama_.norm, llama_.sizes.hidden);
  }
  ids_ = items_ = mask_ = window_mask_ = {};
  documents_ = {};
  rotations_.clear();
  embedded_ = {};
  h = before_output(std::move(h));
  hidden_ = h;
  const Scope scope(torch_.heap(), "lm_head");
  torch_.heap().values = Category::logits_and_loss;
  if (is_scored_ || uses_liger_.fused_loss) return h;
  const Submodule module = submodule({llama_.output});
  const Tensor input = torch_.enter(module, h);
  return torch_.leave(module, torch_.linear(input, llama_.output, llama_.sizes.hidden, llama_.sizes.outputs));
}

Tensor Transformers::multiplied(const Tensor& x) { return llama_.style.multiplies ? torch_.scale(x) : x; }

LossKernel Transformers::loss_kernel() const {
  if (uses_liger_.fused_loss) return LossKernel::liger_fused;
  return uses_liger_.cross_entropy ? LossKernel::liger : LossKernel::library;
}

Tensor Transformers::finish(Tensor logits) {
  // TRL's kernels scale and cap logits within a tile, and Liger's cap them within a chunk.
  if (is_scored_ || uses_liger_.fused_loss || !llama_.scores.empty()) return logits;
  if (llama_.style.multiplies) logits = torch_.divide(logits);
  if (!llama_.style.caps_logits) return logits;
  const Scope scope(torch_.heap(), "softcap");
  logits = torch_.divide(logits);
  logits = torch_.tanh(logits);
  return torch_.scale(logits);
}

}  // namespace vramfit::eager
