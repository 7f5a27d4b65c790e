// torchtune/modules/peft/dora.py: DoRALinear.
#include <utility>

#include "program/pytorch/modelings/torchtune.h"

namespace vramfit::eager {

/// initialize_dora_magnitude, of each rank's rows: what is sharded is multiplied where it is, with all of lora_a.
void Torchtune::load_magnitudes() {
  const LlamaSizes& s = llama_.sizes;
  const std::int64_t queries = s.heads * s.head_dim, keys = s.kv_heads * s.head_dim;
  const auto load = [&](const LinearParameters& by, std::int64_t inputs, std::int64_t outputs) {
    if (by.magnitudes < 0) return;
    const auto make = [&](std::int64_t elements, const char* what) {
      return torch_.heap().make(elements, compute_, Category::workspace, what);
    };
    const std::int64_t rows = ceil_div(outputs, shards_), elements = checked_mul(rows, inputs);
    Tensor whole;
    if (shards_ > 1) whole = make(checked_mul(s.lora_rank, inputs), "gathered lora_a");
    torch_.multiply_before_training();
    const Tensor product = torch_.computed("aten::mm", {}, make(elements, "adapter's matrix"));
    Tensor sum;
    {
      const Tensor scaled = torch_.computed("aten::mul", {reads(product)}, make(elements, "adapter's matrix, scaled"));
      sum = torch_.computed("aten::add", {reads(scaled)}, make(elements, "adapted matrix"));
    }
    torch_.computed("aten::linalg_vector_norm", {reads(sum)}, make(rows, "lengths"));
  };
  for (const LlamaBlock& b : llama_.blocks) {
    const Scope scope(torch_.heap(), b.name);
    load(b.q, s.hidden, queries);
    load(b.k, s.hidden, keys);
    load(b.v, s.hidden, keys);
    load(b.o, queries, s.hidden);
    load(b.gate, s.hidden, s.ffn);
    load(b.down, s.ffn, s.hidden);
    load(b.up, s.hidden, s.ffn);
  }
}

/// forward. The adapter's matrix is its product with ones on the diagonal, whose graph lives as long as the function.
Tensor Torchtune::with_direction(const Tensor& base, const Tensor& x, const LinearParameters& by, std::int64_t inputs,
                                 std::int64_t outputs) {
  const std::int64_t rank = llama_.sizes.lora_rank;
  const auto adapted = [&](const Tensor& y) {
    return torch_.linear(torch_.linear(y, by.lora_a, inputs, rank), by.lora_b, rank, outputs);
  };
  const Tensor dropped = drops_ ? torch_.dropout(x) : x;
  const Tensor change = adapted(dropped);
  const Tensor ones = torch_.identity(inputs, compute_);
  const Tensor matrix = adapted(ones);
  const Tensor lengths = torch_.norms_with_change(by.weight, {}, matrix, outputs);
  const Tensor factors = torch_.parameter_over(by.magnitudes, lengths, outputs);
  Tensor sum;
  {
    const Tensor of_base = torch_.row_times(torch_.add_scalar(factors), base);
    const Tensor of_change = torch_.scale(torch_.row_times(factors, change));
    sum = torch_.add(of_base, of_change);
  }
  return torch_.add(sum, base);
}

}  // namespace vramfit::eager
