// The functions of Liger Kernel (0.8.5, liger_kernel/ops), counted like ATen's (torch.h): Triton kernels that write
// gradients over what they read for the last time, and losses that make their gradients in forward.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "program/pytorch/calls/torch.h"

namespace vramfit::eager {

class Liger {
 public:
  explicit Liger(Torch& torch) : torch_(torch) {}

  struct Norm {
    int weight = -1;
    std::int64_t width = 0;
    bool in_place = true;  // its gradient takes the place of its output's
    /// What is copied first, as heads of a token don't lie one after the other.
    bool input_lies_apart = false, gradient_lies_apart = false;
  };
  /// Of rows, in x's own type whatever the weight's is.
  Tensor rms_norm(const Tensor& x, const Norm& by) const;

  struct Tables {
    Tensor cosines, sines;
  };
  /// What is copied first, likewise: inputs, and the gradients that come.
  struct Copies {
    bool queries = false, keys = false, of_queries = false, of_keys = false;
  };
  /// Queries and keys, rotated in place or in copies.
  std::array<Tensor, 2> rotated(const Tensor& q, const Tensor& k, const Tables& tables, const Copies& copies) const;

  /// activation(gate) * up, whose gradients take the places of both; parts of one tensor lie apart, and are copied.
  Tensor gated(const Tensor& gate, const Tensor& up, bool lie_apart) const;

  /// The sum over tokens of their cross entropy, whose gradient takes the place of the logits.
  Tensor cross_entropy(const Tensor& logits, const Tensor& labels, std::int64_t tokens) const;
  /// The same of hidden states, by way of logits that are made in chunks of tokens.
  Tensor fused_loss(const Tensor& h, const Tensor& labels, const OutputWeights& by) const;

 private:
  struct Chunk {
    OutputWeights by;
    const Tensor& h;
    std::int64_t rows;
    Dtype dtype;  // of products
  };
  struct Gradients {
    Tensor of_h, of_weights, losses;  // the first two: empty where they aren't wanted
  };
  Tensor in_order(const Tensor& x, bool lies_apart, const char* what) const;
  Tensor sum_of_parts(const Tensor& parts, std::int64_t width, Dtype dtype) const;
  void scale_kept(const Tensor& gradient, const std::vector<Tensor>& kept) const;
  Tensor flags_of_labels(const Tensor& labels, std::int64_t tokens) const;
  void require_labels_in_range(const Tensor& labels, const Tensor& flags) const;
  void run_losses(const Tensor& logits, std::int64_t rows, std::int64_t columns, Accesses others) const;
  Tensor cast_part(const Chunk& chunk) const;
  Tensor cast_weights(const Chunk& chunk) const;
  Tensor logits_of(const Chunk& chunk, const Tensor& out) const;
  void add_to_input(const Chunk& chunk, const Tensor& logits, const Tensor& gradient, bool is_direct) const;
  void add_to_weights(const Chunk& chunk, const Tensor& logits, const Tensor& gradient) const;

  Torch& torch_;
};

}  // namespace vramfit::eager
