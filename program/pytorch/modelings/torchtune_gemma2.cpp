// torchtune/models/gemma2/_attention.py: Gemma2Attention, which computes all scores, and a mask in each layer.
#include <utility>

#include "program/pytorch/modelings/torchtune.h"

namespace vramfit::eager {

namespace {

/// A mask as that code makes it: what it has of it until it returns.
struct Mask {
  Tensor values, ones, window;
};

class Masker {
 public:
  Masker(Heap& heap, std::int64_t sequence) : heap_(heap), elements_(checked_mul(sequence, sequence)) {}

  Mask make(bool has_window) {
    Mask mask;
    {
      Tensor seen = call("aten::tril", call("aten::_to_copy", {}, Dtype::u8, "ones"), Dtype::u8, "keys that are seen");
      const Tensor hidden = call("aten::logical_not", seen, Dtype::u8, "keys that are not seen");
      const Tensor nothing = number(), lowest = number();
      mask.values = call("aten::where", hidden, Dtype::f32, "mask");
    }
    if (!has_window) return mask;
    mask.ones = call("aten::ones_like", mask.values, Dtype::f32, "ones, wide");
    {
      const Tensor upper = call("aten::triu", mask.ones, Dtype::f32, "keys of a window and after");
      const Tensor lower = call("aten::tril", mask.ones, Dtype::f32, "keys of a window and before");
      mask.window = call("aten::mul", lower, Dtype::f32, "window");
    }
    const Tensor seen = call("aten::eq", mask.window, Dtype::u8, "keys of the window");
    const Tensor lowest = number();
    mask.values = call("aten::where", seen, Dtype::f32, "mask with a window");
    return mask;
  }

 private:
  Tensor call(const char* name, const Tensor& x, Dtype dtype, const char* what) {
    Tensor made = heap_.make(elements_, dtype, Category::activations, what);
    heap_.run(name, {reads(x), writes(made)});
    return made;
  }
  Tensor number() {
    Tensor made = heap_.make(1, Dtype::f32, Category::activations, "number");
    heap_.run("aten::fill_", {writes(made)});
    return made;
  }

  Heap& heap_;
  std::int64_t elements_;
};

}  // namespace

Tensor Torchtune::capped_attention(const LlamaBlock& b, const Tensor& x) {
  const LlamaSizes& s = llama_.sizes;
  const std::int64_t queries = s.heads * s.head_dim, keys = s.kv_heads * s.head_dim, times = s.heads / s.kv_heads;
  const std::int64_t batch = checked_mul(s.batch, s.heads);
  const Tensor& table = tables_.at(static_cast<std::size_t>(b.rope_table)).values;
  const auto repeated = [&](const Tensor& y) { return torch_.repeat_heads(y, s.kv_heads, times); };
  const auto folded = [&](const Tensor& y) { return torch_.folded_heads(y, s.heads, s.batch, false); };
  Tensor q = rotated(torch_.seen_again(linear(x, b.q, s.hidden, queries)), table);
  Tensor k = linear(x, b.k, s.hidden, keys);
  Tensor v = linear(x, b.v, s.hidden, keys);
  k = rotated(torch_.seen_again(k), table);
  k = repeated(k);
  const bool is_apart = times == 1 && s.heads > 1;  // what the gradient of v's heads is in
  v = is_apart ? torch_.copied_in_backward(v) : repeated(torch_.seen_again(v));
  q = torch_.scale_view_in_place(q);
  Tensor output;
  {
    const Tensor first = folded(q), second = folded(k);
    output = torch_.batched_product(first, second, batch, {s.sequence, s.sequence, s.head_dim});
  }
  const Mask mask = Masker(torch_.heap(), s.sequence).make(b.window > 0);
  output = torch_.divide(output);
  output = torch_.tanh(output);
  output = torch_.scale(output);
  output = torch_.add(output, mask.values);
  output = torch_.cast(torch_.softmax(output, Dtype::f32), q.dtype);
  output = torch_.batched_product(output, folded(v), batch, {s.sequence, s.head_dim, s.sequence});
  if (s.heads > 1) {
    if (s.batch > 1) output = torch_.copied_in_backward(output);
    output = torch_.clone(output);
  }
  return linear(output, b.o, queries, s.hidden);
}

}  // namespace vramfit::eager
