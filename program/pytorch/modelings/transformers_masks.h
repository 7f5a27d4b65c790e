// The masks of attention that transformers' models make before their layers run.
#pragma once

#include <functional>
#include <vector>

#include "program/pytorch/calls/torch.h"

namespace vramfit::eager {

/// Whether rows of `sequence` tokens are so long that a window hides keys from queries; 0: there is no window.
inline bool hides_keys(std::int64_t window, std::int64_t sequence) { return window > 0 && sequence >= window; }

class Masks {
 public:
  struct For {
    std::int64_t batch = 0, sequence = 0;
    Dtype dtype = Dtype::f32;  // of hidden states
    bool is_eager = false;     // attention, which adds its mask
  };
  Masks(Torch& torch, For what) : torch_(torch), for_(what) {}

  /// Of queries that see `window` keys; 0: all before them. `given`: the loop's mask of tokens. Empty where PyTorch's
  /// kernels need none.
  Tensor of_scores(const Tensor& given, std::int64_t window);
  /// Of packed documents, in one row: also that queries see keys of their own document. `positions`: of each token in
  /// its document.
  Tensor of_documents(const Tensor& positions, std::int64_t window);
  /// For queries that see all keys: that `given` hides none, in which case no attention needs a mask.
  void look_for_padding(const Tensor& given);
  /// For the flash-attn package. `given`: as for the first two.
  void look_for_flash_attn(const Tensor& given, bool packs_documents);

 private:
  Tensor constant(const char* call, const Accesses& inputs, std::int64_t elements, Dtype dtype, const char* what);
  void look_at_flags(const Tensor& flags);
  struct MaskPart {
    std::function<Tensor()> make;
    std::int64_t elements = 0;
  };
  Tensor all_of(const std::vector<MaskPart>& parts);
  struct Places {
    Tensor batches, heads, queries, keys;
  };
  Places places();
  /// That queries see keys before them, of which a window may hide some.
  Tensor keys_before(const Tensor& queries, const Tensor& keys, std::int64_t window);
  Tensor allowed_keys(const Tensor& padding, std::int64_t window);
  Tensor documents_of(const Tensor& positions);
  Tensor keys_of_documents(const Tensor& positions, const Tensor& documents, std::int64_t window);
  Tensor as_numbers(const Tensor& allowed);

  Torch& torch_;
  For for_;
};

}  // namespace vramfit::eager
