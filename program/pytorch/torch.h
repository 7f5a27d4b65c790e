// The ATen calls that PyTorch's models are made of, counted: what each allocates, in order, and saves for backward.
// CUDA, torch 2.11; kernels' own temporaries are in kernels.h.
#pragma once

#include <array>
#include <vector>

#include "job/cluster/device.h"
#include "program/ops/attention.h"
#include "program/pytorch/checkpoint.h"

namespace vramfit::eager {

/// Attention's sizes once the key and value heads are repeated.
struct AttentionShape {
  std::int64_t batch = 0, sequence = 0, heads = 0, head_dim = 0;
};

class Torch final : public Backend {
 public:
  Torch(Recording& recording, Device device, std::size_t parameters);

  Heap& heap() override { return heap_; }
  const Device& device() const { return device_; }
  CheckpointState& checkpoints() { return checkpoints_; }

  /// table[ids]; the table is `parameter`, of `rows` rows of `dtype`.
  Tensor embedding(const Tensor& ids, int parameter, std::int64_t rows, std::int64_t width, Dtype dtype);
  /// x times the transpose of `parameter` (outputs, inputs), x of rows of `inputs`; no bias.
  Tensor linear(const Tensor& x, int parameter, std::int64_t inputs, std::int64_t outputs);
  /// The same tensor where it has that type already.
  Tensor cast(const Tensor& x, Dtype dtype);
  Tensor square(const Tensor& x);
  Tensor mean_of_rows(const Tensor& x, std::int64_t width);
  Tensor add_scalar(const Tensor& x);
  Tensor rsqrt(const Tensor& x);
  /// By a number.
  Tensor divide(const Tensor& x);
  Tensor silu(const Tensor& x);
  Tensor add(const Tensor& a, const Tensor& b);
  Tensor multiply(const Tensor& a, const Tensor& b);
  /// Each row of x times its element of `scale`.
  Tensor multiply_rows(const Tensor& x, const Tensor& scale);
  /// Each row of x times `parameter`, a vector.
  Tensor multiply_by_parameter(const Tensor& x, int parameter, std::int64_t width);
  /// The complex product of pairs of x (fp32) with a constant table, which outlives backward.
  Tensor rotate(const Tensor& x, const Tensor& table);
  /// unsqueeze, expand, reshape: a copy with every one of `heads` `times` times. x itself for 1; one head needs no
  /// copy.
  Tensor repeat_heads(const Tensor& x, std::int64_t heads, std::int64_t times);
  /// scaled_dot_product_attention: flash in 16 bits, memory-efficient in fp32.
  Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionShape& shape);
  /// cross_entropy of fp32 logits: log_softmax and nll_loss.
  Tensor cross_entropy(const Tensor& logits, const Tensor& labels);

  /// x itself; `hook` runs when its gradient is there.
  Tensor pass_through(Tensor x, std::function<void()> hook);

  /// `at_end` runs before the call returns, while the caller's gradient of the loss is still held.
  void backward(const Tensor& loss, const std::function<void()>& at_end);
  /// From here on, calls with `parameter` read `tensor`, which they don't own.
  void set_parameter(int parameter, const Tensor& tensor);
  const Tensor& gradient(int parameter) const { return gradients_.at(static_cast<std::size_t>(parameter)); }
  /// The gradient of a parameter, given away.
  Tensor take_gradient(int parameter);

  Tensor unpack(const Saved& saved) override;
  Tensor sum_to(const Tensor& gradient, const Edge& edge) override;
  void accumulate(int parameter, Tensor gradient) override;

 private:
  using Backward = std::function<std::vector<Tensor>(Tensor&, const std::vector<Tensor>&)>;
  Tensor make_like(const Tensor& x, std::string_view what) { return value(x.elements, x.dtype, what); }
  Tensor value(std::int64_t elements, Dtype dtype, std::string_view what);
  /// What the call `name` computes from what it reads: `output` itself.
  Tensor computed(const std::string& name, Accesses inputs, Tensor output);
  Tensor multiplied(Accesses inputs, const WorkShape& shape, Tensor output);
  program::Access reads_parameter(int parameter) const;
  Tensor temporary(std::int64_t elements, Dtype dtype, std::string_view what);
  static Edge edge_to(const Tensor& input);
  static Edge edge_to(int parameter, std::int64_t elements);
  Saved save(const Tensor& tensor) const;
  /// Makes `output` the result of a node.
  Tensor record(Tensor output, std::vector<Edge> next, std::vector<Saved> saved, Backward backward);
  Tensor product(std::int64_t rows, std::int64_t outputs, Dtype dtype);
  void ensure_workspace();
  void run_attention(const std::string& name, const AttentionShape& shape, Dtype dtype, const Accesses& accesses,
                     double products);
  std::vector<Tensor> flash_forward(const AttentionShape& shape, Dtype dtype, Accesses inputs);
  std::vector<Tensor> flash_backward(const AttentionShape& shape, Dtype dtype, Accesses inputs);
  std::vector<Tensor> efficient_forward(const AttentionShape& shape, Accesses inputs);
  std::vector<Tensor> efficient_backward(const AttentionShape& shape, Accesses inputs);
  Tensor embedding_gradient(const Tensor& gradient, const Tensor& ids, std::int64_t rows, std::int64_t width);

  Heap heap_;
  Device device_;
  CheckpointState checkpoints_;
  std::vector<Tensor> gradients_;     // by parameter
  std::vector<int> parameters_;       // buffers, by parameter; -1: none yet
  std::array<Tensor, 2> workspaces_;  // cuBLAS: of the main thread's handle, of the backward thread's
  bool in_backward_ = false;
  std::int64_t sequence_ = 0;
};

}  // namespace vramfit::eager
