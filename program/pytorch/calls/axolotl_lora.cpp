#include "program/pytorch/calls/axolotl_lora.h"

#include <utility>

#include "program/pytorch/modelings/peft_adapters.h"

namespace vramfit::eager {

namespace {

Tensor as_view_of(Tensor x) {
  x.is_view = true;
  return x;
}

}  // namespace

LoraKernels::LoraKernels(Torch& torch, const Job& job)
    : torch_(torch), original_(dtype_of_loading(job)), rank_(job.lora.rank), drops_(job.lora.dropout > 0) {}

/// get_lora_parameters, which has FSDP2 gather them.
void LoraKernels::gather(const std::vector<Adapted>& linears) const {
  for (const Adapted& each : linears) {
    for (const int parameter : {each.by.lora_a, each.by.lora_b}) torch_.reach({}, parameter);
  }
}

/// One dropout for all linears that read x, before the node.
LoraKernels::Input LoraKernels::input_of(const Tensor& x) const {
  return {.x = x, .dropped = drops_ ? torch_.dropout(x) : Tensor{}};
}

bool LoraKernels::is_converted(int parameter, Dtype dtype) const {
  return torch_.parameters_.at(static_cast<std::size_t>(parameter)).dtype != dtype;
}

Tensor LoraKernels::converted(int parameter, std::int64_t elements, Dtype dtype) const {
  if (!is_converted(parameter, dtype)) return {};
  return torch_.computed("aten::_to_copy", {torch_.reads_parameter(parameter)},
                         torch_.value(elements, dtype, "adapter, converted"));
}

LoraKernels::Factors LoraKernels::factors(const Adapted& by, Dtype dtype) const {
  Factors made;
  made.a = converted(by.by.lora_a, checked_mul(rank_, by.inputs), dtype);
  made.b = converted(by.by.lora_b, checked_mul(rank_, by.outputs), dtype);
  return made;
}

program::Access LoraKernels::factor(const Tensor& converted, int parameter) const {
  return converted.storage ? reads(converted) : torch_.reads_parameter(parameter);
}

/// kernels/quantize.py: _ctypes_nf4_dequant, which makes room for the weights first, and adds the scales' offset in
/// place. Empty where they aren't in 4 bits.
Tensor LoraKernels::dequantized(const Adapted& by) const {
  const int parameter = by.by.weight;
  if (!torch_.is_quantized(parameter)) return {};
  const std::int64_t elements = checked_mul(by.inputs, by.outputs);
  Tensor weight = torch_.temporary(elements, original_, "weight, dequantized");
  const Tensor scales = torch_.dequantized_scales(parameter, elements);
  return torch_.computed("axolotl::dequantize", {torch_.reads_parameter(parameter), reads(scales)}, std::move(weight));
}

/// y += the adapter's share, by way of rows as long as its rank.
void LoraKernels::add_share(const Tensor& rows_in_rank, const Tensor& b, const Adapted& by, const Tensor& y) const {
  torch_.multiply_tile({reads(rows_in_rank), factor(b, by.by.lora_b), changes(y)},
                       {rows_in_rank.elements / rank_, by.outputs, rank_}, y.dtype);
}

/// matmul_lora
Tensor LoraKernels::product(const Input& input, const Adapted& by) const {
  const Dtype dtype = input.x.dtype;
  const std::int64_t rows = input.x.elements / by.inputs;
  Tensor y;
  {
    const Tensor weight = dequantized(by);
    y = torch_.value(checked_mul(rows, by.outputs), dtype, "linear");
    torch_.ensure_workspace();
    y = torch_.multiplied({reads(input.x), factor(weight, by.by.weight)}, {rows, by.outputs, by.inputs}, std::move(y));
  }
  const Factors adapter = factors(by, dtype);
  const Tensor in_rank = torch_.temporary(checked_mul(rows, rank_), dtype, "rows in the adapter's rank");
  torch_.multiply_tile({reads(input.read()), factor(adapter.a, by.by.lora_a), writes(in_rank)},
                       {rows, rank_, by.inputs}, dtype);
  add_share(in_rank, adapter.b, by, y);
  if (by.by.bias >= 0) torch_.heap_.run("aten::add_", {torch_.reads_parameter(by.by.bias), changes(y)});
  return as_view_of(std::move(y));
}

/// A checkpoint sees the parameters themselves, too.
void LoraKernels::keep(std::vector<Saved>& saved, const Factors& factors) const {
  for (const Tensor& each : {factors.a, factors.b}) {
    saved.push_back(torch_.save(each, torch_.has_gradients_ && (each.storage || torch_.checkpoints_.hook != nullptr)));
  }
}

/// Autograd converts gradients to their parameters' dtype.
std::vector<Edge> LoraKernels::edges_to(const Input& input, const std::vector<Adapted>& linears, Dtype dtype) const {
  std::vector<Edge> edges{torch_.edge_to(input.x)};
  if (input.dropped.storage) edges.push_back(torch_.edge_to(input.dropped));
  const auto add = [&](int parameter, std::int64_t elements) {
    edges.push_back(torch_.edge_to(parameter, elements));
    if (is_converted(parameter, dtype)) {
      edges.back().dtype = torch_.parameters_.at(static_cast<std::size_t>(parameter)).dtype;
    }
  };
  for (const Adapted& each : linears) {
    add(each.by.lora_a, rank_ * each.inputs);
    add(each.by.lora_b, rank_ * each.outputs);
  }
  return edges;
}

LoraKernels::Gradients LoraKernels::gradients(const Tensor& g, const Tensor& read, const Adapted& by,
                                              const Factors& kept) const {
  const std::int64_t rows = g.elements / by.outputs;
  const auto gradient = [&](int parameter, std::int64_t elements) {
    const Category category = is_converted(parameter, g.dtype) ? Category::temporaries : Category::gradients;
    return torch_.heap_.make(elements, g.dtype, category, "adapter's gradient");
  };
  Gradients made;
  made.in_rank = torch_.temporary(checked_mul(rows, rank_), g.dtype, "gradient in the adapter's rank");
  torch_.multiply_tile({reads(g), factor(kept.b, by.by.lora_b), writes(made.in_rank)}, {rows, rank_, by.outputs},
                       g.dtype);
  made.of_a = as_view_of(gradient(by.by.lora_a, rank_ * by.inputs));
  made.of_b = as_view_of(gradient(by.by.lora_b, rank_ * by.outputs));
  torch_.multiply_tile({reads(read), reads(made.in_rank), writes(made.of_a)}, {by.inputs, rank_, rows}, g.dtype);
  const Tensor in_rank = torch_.temporary(checked_mul(rank_, rows), g.dtype, "rows in the adapter's rank");
  torch_.multiply_tile({factor(kept.a, by.by.lora_a), reads(read), writes(in_rank)}, {rank_, rows, by.inputs}, g.dtype);
  torch_.multiply_tile({reads(in_rank), reads(g), writes(made.of_b)}, {rank_, by.outputs, rows}, g.dtype);
  return made;
}

/// dx += g times the frozen weights; the first of them makes dx.
void LoraKernels::add_product(const Tensor& g, const Adapted& by, Tensor& dx) const {
  const WorkShape shape{g.elements / by.outputs, by.inputs, by.outputs};
  const Tensor weight = dequantized(by);
  const program::Access factors = factor(weight, by.by.weight);
  if (dx.storage) return torch_.multiply_tile({reads(g), factors, changes(dx)}, shape, g.dtype);
  dx = torch_.value(checked_mul(shape.rows, shape.columns), g.dtype, "input gradient");
  torch_.ensure_workspace();
  dx = as_view_of(torch_.multiplied({reads(g), factors}, shape, std::move(dx)));
}

void LoraKernels::add_through_adapter(const Tensor& in_rank, const Adapted& by, const Factors& kept,
                                      const Tensor& dx) const {
  torch_.multiply_tile({reads(in_rank), factor(kept.a, by.by.lora_a), changes(dx)},
                       {in_rank.elements / rank_, by.inputs, rank_}, dx.dtype);
}

Tensor LoraKernels::zeros_like(const Tensor& x) const {
  return as_view_of(torch_.computed("aten::zeros_like", {}, torch_.make_like(x, "gradient of what adapters read")));
}

/// The gradient of what `down` read, in which it adds up.
Tensor LoraKernels::gradient_of_hidden(const Tensor& g, const Adapted& down, const Factors& kept) const {
  Tensor hidden;
  add_product(g, down, hidden);
  const std::int64_t rows = g.elements / down.outputs;
  const Tensor in_rank = torch_.temporary(checked_mul(rows, rank_), g.dtype, "gradient in the adapter's rank");
  torch_.multiply_tile({reads(g), factor(kept.b, down.by.lora_b), writes(in_rank)}, {rows, rank_, down.outputs},
                       g.dtype);
  add_through_adapter(in_rank, down, kept, hidden);
  return hidden;
}

/// Over gate and up it writes their gradients, and over the gradient of what `down` read that itself.
std::vector<Tensor> LoraKernels::gradients_of(const FeedForward& of, const Tensor& g,
                                              const std::vector<Tensor>& kept) const {
  const Factors of_gate{kept[4], kept[5]}, of_up{kept[6], kept[7]}, of_down{kept[8], kept[9]};
  const Tensor &dgate = kept[2], &dup = kept[3];
  const Tensor hidden = gradient_of_hidden(g, of.down, of_down);
  torch_.heap_.run("axolotl::gated_backward", {changes(hidden), changes(dgate), changes(dup)});
  const Gradients downs = gradients(g, hidden, of.down, of_down);
  const Gradients ups = gradients(dup, kept[1], of.up, of_up);
  const Gradients gates = gradients(dgate, kept[1], of.gate, of_gate);
  Tensor dx, of_dropped;
  if (of.wants) {
    add_product(dup, of.up, dx);
    add_product(dgate, of.gate, dx);
    if (drops_) of_dropped = zeros_like(dx);
    const Tensor& sum = drops_ ? of_dropped : dx;
    add_through_adapter(ups.in_rank, of.up, of_up, sum);
    add_through_adapter(gates.in_rank, of.gate, of_gate, sum);
  }
  std::vector<Tensor> made{std::move(dx)};
  if (drops_) made.push_back(std::move(of_dropped));
  for (const Gradients& each : {gates, ups, downs}) {
    made.push_back(each.of_a);
    made.push_back(each.of_b);
  }
  return made;
}

/// LoRA_MLP
Tensor LoraKernels::feed_forward(const Tensor& x, const Adapted& gate, const Adapted& up, const Adapted& down) const {
  const std::vector<Adapted> linears{gate, up, down};
  gather(linears);
  const Input input = input_of(x);
  const Tensor activated = product(input, gate), factor_of_it = product(input, up);
  std::vector<Factors> kept_factors;
  Tensor y;
  {
    const Tensor hidden = torch_.computed("axolotl::gated", {reads(activated), reads(factor_of_it)},
                                          torch_.make_like(activated, "gated"));
    y = product({.x = hidden, .dropped = {}}, down);
    for (const Adapted& each : linears) kept_factors.push_back(factors(each, x.dtype));
  }
  std::vector<Saved> saved;
  for (const Tensor& each : {x, input.read(), activated, factor_of_it}) {
    saved.push_back(torch_.save(each, torch_.has_gradients_));
  }
  for (const Factors& each : kept_factors) keep(saved, each);
  const FeedForward of{.gate = gate, .up = up, .down = down, .wants = x.wants_gradient};
  return torch_.record(std::move(y), edges_to(input, linears, x.dtype), std::move(saved),
                       [of, *this](Tensor& g, const std::vector<Tensor>& kept) { return gradients_of(of, g, kept); });
}

/// LoRA_QKV, which makes x's gradient whether it is wanted or not.
std::array<Tensor, 3> LoraKernels::queries_keys_values(const Tensor& x, const std::array<Adapted, 3>& linears) const {
  gather({linears.begin(), linears.end()});
  const Input input = input_of(x);
  std::array<Tensor, 3> made;
  for (std::size_t i = 0; i < linears.size(); ++i) made.at(i) = product(input, linears.at(i));
  std::array<Factors, 3> kept_factors;
  for (std::size_t i = 0; i < linears.size(); ++i) kept_factors.at(i) = factors(linears.at(i), x.dtype);
  std::vector<Saved> saved;
  for (const Tensor& each : {x, input.read()}) saved.push_back(torch_.save(each, torch_.has_gradients_));
  for (const Factors& each : kept_factors) keep(saved, each);
  const bool drops = drops_;
  made[0] = torch_.record(std::move(made[0]), edges_to(input, {linears.begin(), linears.end()}, x.dtype),
                          std::move(saved), [=, *this](Tensor& g, const std::vector<Tensor>& kept) {
                            const std::array<Tensor, 3> of_results{g, kept[8], kept[9]};
                            std::array<Factors, 3> of_linears;
                            std::array<Gradients, 3> gradients_of_each;
                            for (std::size_t i = 0; i < linears.size(); ++i) {
                              of_linears.at(i) = {kept[2 + 2 * i], kept[3 + 2 * i]};
                              gradients_of_each.at(i) =
                                  gradients(of_results.at(i), kept[1], linears.at(i), of_linears.at(i));
                            }
                            Tensor dx;
                            for (std::size_t i = 0; i < linears.size(); ++i)
                              add_product(of_results.at(i), linears.at(i), dx);
                            const Tensor of_dropped = drops ? zeros_like(dx) : Tensor{};
                            for (std::size_t i = 0; i < linears.size(); ++i) {
                              add_through_adapter(gradients_of_each.at(i).in_rank, linears.at(i), of_linears.at(i),
                                                  drops ? of_dropped : dx);
                            }
                            std::vector<Tensor> results{std::move(dx)};
                            if (drops) results.push_back(of_dropped);
                            for (const Gradients& each : gradients_of_each) {
                              results.push_back(each.of_a);
                              results.push_back(each.of_b);
                            }
                            return results;
                          });
  if (made[0].made_by == nullptr) return made;
  made[0].made_by->further.resize(2);
  for (std::size_t i = 1; i < made.size(); ++i) {
    made.at(i).made_by = made[0].made_by;
    made.at(i).output = static_cast<int>(i);
    made.at(i).wants_gradient = true;
  }
  return made;
}

/// LoRA_O
Tensor LoraKernels::output(const Tensor& x, const Adapted& by) const {
  gather({by});
  const Input input = input_of(x);
  Tensor y = product(input, by);
  const Factors adapter = factors(by, x.dtype);
  std::vector<Saved> saved;
  keep(saved, adapter);
  for (const Tensor& each : {x, input.read()}) saved.push_back(torch_.save(each, torch_.has_gradients_));
  const bool drops = drops_;
  return torch_.record(std::move(y), edges_to(input, {by}, x.dtype), std::move(saved),
                       [=, *this](Tensor& g, const std::vector<Tensor>& kept) {
                         const Factors of{kept[0], kept[1]};
                         const Gradients made = gradients(g, kept[3], by, of);
                         Tensor dx;
                         add_product(g, by, dx);
                         std::vector<Tensor> results{dx};
                         if (drops) {
                           const Tensor share = torch_.make_like(dx, "gradient through the adapter");
                           add_through_adapter(made.in_rank, by, of, share);
                           results.push_back(as_view_of(torch_.computed("aten::mul", {reads(share)},
                                                                        torch_.make_like(dx, "dropped's gradient"))));
                         } else {
                           add_through_adapter(made.in_rank, by, of, dx);
                         }
                         results.push_back(made.of_a);
                         results.push_back(made.of_b);
                         return results;
                       });
}

}  // namespace vramfit::eager
