#include "program/pytorch/calls/torch.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "job/cluster/reduce_scratch.h"
#include "program/pytorch/calls/kernels.h"

namespace vramfit::eager {

Torch::Torch(Recording& recording, Device device, std::size_t parameters)
    : heap_(recording), device_(std::move(device)), gradients_(parameters), parameters_(parameters) {}

Tensor Torch::value(std::int64_t elements, Dtype dtype, std::string_view what) {
  return heap_.make(elements, dtype, heap_.values, what);
}

Tensor Torch::temporary(std::int64_t elements, Dtype dtype, std::string_view what) {
  return heap_.make(elements, dtype, Category::temporaries, what);
}

Tensor Torch::computed(std::string_view name, Accesses inputs, Tensor output) {
  inputs.push_back(writes(output));
  heap_.run(name, inputs);
  return output;
}

void Torch::set_parameter(int parameter, const Tensor& tensor, bool is_trained) {
  Held& held = parameters_.at(static_cast<std::size_t>(parameter));
  held = {.buffer = tensor.storage.buffer(),
          .dtype = tensor.dtype,
          .is_trained = is_trained,
          .format = held.format,
          .part = tensor.part,
          .whole = std::move(held.whole),
          .output = held.output};
}

void Torch::exchange_models() {
  of_other_model_.resize(parameters_.size());
  std::swap(parameters_, of_other_model_);
  std::swap(hooks_, hooks_of_other_model_);
}

void Torch::set_frozen_parameter(int parameter, Tensor& tensor) {
  set_parameter(parameter, tensor, false);
  parameters_.at(static_cast<std::size_t>(parameter)).frozen = &tensor;
}

program::Access Torch::reads_parameter(int parameter) const {
  const Held& held = parameters_.at(static_cast<std::size_t>(parameter));
  return {.buffer = held.buffer, .how = program::How::read, .view = held.part};
}

Edge Torch::edge_to(const Tensor& input) {
  return {.sum = Edge::Sum::none,
          .node = input.made_by,
          .output = input.output,
          .parameter = -1,
          .elements = input.elements,
          .wanted = input.wants_gradient};
}

Edge Torch::edge_to(int parameter, std::int64_t elements) const {
  const Held& held = parameters_.at(static_cast<std::size_t>(parameter));
  return {.node = held.whole,
          .output = held.output,
          .parameter = held.is_trained && held.whole == nullptr ? parameter : -1,
          .elements = elements,
          .is_parameter = true,
          .wanted = held.is_trained};
}

Saved Torch::save(const Tensor& tensor, bool is_needed) const {
  if (!is_needed) return {};
  if (checkpoints_.hook != nullptr) return checkpoints_.hook->pack(tensor);
  return {.tensor = detached(tensor), .recomputed = nullptr};
}

Tensor Torch::unpack(const Saved& saved) {
  if (saved.absent != nullptr) return saved.absent->bring();
  if (saved.recomputed == nullptr) return saved.tensor;
  return saved.recomputed->frame->unpack(*saved.recomputed);
}

Tensor Torch::record(Tensor output, std::vector<Edge> next, std::vector<Saved> saved, Backward backward) {
  output.made_by.reset();
  output.output = 0;
  output.wants_gradient = has_gradients_ && std::ranges::any_of(next, &Edge::wanted);
  if (!output.wants_gradient) return output;
  output.made_by = Shared<Node>::make(Node{.sequence = sequence_++,
                                           .scope = heap_.scope,
                                           .values = heap_.values,
                                           .next = std::move(next),
                                           .saved = std::move(saved),
                                           .backward = std::move(backward),
                                           .before = {}});
  return output;
}

void Torch::accumulate(int parameter, Tensor gradient) {
  Tensor& mine = gradients_.at(static_cast<std::size_t>(parameter));
  if (mine.elements == 0) {
    mine = std::move(gradient);
  } else {
    heap_.run("aten::add_", {reads(gradient), changes(mine)});
  }
  gradient = {};
  if (on_gradient_) on_gradient_(parameter);
}

Tensor Torch::take_gradient(int parameter) {
  return std::exchange(gradients_.at(static_cast<std::size_t>(parameter)), {});
}

/// Over rows: with its scratch. Over columns: inside a thread block. More than 2 GiB are read in parts, between which
/// sums of 16 bits are kept in fp32 (Reduce.cuh: AccumulationBuffer).
Tensor Torch::sum_to(const Tensor& gradient, const Edge& edge) {
  const Category category = edge.is_parameter ? Category::gradients : heap_.values;
  if (gradient.elements == edge.elements) {
    if (!edge.dtype || gradient.dtype == *edge.dtype) return gradient;
    return computed("aten::_to_copy", {reads(gradient)},
                    heap_.make(edge.elements, *edge.dtype, category, "cast gradient"));
  }
  Tensor sum = heap_.make(edge.elements, gradient.dtype, category, "broadcast gradient");
  if (edge.sum == Edge::Sum::over_rows) {
    if (gradient.elements * dtype_bytes(gradient.dtype) >= 2 * kGiB) throw NotModelled("sums over more than 2 GiB");
    const ReduceScratch scratch = sum_over_rows(gradient.elements / edge.elements, edge.elements, device_);
    const Tensor partials = temporary(scratch.partials.n, Dtype::u8, "partial sums");
    const Tensor counters = temporary(scratch.counters.n, Dtype::u8, "reduction counters");
    sum.is_view = true;  // of a sum that keeps the rows' dimensions (ATen/ExpandUtils.h: _sum_to)
    return computed("aten::sum", {reads(gradient)}, std::move(sum));
  }
  const bool is_in_parts = gradient.elements * dtype_bytes(gradient.dtype) > 2 * kGiB;
  const Tensor so_far = temporary(is_in_parts && sum.dtype != Dtype::f32 ? sum.elements : 0, Dtype::f32, "sums so far");
  return computed("aten::sum", {reads(gradient)}, std::move(sum));
}

Torch::KeptWithLoss Torch::backward(const Tensor& loss, const std::function<void()>& at_end) {
  in_backward_ = true;
  Tensor one = heap_.make(1, loss.dtype, Category::logits_and_loss, "gradient of the loss");
  heap_.run("aten::ones_like", {writes(one)});
  const Tensor held = one;
  run_backward(*this, loss.made_by, std::move(one));
  at_end();
  in_backward_ = false;
  return std::exchange(kept_, {});
}

Tensor Torch::gradient_as(const Tensor& gradient, Dtype dtype) {
  if (gradient.dtype == dtype) return gradient;
  return computed("aten::_to_copy", {reads(gradient)}, value(gradient.elements, dtype, "cast gradient"));
}

Tensor Torch::cast(const Tensor& x, Dtype dtype) {
  if (x.dtype == dtype) return x;
  return record(
      computed("aten::_to_copy", {reads(x)}, value(x.elements, dtype, "cast")), {edge_to(x)}, {},
      [this, from = x.dtype](Tensor& g, const std::vector<Tensor>&) {
        return std::vector<Tensor>{computed("aten::_to_copy", {reads(g)}, value(g.elements, from, "cast gradient"))};
      });
}

Tensor Torch::power(const Tensor& x) {
  std::vector<Saved> saved{save(x, x.wants_gradient)};
  return record(
      computed("aten::pow", {reads(x)}, make_like(x, "pow")), {edge_to(x)}, std::move(saved),
      [this](Tensor& g, const std::vector<Tensor>& kept) {
        const Tensor power = computed("aten::pow", {reads(kept[0])}, make_like(g, "pow gradient: power"));
        const Tensor twice = computed("aten::mul", {reads(power)}, make_like(g, "pow gradient: factor"));
        return std::vector<Tensor>{computed("aten::mul", {reads(g), reads(twice)}, make_like(g, "pow gradient"))};
      });
}

Tensor Torch::mean_of_rows(const Tensor& x, std::int64_t width) {
  return record(computed("aten::mean", {reads(x)}, value(x.elements / width, x.dtype, "mean")), {edge_to(x)}, {},
                [this, n = x.elements](Tensor& g, const std::vector<Tensor>&) {
                  return std::vector<Tensor>{computed("aten::div", {reads(g)}, value(n, g.dtype, "mean gradient"))};
                });
}

Tensor Torch::with_gradient_of_result(const Tensor& x, const std::string& name) {
  return record(computed("aten::" + name, {reads(x)}, make_like(x, name)), {edge_to(x)}, {},
                [](Tensor& g, const std::vector<Tensor>&) { return std::vector<Tensor>{g}; });
}

Tensor Torch::by_number(const Tensor& x, const std::string& name) {
  return record(computed("aten::" + name, {reads(x)}, make_like(x, name)), {edge_to(x)}, {},
                [this, name](Tensor& g, const std::vector<Tensor>&) {
                  return std::vector<Tensor>{computed("aten::" + name, {reads(g)}, make_like(g, name + " gradient"))};
                });
}

Tensor Torch::divide_by(const Tensor& x, const Tensor& divisor) {
  std::vector<Saved> saved{save(divisor)};
  return record(
      computed("aten::div", {reads(x), reads(divisor)}, value(x.elements, wider(x.dtype, divisor.dtype), "div")),
      {edge_to(x)}, std::move(saved), [this, dtype = x.dtype](Tensor& g, const std::vector<Tensor>& kept) {
        const Tensor quotient = computed("aten::div", {reads(g), reads(kept[0])}, make_like(g, "div gradient"));
        return std::vector<Tensor>{gradient_as(quotient, dtype)};
      });
}

Tensor Torch::rsqrt(const Tensor& x) {
  Tensor y = computed("aten::rsqrt", {reads(x)}, make_like(x, "rsqrt"));
  std::vector<Saved> saved{save(y, x.wants_gradient)};
  return record(std::move(y), {edge_to(x)}, std::move(saved), [this](Tensor& g, const std::vector<Tensor>& kept) {
    const Tensor cube = computed("aten::pow", {reads(kept[0])}, make_like(g, "rsqrt gradient: cube"));
    const Tensor half = computed("aten::mul", {reads(g)}, make_like(g, "rsqrt gradient: half"));
    return std::vector<Tensor>{computed("aten::mul", {reads(half), reads(cube)}, make_like(g, "rsqrt gradient"))};
  });
}

Tensor Torch::dropout(const Tensor& x) {
  const Tensor mask = value(x.elements, Dtype::u8, "dropout mask");
  Tensor y = make_like(x, "dropout");
  heap_.run("aten::native_dropout", {reads(x), writes(y), writes(mask)});
  std::vector<Saved> saved{save(mask, x.wants_gradient)};
  return record(std::move(y), {edge_to(x)}, std::move(saved), [this](Tensor& g, const std::vector<Tensor>& kept) {
    return std::vector<Tensor>{
        computed("aten::native_dropout_backward", {reads(g), reads(kept[0])}, make_like(g, "dropout gradient"))};
  });
}

Tensor Torch::by_element(const Tensor& x, const std::string& name) {
  std::vector<Saved> saved{save(x, x.wants_gradient)};
  return record(computed("aten::" + name, {reads(x)}, make_like(x, name)), {edge_to(x)}, std::move(saved),
                [this, name](Tensor& g, const std::vector<Tensor>& kept) {
                  return std::vector<Tensor>{computed("aten::" + name + "_backward", {reads(g), reads(kept[0])},
                                                      make_like(g, name + " gradient"))};
                });
}

Tensor Torch::silu(const Tensor& x) { return by_element(x, "silu"); }

Tensor Torch::gelu(const Tensor& x) { return by_element(x, "gelu"); }

Tensor Torch::tanh(const Tensor& x) {
  Tensor y = computed("aten::tanh", {reads(x)}, make_like(x, "tanh"));
  std::vector<Saved> saved{save(y, x.wants_gradient)};
  return record(std::move(y), {edge_to(x)}, std::move(saved), [this](Tensor& g, const std::vector<Tensor>& kept) {
    return std::vector<Tensor>{
        computed("aten::tanh_backward", {reads(g), reads(kept[0])}, make_like(g, "tanh gradient"))};
  });
}

/// To fp32 the kernel converts fp16 itself, and the gradient back (SoftMax.cpp: softmax with a dtype). Backward
/// multiplies the gradient with the result first (SoftMax.cu: softmax_backward_cuda_out).
Tensor Torch::softmax(const Tensor& x, Dtype dtype) {
  const Tensor input = x.dtype == Dtype::f16 ? x : cast(x, dtype);
  Tensor y = computed("aten::_softmax", {reads(input)}, value(input.elements, dtype, "softmax"));
  std::vector<Saved> saved{save(y, input.wants_gradient)};
  return record(
      std::move(y), {edge_to(input)}, std::move(saved),
      [this, dtype = input.dtype](Tensor& g, const std::vector<Tensor>& kept) {
        Tensor gradient = value(g.elements, dtype, "softmax gradient");
        const Tensor product = temporary(g.elements, g.dtype, "gradient times softmax");
        return std::vector<Tensor>{
            computed("aten::_softmax_backward_data", {reads(g), reads(kept[0]), writes(product)}, std::move(gradient))};
      });
}

Tensor Torch::add(const Tensor& a, const Tensor& b) {
  Tensor sum = value(a.elements, wider(a.dtype, b.dtype), "add");
  return record(computed("aten::add", {reads(a), reads(b)}, std::move(sum)), {edge_to(a), edge_to(b)}, {},
                [this, a_wants = a.wants_gradient, b_wants = b.wants_gradient, first = a.dtype, second = b.dtype](
                    Tensor& g, const std::vector<Tensor>&) {
                  std::vector<Tensor> gradients(2);
                  if (a_wants) gradients[0] = gradient_as(g, first);
                  if (b_wants) gradients[1] = gradient_as(g, second);
                  return gradients;
                });
}

Tensor Torch::add_to_each(const Tensor& a, const Tensor& b) {
  Tensor sum = add(a, b);
  if (sum.made_by != nullptr && a.elements != b.elements) sum.made_by->next[1].sum = Edge::Sum::over_rows;
  return sum;
}

Tensor Torch::multiply(const Tensor& a, const Tensor& b) {
  const bool a_wants = a.wants_gradient, b_wants = b.wants_gradient;
  std::vector<Saved> saved{save(b, a_wants), save(a, b_wants)};
  Edge first = edge_to(a), second = edge_to(b);
  if (a.dtype != b.dtype) {
    first.dtype = a.dtype;
    second.dtype = b.dtype;
  }
  Tensor product = value(std::max(a.elements, b.elements), wider(a.dtype, b.dtype), "mul");
  return record(computed("aten::mul", {reads(a), reads(b)}, std::move(product)), {std::move(first), std::move(second)},
                std::move(saved), [this, a_wants, b_wants](Tensor& g, const std::vector<Tensor>& kept) {
                  Tensor db, da;
                  if (b_wants) {
                    db = computed("aten::mul", {reads(g), reads(kept[1])}, make_like(g, "mul gradient of other"));
                  }
                  if (a_wants) da = computed("aten::mul", {reads(g), reads(kept[0])}, make_like(g, "mul gradient"));
                  return std::vector<Tensor>{std::move(da), std::move(db)};
                });
}

Tensor Torch::multiply_rows(const Tensor& x, const Tensor& scale) {
  Tensor y = multiply(x, scale);
  if (y.made_by != nullptr) y.made_by->next[1].sum = Edge::Sum::over_columns;
  return y;
}

Tensor Torch::multiply_columns(const Tensor& x, const Tensor& vector) {
  Tensor y = multiply(x, vector);
  if (y.made_by != nullptr) y.made_by->next[1].sum = Edge::Sum::over_rows;
  return y;
}

Tensor Torch::multiply_by_constant(const Tensor& x, const Tensor& constant) {
  std::vector<Saved> saved{save(constant, x.wants_gradient)};
  Tensor product = value(x.elements, wider(x.dtype, constant.dtype), "mul");
  return record(computed("aten::mul", {reads(x), reads(constant)}, std::move(product)), {edge_to(x)}, std::move(saved),
                [this, dtype = x.dtype](Tensor& g, const std::vector<Tensor>& kept) {
                  const Tensor dx = computed("aten::mul", {reads(g), reads(kept[0])}, make_like(g, "mul gradient"));
                  return std::vector<Tensor>{gradient_as(dx, dtype)};
                });
}

Tensor Torch::scale_in_place(const Tensor& x) {
  heap_.run("aten::mul_", {changes(x)});
  Edge edge = edge_to(x);
  return record(x, {std::move(edge)}, {}, [this](Tensor& g, const std::vector<Tensor>&) {
    return std::vector<Tensor>{computed("aten::mul", {reads(g)}, make_like(g, "mul gradient"))};
  });
}

Tensor Torch::require_gradient(Tensor x) {
  if (!has_gradients_) return x;
  keep_with_loss(detached(x));
  x.wants_gradient = true;
  x.made_by = leaf([this](Tensor& g) { keep_with_loss(g); });
  return x;
}

Shared<Node> Torch::leaf(std::function<void(Tensor& gradient)> take) const {
  return Shared<Node>::make(Node{.sequence = Node::kLeaf,
                                 .scope = heap_.scope,
                                 .values = heap_.values,
                                 .next = {},
                                 .saved = {},
                                 .backward =
                                     [take = std::move(take)](Tensor& g, const std::vector<Tensor>&) {
                                       take(g);
                                       return std::vector<Tensor>{};
                                     },
                                 .before = {}});
}

Tensor Torch::pass_through(Tensor x, std::function<void()> hook) {
  Edge edge = edge_to(x);
  return record(std::move(x), {std::move(edge)}, {}, [hook = std::move(hook)](Tensor& g, const std::vector<Tensor>&) {
    hook();
    return std::vector<Tensor>{g};
  });
}

Tensor Torch::rotate(const Tensor& x, const Tensor& table) {
  return record(computed("aten::mul", {reads(x), reads(table)}, make_like(x, "complex mul")), {edge_to(x)}, {},
                [this, elements = table.elements, constant = reads(table)](Tensor& g, const std::vector<Tensor>&) {
                  const Tensor conjugate =
                      computed("aten::conj_physical", {constant}, temporary(elements, Dtype::f32, "conjugate table"));
                  return std::vector<Tensor>{
                      computed("aten::mul", {reads(g), reads(conjugate)}, make_like(g, "complex mul gradient"))};
                });
}

}  // namespace vramfit::eager
