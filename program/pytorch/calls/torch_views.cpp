// Tensors seen as others: parts, halves, other layouts, and what joins them.
#include <limits>
#include <utility>

#include "program/pytorch/calls/torch.h"

namespace vramfit::eager {

namespace {

/// Elements of a gradient, which an input of `dtype` gets. None of them still hold its storage, unless that is
/// converted.
Tensor part(const Tensor& gradient, std::int64_t elements, Dtype dtype) {
  Tensor seen = gradient;
  if (elements == 0 && dtype != gradient.dtype) {
    seen = {};
    seen.dtype = dtype;
  }
  seen.elements = elements;
  seen.is_view = true;
  return seen;
}

}  // namespace

/// The node of the views runs on the order of its making, the flat tensor's own as soon as it can (AccumulateGrad).
void Torch::see_as_parts(const std::vector<int>& parameters, std::function<Tensor(const std::vector<Tensor>&)> join,
                         std::function<void(Tensor)> accumulate, Stream stream) {
  const auto node = [&](std::int64_t sequence, std::vector<Edge> next, Backward backward) {
    return Shared<Node>::make(Node{.sequence = sequence,
                                   .scope = heap_.scope,
                                   .values = heap_.values,
                                   .next = std::move(next),
                                   .saved = {},
                                   .backward = std::move(backward),
                                   .before = {},
                                   .stream = stream});
  };
  const auto flat = node(std::numeric_limits<std::int64_t>::max(), {},
                         [accumulate = std::move(accumulate)](Tensor& g, const std::vector<Tensor>&) {
                           accumulate(std::exchange(g, {}));
                           return std::vector<Tensor>{};
                         });
  const auto views = node(sequence_++, {{.node = flat, .elements = 0}},
                          [join = std::move(join)](Tensor& g, const std::vector<Tensor>& others) {
                            std::vector<Tensor> gradients{g};
                            gradients.insert(gradients.end(), others.begin(), others.end());
                            return std::vector<Tensor>{join(gradients)};
                          });
  views->further.resize(parameters.size() - 1);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Held& held = parameters_.at(static_cast<std::size_t>(parameters[i]));
    held.whole = views;
    held.output = static_cast<int>(i);
  }
}

/// Of a part, the gradient is written into zeros of x's size.
Tensor Torch::part_of(const Tensor& x, std::int64_t elements) {
  Tensor seen = x;
  seen.elements = elements;
  seen.is_view = true;
  return record(std::move(seen), {edge_to(x)}, {}, [this, whole = x.elements](Tensor& g, const std::vector<Tensor>&) {
    if (g.elements == whole) return std::vector<Tensor>{g};
    return std::vector<Tensor>{computed("aten::slice_backward", {reads(g)}, value(whole, g.dtype, "slice gradient"))};
  });
}

std::vector<Tensor> Torch::parts_of(const Tensor& x, std::size_t count) {
  return split(x, std::vector<std::int64_t>(count, x.elements / static_cast<std::int64_t>(count)));
}

std::vector<Tensor> Torch::split(const Tensor& x, const std::vector<std::int64_t>& sizes) {
  Tensor first = x;
  first.is_view = true;
  first =
      record(std::move(first), {edge_to(x)}, {}, [this, n = x.elements](Tensor& g, const std::vector<Tensor>& kept) {
        Accesses gradients{reads(g)};
        for (const Tensor& one : kept) gradients.push_back(reads(one));
        return std::vector<Tensor>{computed("aten::cat", std::move(gradients), value(n, g.dtype, "split gradient"))};
      });
  if (first.made_by != nullptr) first.made_by->further.resize(sizes.size() - 1);
  std::vector<Tensor> parts(sizes.size(), first);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    parts[i].output = static_cast<int>(i);
    parts[i].elements = sizes[i];
  }
  return parts;
}

Tensor Torch::joined(const Tensor& a, const Tensor& b) {
  Tensor both = value(a.elements + b.elements, a.dtype, "cat");
  Edge second = edge_to(b);
  if (b.elements > 0) second.dtype = b.dtype;
  return record(computed("aten::cat", {reads(a), reads(b)}, std::move(both)), {edge_to(a), std::move(second)}, {},
                [first = a.elements, rest = b.elements, dtype = b.dtype](Tensor& g, const std::vector<Tensor>&) {
                  return std::vector<Tensor>{part(g, first, g.dtype), part(g, rest, dtype)};
                });
}

Tensor Torch::rotate_half(const Tensor& x) {
  const Tensor first = part_of(x, x.elements / 2), second = part_of(x, x.elements / 2);
  const Tensor negated =
      record(computed("aten::neg", {reads(second)}, make_like(second, "neg")), {edge_to(second)}, {},
             [this](Tensor& g, const std::vector<Tensor>&) {
               return std::vector<Tensor>{computed("aten::neg", {reads(g)}, make_like(g, "neg gradient"))};
             });
  return joined(negated, first);
}

/// autograd/functions/tensor.cpp: CopySlices, and behind it AsStridedBackward0, which takes the view's place.
Tensor Torch::scale_view_in_place(const Tensor& x) {
  heap_.run("aten::mul_", {changes(x)});
  const auto copy = [this](const Tensor& g, const char* name, const char* what) {
    return computed(name, {reads(g)}, make_like(g, what));
  };
  Edge to_x = edge_to(x);
  Tensor scaled = record(x, {std::move(to_x)}, {}, [copy](Tensor& g, const std::vector<Tensor>&) {
    Tensor whole = copy(g, "aten::copy_", "gradient of what is seen");
    const Tensor slice = copy(whole, "aten::clone", "gradient of the view");
    copy(slice, "aten::mul", "mul gradient");
    return std::vector<Tensor>{std::move(whole)};
  });
  Edge to_scaled = edge_to(scaled);
  return record(std::move(scaled), {std::move(to_scaled)}, {}, [copy](Tensor& g, const std::vector<Tensor>&) {
    return std::vector<Tensor>{copy(g, "aten::as_strided", "gradient of the storage")};
  });
}

Tensor Torch::copied_in_backward(const Tensor& x) {
  Edge edge = edge_to(x);
  return record(x, {std::move(edge)}, {}, [this](Tensor& g, const std::vector<Tensor>&) {
    return std::vector<Tensor>{computed("aten::clone", {reads(g)}, make_like(g, "copied gradient"))};
  });
}

Tensor Torch::repeated(const Tensor& x, Tensor repeated, std::int64_t times) {
  return record(std::move(repeated), {edge_to(x)}, {}, [this, times](Tensor& g, const std::vector<Tensor>&) {
    return std::vector<Tensor>{
        computed("aten::sum", {reads(g)}, value(g.elements / times, g.dtype, "sum of repeated heads"))};
  });
}

Tensor Torch::repeat_heads(const Tensor& x, std::int64_t heads, std::int64_t times) {
  if (times == 1) return x;
  if (heads > 1) return copied_heads(x, times);
  Tensor seen = x;
  seen.elements = checked_mul(x.elements, times);
  return repeated(x, std::move(seen), times);
}

Tensor Torch::copied_heads(const Tensor& x, std::int64_t times) {
  const Tensor copy =
      computed("aten::clone", {reads(x)}, value(checked_mul(x.elements, times), x.dtype, "repeated heads"));
  return repeated(x, copy, times);
}

Tensor Torch::folded_heads(const Tensor& x, std::int64_t heads, std::int64_t batch, bool heads_first) {
  return heads_first || batch == 1 || heads == 1 ? x : clone(x);
}

}  // namespace vramfit::eager
