// The ATen calls that PyTorch's models are made of, counted: what each allocates, in order, and saves for backward.
// CUDA, torch 2.11; kernels' own temporaries are in kernels.h.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "job/cluster/device.h"
#include "job/parameters/quantization.h"
#include "program/ops/attention.h"
#include "program/pytorch/calls/torch_shapes.h"
#include "program/pytorch/walk/checkpoint.h"
#include "program/pytorch/wrappers/module_hooks.h"

namespace vramfit::eager {

class Torch final : public Backend {
 public:
  Torch(Recording& recording, Device device, std::size_t parameters);

  Heap& heap() override { return heap_; }
  const Device& device() const { return device_; }
  CheckpointState& checkpoints() { return checkpoints_; }

  /// table[ids]; the table is `parameter`, of `rows` rows of `dtype`.
  Tensor embedding(const Tensor& ids, int parameter, std::int64_t rows, std::int64_t width, Dtype dtype);
  /// The same of ids that are only seen `times` times (expand), which each call copies.
  Tensor repeated_embedding(const Tensor& ids, std::int64_t times, const Table& table);
  /// x times the transpose of `parameter` (outputs, inputs), x of rows of `inputs`; `bias`: a parameter, or -1.
  Tensor linear(const Tensor& x, int parameter, std::int64_t inputs, std::int64_t outputs, int bias = -1);
  /// addmm(bias, x, parameter) with `parameter` of (inputs, outputs): transformers' Conv1D.
  Tensor conv1d(const Tensor& x, int parameter, std::int64_t inputs, std::int64_t outputs, int bias);
  /// The same with a frozen `parameter` in 4 bits, and a frozen bias, by bitsandbytes' Linear4bit: x is converted to
  /// the type of products, and the result to x's type. Throws NotModelled for fewer than kFewestRowsOf4Bit rows.
  Tensor linear_4bit(const Tensor& x, int parameter, std::int64_t inputs, std::int64_t outputs, QuantizedTypes types,
                     int bias = -1);
  /// The same of torchao's NF4Tensor (nf4.h), without a bias.
  Tensor linear_nf4(const Tensor& x, int parameter, std::int64_t inputs, std::int64_t outputs);
  // Of adapters with magnitudes (DoRA).
  void multiply_before_training() { ensure_workspace(); }  // a product, of which cuBLAS' workspace stays
  Tensor identity(std::int64_t width, Dtype dtype);        // eye
  /// A frozen matrix in `dtype`, made whole if it is in 4 bits; empty where it is in `dtype` itself.
  Tensor frozen_in(int parameter, std::int64_t elements, Dtype dtype, Dtype original);
  /// linear() of what frozen_in() gave.
  Tensor linear_of_frozen(const Tensor& x, int parameter, const Tensor& weight, std::int64_t inputs,
                          std::int64_t outputs);
  /// linalg.norm(weight + number * change, dim=1), with what frozen_in() gave, without a gradient.
  Tensor norms_with_change(int parameter, const Tensor& weight, const Tensor& change, std::int64_t outputs);
  /// parameter / divisor, both of `width` numbers; the divisor needs no gradient.
  Tensor parameter_over(int parameter, const Tensor& divisor, std::int64_t width);
  Tensor minus_frozen(const Tensor& x, int parameter);      // a frozen vector from each row of x
  Tensor row_times(const Tensor& vector, const Tensor& x);  // the vector times each row of x
  /// bmm: for each of `batch` matrices, a of `rows` by `inner` times b of `inner` by `columns`.
  Tensor batched_product(const Tensor& a, const Tensor& b, std::int64_t batch, const WorkShape& shape);
  /// torch.no_grad, from here on or until here: nothing has a place in autograd's graph.
  void set_gradients(bool has_gradients) { has_gradients_ = has_gradients; }
  /// torch.autocast: matrix products and attention work in this type; parameters are converted once, by their first
  /// product.
  std::optional<Dtype> autocast() const { return autocast_; }
  void set_autocast(std::optional<Dtype> dtype);
  /// The same tensor where it has that type already.
  Tensor cast(const Tensor& x, Dtype dtype);
  Tensor power(const Tensor& x);  // by a number other than 1
  Tensor mean_of_rows(const Tensor& x, std::int64_t width);
  /// layer_norm of rows; under autocast in fp32.
  Tensor layer_norm(const Tensor& x, const NormWeights& by);
  Tensor rms_norm(const Tensor& x, int weight, std::int64_t width);  // PyTorch's own, of rows in its weight's dtype
  Tensor add_scalar(const Tensor& x) { return with_gradient_of_result(x, "add"); }
  /// x += number
  Tensor add_scalar_in_place(Tensor x);
  Tensor clone(const Tensor& x) { return with_gradient_of_result(x, "clone"); }
  /// The same, whose node keeps another tensor until its backward.
  Tensor clone_keeping(const Tensor& x, const Tensor& kept);
  Tensor rsqrt(const Tensor& x);
  /// By a number.
  Tensor divide(const Tensor& x) { return by_number(x, "div"); }
  Tensor scale(const Tensor& x) { return by_number(x, "mul"); }
  /// By a tensor of one number, which is kept for backward; in the wider of both types.
  Tensor divide_by(const Tensor& x, const Tensor& divisor);
  /// In training: a copy, and a mask that is kept for backward.
  Tensor dropout(const Tensor& x);
  Tensor silu(const Tensor& x);
  /// PyTorch's own, in either form.
  Tensor gelu(const Tensor& x);
  Tensor tanh(const Tensor& x);
  /// In `dtype`: x's own, or fp32.
  Tensor softmax(const Tensor& x, Dtype dtype);
  Tensor add(const Tensor& a, const Tensor& b);
  /// The same to each of a's parts of b's size.
  Tensor add_to_each(const Tensor& a, const Tensor& b);
  Tensor add_in_place(Tensor a, const Tensor& b);     // a += b, of the same type
  Tensor multiply(const Tensor& a, const Tensor& b);  // in the wider of both types
  /// Each row of x times its element of `scale`.
  Tensor multiply_rows(const Tensor& x, const Tensor& scale);
  /// Each row of x times a vector.
  Tensor multiply_columns(const Tensor& x, const Tensor& vector);
  /// 1.0 + parameter.float(), of a vector of `width` numbers of `dtype`.
  Tensor one_plus(int parameter, Dtype dtype, std::int64_t width);
  /// Each row of x times `parameter`, a vector of `width` numbers of `dtype`, in the wider of both types. Backward
  /// makes the gradient of the second factor first.
  Tensor multiply_by_parameter(const Tensor& x, int parameter, Dtype dtype, std::int64_t width);
  /// The same with the parameter as first factor.
  Tensor parameter_times(int parameter, Dtype dtype, const Tensor& x, std::int64_t width);
  /// By a tensor that needs no gradient and is as large as a part of x; in the wider of both types.
  Tensor multiply_by_constant(const Tensor& x, const Tensor& constant);
  /// A slice along the last dimension; all of x where it is as large.
  Tensor part_of(const Tensor& x, std::int64_t elements);
  /// chunk(count, dim=-1), or split into as many.
  std::vector<Tensor> parts_of(const Tensor& x, std::size_t count);
  /// The same of parts with `sizes`, as many elements together as x has.
  std::vector<Tensor> split(const Tensor& x, const std::vector<std::int64_t>& sizes);
  /// cat along the last dimension, in the type of a, which is not narrower than b's; b may be empty.
  Tensor joined(const Tensor& a, const Tensor& b);
  /// x's halves along the last dimension, the second one negated and in front.
  Tensor rotate_half(const Tensor& x);
  /// x seen in another layout, whose gradient has to be copied into x's.
  Tensor copied_in_backward(const Tensor& x);
  Tensor scale_in_place(const Tensor& x);       // x *= number
  Tensor scale_view_in_place(const Tensor& x);  // of x seen in another layout
  /// The complex product of pairs of x (fp32) with a constant table, which outlives backward.
  Tensor rotate(const Tensor& x, const Tensor& table);
  /// unsqueeze, expand, reshape: a copy with every one of `heads` `times` times. x itself for 1; one head needs no
  /// copy.
  Tensor repeat_heads(const Tensor& x, std::int64_t heads, std::int64_t times);
  /// repeat_interleave: a copy in any case.
  Tensor copied_heads(const Tensor& x, std::int64_t times);
  /// Heads of all rows of the batch one after the other, as bmm works on them: a copy where they lie between each
  /// other.
  Tensor folded_heads(const Tensor& x, std::int64_t heads, std::int64_t batch, bool heads_first);
  /// scaled_dot_product_attention: causal, of all keys, or with a mask of booleans [batch, 1, sequence, sequence] for
  /// all heads.
  Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionShape& shape,
                   const Tensor& mask = {});
  /// Which kernel attention takes in `dtype`. Throws NotModelled where there are no rules for it, or where it would
  /// leave `shape` as it is.
  AttentionKernel attention_kernel(const AttentionShape& shape, Dtype dtype, bool has_mask) const;
  /// cross_entropy: log_softmax and nll_loss, both of whose kernels copy labels that lie apart.
  Tensor cross_entropy(const Tensor& logits, const Tensor& labels, bool do_labels_lie_apart = false);

  Tensor all_true(const Tensor& flags);    // whether all of a tensor of booleans are
  Tensor count_true(const Tensor& flags);  // how many of them are, as int64
  Tensor sum(const Tensor& x);             // all elements into one
  /// linalg.vector_norm of all elements of x, in fp32, without a place in autograd's graph.
  Tensor vector_norm(const Tensor& x);
  Tensor negative(const Tensor& x);
  Tensor sum_of_rows(const Tensor& x, std::int64_t width);  // of rows of `width`
  /// x[..., -n:], of which there are n: a view, whose gradient is copied into one for x.
  Tensor seen_as_slice(const Tensor& x);
  Tensor log_sigmoid(const Tensor& x) { return by_element(x, "log_sigmoid"); }
  Tensor exp(const Tensor& x);
  Tensor smaller(const Tensor& a, const Tensor& b);  // of each element of both
  /// x[mask] of all elements, without a gradient.
  Tensor chosen_elements(const Tensor& x, const Tensor& mask);
  Tensor chosen_numbers(const Tensor& x, const Tensor& mask);                      // the same of vectors
  void look_for_none(const Tensor& mask) { positions_of(mask, 0, 0); }             // of which no flag is set
  Tensor elements_at(const Tensor& x, const Tensor& rows, const Tensor& columns);  // x[rows, columns]
  Tensor places_of_largest(const Tensor& x, std::int64_t width);                   // argmax of rows of `width`
  /// x[mask]: the `count` rows that the mask [batch, tokens] has a flag for.
  Tensor chosen_rows(const Tensor& x, const Tensor& mask, std::int64_t count);
  /// zeros.masked_scatter(mask, x) of as many flags as x has numbers.
  Tensor scattered(const Tensor& x, const Tensor& mask);
  /// What TRL's fused output layer computes of each row of h; what isn't asked for is empty.
  struct Scores {
    Tensor log_probabilities, entropy, mean_logits, is_top;
  };
  struct ScoresWanted {
    bool entropy = true, mean_logits = false, is_top = true;
  };
  /// `held`: what has to be kept for the weights until backward; empty: nothing.
  Scores label_scores(const Tensor& h, const Tensor& labels, const OutputWeights& by, const Tensor& held,
                      ScoresWanted wanted);

  /// body(x) with a checkpoint that re-enters autograd: forward runs without gradients, and backward runs it again with
  /// them, and then backward through that, within its own call.
  Tensor reentrant_checkpoint(CheckpointBody body, const Tensor& x);

  /// x, which no node made, with a gradient of its own: x.requires_grad_(). Both live as long as the loss.
  Tensor require_gradient(Tensor x);

  /// What the call `name` computes from what it reads, without a place in autograd's graph: `output` itself.
  Tensor computed(std::string_view name, Accesses inputs, Tensor output);

  // Of mixtures of experts.
  Tensor seen_again(const Tensor& x);  // a view of all of x
  struct Largest {
    Tensor values, places;
  };
  /// The `count` largest numbers of each row of `width`.
  Largest topk(const Tensor& x, std::int64_t width, std::int64_t count);
  /// x /= x.sum(dim=-1, keepdim=True), of rows of `width`.
  Tensor normalize_rows(const Tensor& x, std::int64_t width);
  struct Sorted {
    Tensor values, order;
  };
  Sorted sorted(const Tensor& numbers);
  Tensor histogram(const Tensor& numbers, std::int64_t bins);
  Tensor running_sum(const Tensor& numbers);
  /// x[places], of rows of `width`.
  Tensor rows_at(const Tensor& x, const Tensor& places, std::int64_t width);
  Tensor inverse_order(const Tensor& order);  // that undoes it
  /// Each row of x times its element of `weights`, in the wider of both types.
  Tensor weighted_rows(const Tensor& x, const Tensor& weights);
  /// Sums of each `count` neighbouring rows.
  Tensor sum_of_neighbours(const Tensor& x, std::int64_t count);
  /// Each group of x's rows, up to its number in `ends`, times its matrix of `parameter`.
  Tensor grouped_product(const Tensor& x, int parameter, const GroupedShape& shape, const Tensor& ends);

  // Of attention with sinks, and of clamped gates (gpt-oss).
  Tensor minus(const Tensor& a, const Tensor& b);             // of the same type
  Tensor minus_rows(const Tensor& x, const Tensor& numbers);  // each row minus its element of `numbers`
  /// x.max(dim=-1, keepdim=True).values, of rows of `width`.
  Tensor largest_of_rows(const Tensor& x, std::int64_t width);
  /// cat of rows of `width` and for each a number of `parameter`, a vector of one for each of `heads`.
  Tensor joined_with_sinks(const Tensor& x, std::int64_t width, int parameter, std::int64_t heads);
  Tensor clamp(const Tensor& x, int bounds);  // with one bound, or both
  Tensor sigmoid(const Tensor& x);
  /// parameter[places], of `rows` rows of `width`.
  Tensor parameter_rows_at(int parameter, const Tensor& places, std::int64_t rows, std::int64_t width);

  /// x itself; `hook` runs when its gradient is there.
  Tensor pass_through(Tensor x, std::function<void()> hook);

  /// Hooks of all modules, which outlive this; without them, enter() and leave() give what they are given.
  void set_module_hooks(ModuleHooks* hooks) { hooks_ = hooks; }
  Tensor enter(const Submodule& module, const Tensor& x) const;
  Tensor leave(const Submodule& module, Tensor y) const;
  void reach(const Submodule& module, int parameter) const;
  /// The type of a parameter as it is looked at from outside its module.
  std::optional<Dtype> seen_dtype(int parameter) const;
  /// Whether backward runs, which may compute parts of forward again.
  bool is_in_backward() const { return in_backward_; }

  using KeptWithLoss = std::vector<std::shared_ptr<const void>>;
  /// `at_end` runs before the call returns, while the caller's gradient of the loss is still held. Gives what
  /// lives as long as the loss: what require_gradient() was given, with its gradients, and what autograd's nodes have
  /// as attributes.
  KeptWithLoss backward(const Tensor& loss, const std::function<void()>& at_end);
  /// From here on, calls with `parameter` read `tensor`, which they don't own. One that is frozen gets no gradient, and
  /// nothing is kept for it.
  void set_parameter(int parameter, const Tensor& tensor, bool is_trained = true);
  /// Likewise for a frozen one, which a call may convert for good: `tensor` outlives this, and is replaced then.
  void set_frozen_parameter(int parameter, Tensor& tensor);
  /// To the parameters of a second model of the same graph, or back to those of the first: the ones that calls read,
  /// and that set_parameter() sets, from here on.
  void exchange_models();
  /// Makes a frozen parameter of `elements` as bitsandbytes stores it: codes, and beside them scales and tables, all of
  /// which live as long as what is returned.
  std::vector<Tensor> make_quantized(int parameter, std::int64_t elements, const Quantization& format,
                                     std::string_view name);
  /// The same without the codes, which a wrapper makes itself and gives to set_parameter.
  std::vector<Tensor> make_quantization_state(int parameter, std::int64_t elements, const Quantization& format,
                                              std::string_view name);
  bool is_quantized(int parameter) const;
  bool is_trained(int parameter) const { return parameters_.at(static_cast<std::size_t>(parameter)).is_trained; }
  /// Parameters that are views of one flat tensor (split, view). Backward calls `join` with their gradients when all
  /// are there, in this order, and once these are let go of, `accumulate` with what it has made of them. Both on
  /// `stream`.
  void see_as_parts(const std::vector<int>& parameters, std::function<Tensor(const std::vector<Tensor>&)> join,
                    std::function<void(Tensor)> accumulate, Stream stream);
  /// Called with each parameter whose gradient a backward has made, or added to.
  void on_gradient(std::function<void(int)> hook) { on_gradient_ = std::move(hook); }
  const Tensor& gradient(int parameter) const { return gradients_.at(static_cast<std::size_t>(parameter)); }
  /// The gradient of a parameter, given away.
  Tensor take_gradient(int parameter);

  Tensor unpack(const Saved& saved) override;
  Tensor sum_to(const Tensor& gradient, const Edge& edge) override;
  void accumulate(int parameter, Tensor gradient) override;

 private:
  friend class FlashAttn;
  friend class Liger;
  friend class LoraKernels;
  /// The node of a tensor that nothing made, which runs as soon as the gradient is there, and gives it away.
  Shared<Node> leaf(std::function<void(Tensor& gradient)> take) const;
  Tensor factor_of(const Tensor& x);  // as a product reads it
  void keep_with_loss(Tensor x) { kept_.push_back(std::make_shared<const Tensor>(std::move(x))); }
  using Backward = std::function<std::vector<Tensor>(Tensor&, const std::vector<Tensor>&)>;
  Tensor make_like(const Tensor& x, std::string_view what) { return value(x.elements, x.dtype, what); }
  Tensor value(std::int64_t elements, Dtype dtype, std::string_view what);
  /// What the call `name` makes of x and a number, whose gradient is the result's.
  Tensor with_gradient_of_result(const Tensor& x, const std::string& name);
  /// What the call `name` makes of each element of x, which backward needs.
  Tensor by_element(const Tensor& x, const std::string& name);
  /// The same for a call whose gradient it makes of the result's.
  Tensor by_number(const Tensor& x, const std::string& name);
  /// The gradient of an input of type `dtype` from one of the output's type.
  Tensor gradient_as(const Tensor& gradient, Dtype dtype);
  struct Held {
    int buffer = -1;  // none yet
    Dtype dtype = Dtype::bf16;
    bool is_trained = true;
    const Quantization* format = nullptr;  // of a quantized one
    Tensor* frozen = nullptr;              // of one that may be converted
    int part = -1;                         // Tensor::part
    Shared<Node> whole = nullptr;          // of see_as_parts(): the node that takes its gradient
    int output = 0;                        // which of that node's outputs it is
  };
  void convert_bias(int parameter, Dtype dtype);
  Tensor original_of_nf4(int parameter, std::int64_t elements, Dtype dtype);
  Tensor dequantized_scales(int parameter, std::int64_t elements);
  /// A quantized parameter as bitsandbytes hands it to a product.
  Tensor dequantized(program::Access codes, std::int64_t elements, const Tensor& scales, Dtype dtype);
  Tensor product_with_dequantized(const Tensor& x, int parameter, const WorkShape& shape, int bias);
  /// A parameter as products read it: itself, or its conversion under autocast.
  struct Operand {
    Tensor cast;  // empty: the parameter itself
    program::Access access{-1, program::How::read};
    Edge edge;
  };
  Operand operand(int parameter, std::int64_t elements);
  /// In fp32: a vector of `dtype`, converted anew by each use.
  Operand wide_operand(int parameter, Dtype dtype, std::int64_t width);
  Tensor widened(int parameter, Dtype dtype, std::int64_t width);
  /// What a product of rows is made of.
  struct Factors {
    Tensor input;
    Operand weight, added;
    bool has_bias = false;
  };
  Tensor product_of(Factors of, std::int64_t inputs, std::int64_t outputs);
  bool has_replaced_layers() const { return hooks_ != nullptr && hooks_->replaces_layers(); }
  Tensor hooked_linear(const Tensor& x, int parameter, std::int64_t inputs, std::int64_t outputs, int bias);
  Saved save_hooked(int parameter, bool is_needed = true) const;
  program::Access reads_hooked(const Tensor& kept, int parameter) const;
  void sum_blocks(std::int64_t blocks, std::array<Tensor, 2>& vectors, const std::array<Edge, 2>& edges);
  enum class Factor { first, second };
  Tensor multiply_rows_by(int parameter, Dtype dtype, const Tensor& x, std::int64_t width, Factor parameter_is);
  Tensor cast_parameter(int parameter, std::int64_t elements);
  Tensor multiplied(Accesses inputs, const WorkShape& shape, Tensor output);
  Tensor multiplied_batch(Accesses inputs, std::int64_t batch, const WorkShape& shape, Dtype dtype);
  Tensor multiplied_groups(Accesses inputs, const GroupedShape& shape, Tensor output);
  void put_back(const Tensor& rows, const Tensor& places, std::int64_t width, const Tensor& whole);
  program::Access reads_parameter(int parameter) const;
  Tensor repeated(const Tensor& x, Tensor repeated, std::int64_t times);
  Tensor temporary(std::int64_t elements, Dtype dtype, std::string_view what);
  static Edge edge_to(const Tensor& input);
  Edge edge_to(int parameter, std::int64_t elements) const;
  /// Nothing where it isn't needed.
  Saved save(const Tensor& tensor, bool is_needed = true) const;
  /// Makes `output` the result of a node, unless no gradient of an input is wanted.
  Tensor record(Tensor output, std::vector<Edge> next, std::vector<Saved> saved, Backward backward);
  Tensor product(const Accesses& factors, const WorkShape& shape, Dtype dtype, bool has_bias);
  void ensure_workspace();
  void ensure_lt_workspace();
  void run_attention(AttentionKernel kernel, const std::string& name, const AttentionShape& shape, Dtype dtype,
                     const Accesses& accesses, bool is_backward);
  std::vector<Tensor> attention_forward(AttentionKernel kernel, const AttentionShape& shape, Dtype dtype,
                                        Accesses inputs);
  std::vector<Tensor> attention_backward(AttentionKernel kernel, const AttentionShape& shape, Dtype dtype,
                                         Accesses inputs);
  std::vector<Tensor> cudnn_forward(const AttentionShape& shape, Dtype dtype, Accesses inputs);
  std::vector<Tensor> cudnn_backward(const AttentionShape& shape, Dtype dtype, Accesses inputs);
  std::vector<Tensor> flash_forward(const AttentionShape& shape, Dtype dtype, Accesses inputs);
  std::vector<Tensor> flash_backward(const AttentionShape& shape, Dtype dtype, Accesses inputs);
  std::vector<Tensor> efficient_forward(const AttentionShape& shape, Dtype dtype, Accesses inputs);
  std::vector<Tensor> efficient_backward(const AttentionShape& shape, Dtype dtype, Accesses inputs);
  /// x itself, whose gradient is a view of that of its heads (view, transpose).
  Tensor seen_as_heads(Tensor x);
  Tensor math_attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionShape& shape);
  Tensor mask_as_numbers(const Tensor& mask, const AttentionShape& shape, Dtype dtype, AttentionKernel kernel);
  Tensor causal_numbers(std::int64_t sequence, Dtype dtype);
  Tensor summed(const Tensor& x, std::int64_t rows, std::string_view what);
  Tensor positions_of(const Tensor& mask, std::int64_t count, std::int64_t dims);
  Tensor indexed(const Tensor& x, const Tensor& mask, std::int64_t count, std::string_view what, std::int64_t dims = 2);
  Tensor put_rows(const Tensor& gradient, const Tensor& mask, std::int64_t count);
  Tensor places_of(std::int64_t rows);
  void put_sorted(const Tensor& gradient, std::int64_t rows, const Tensor& result);
  Tensor part_in(const Tensor& x, std::int64_t elements, Dtype dtype);
  Tensor weights_in(const OutputWeights& by, std::int64_t columns, Dtype dtype, program::Access weights);
  Tensor tile_of_logits(std::int64_t rows, Dtype dtype);
  Scores folded_scores(const Tensor& h, const OutputWeights& by, Dtype dtype, ScoresWanted wanted, Tensor& log_sum);
  std::vector<Tensor> score_gradients(const Tensor& h, const OutputWeights& by, Dtype dtype, const Tensor& held);
  void multiply_tile(Accesses accesses, const WorkShape& shape, Dtype dtype);
  void fold_tile(const char* name, const Tensor& tile, std::int64_t elements, Accesses into = {});
  Tensor embedding_gradient(const Tensor& gradient, const Tensor& ids, std::int64_t rows, std::int64_t width);

  Heap heap_;
  Device device_;
  CheckpointState checkpoints_;
  std::vector<Tensor> gradients_;        // by parameter
  std::vector<Held> parameters_;         // by parameter
  std::vector<Held> of_other_model_;     // likewise
  std::array<Tensor, 2> workspaces_;     // cuBLAS: of the main thread's handle, of the backward thread's
  std::array<Tensor, 2> lt_workspaces_;  // cuBLASLt's, in the same way
  std::optional<Dtype> autocast_;
  std::map<int, Tensor> cast_parameters_;      // under autocast
  std::map<const Node*, Tensor> cast_leaves_;  // likewise
  KeptWithLoss kept_;                          // what backward() gives
  std::function<void(int)> on_gradient_;       // empty: none
  ModuleHooks *hooks_ = nullptr, *hooks_of_other_model_ = nullptr;
  bool in_backward_ = false, has_gradients_ = true;
  std::int64_t sequence_ = 0;
};

}  // namespace vramfit::eager
