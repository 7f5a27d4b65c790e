// axolotl's functions for linears with adapters (0.19, kernels/lora.py), counted like ATen's (torch.h): what PEFT
// computes in several calls is one node, which adds in place, and makes its gradients over what it kept.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "program/pytorch/calls/torch.h"
#include "program/pytorch/modelings/segment_reader.h"

namespace vramfit::eager {

class LoraKernels {
 public:
  LoraKernels(Torch& torch, const Job& job);

  /// A frozen linear, in 4 bits or not, and its adapter.
  struct Adapted {
    LinearParameters by;
    std::int64_t inputs = 0, outputs = 0;
  };
  /// down(activation(gate(x)) * up(x)): LoRA_MLP.
  Tensor feed_forward(const Tensor& x, const Adapted& gate, const Adapted& up, const Adapted& down) const;
  /// LoRA_QKV, one node for all three.
  std::array<Tensor, 3> queries_keys_values(const Tensor& x, const std::array<Adapted, 3>& linears) const;
  /// LoRA_O.
  Tensor output(const Tensor& x, const Adapted& by) const;

 private:
  /// An adapter in the dtype of products: converted copies, or empty where its parameters have that dtype.
  struct Factors {
    Tensor a, b;
  };
  struct Gradients {
    Tensor in_rank;  // the result's gradient times B
    Tensor of_a, of_b;
  };
  /// What a node keeps of x, and the edges to it and to what adapters read of it.
  struct Input {
    Tensor x, dropped;  // `dropped` empty: no dropout
    const Tensor& read() const { return dropped.storage ? dropped : x; }
  };
  void gather(const std::vector<Adapted>& linears) const;
  Input input_of(const Tensor& x) const;
  bool is_converted(int parameter, Dtype dtype) const;
  Tensor converted(int parameter, std::int64_t elements, Dtype dtype) const;
  Factors factors(const Adapted& by, Dtype dtype) const;
  program::Access factor(const Tensor& converted, int parameter) const;
  Tensor dequantized(const Adapted& by) const;
  Tensor product(const Input& input, const Adapted& by) const;
  void add_share(const Tensor& rows_in_rank, const Tensor& b, const Adapted& by, const Tensor& y) const;

  void keep(std::vector<Saved>& saved, const Factors& factors) const;
  std::vector<Edge> edges_to(const Input& input, const std::vector<Adapted>& linears, Dtype dtype) const;
  Gradients gradients(const Tensor& g, const Tensor& read, const Adapted& by, const Factors& kept) const;
  void add_product(const Tensor& g, const Adapted& by, Tensor& dx) const;
  void add_through_adapter(const Tensor& in_rank, const Adapted& by, const Factors& kept, const Tensor& dx) const;
  struct FeedForward {
    Adapted gate, up, down;
    bool wants = false;  // x, a gradient
  };
  Tensor gradient_of_hidden(const Tensor& g, const Adapted& down, const Factors& kept) const;
  std::vector<Tensor> gradients_of(const FeedForward& of, const Tensor& g, const std::vector<Tensor>& kept) const;
  Tensor zeros_like(const Tensor& x) const;

  Torch& torch_;
  Dtype original_;  // of what is in 4 bits
  std::int64_t rank_;
  bool drops_;
};

}  // namespace vramfit::eager
