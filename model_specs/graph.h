// The description of a model: a chain of segments, each a list of ops over values with symbolic
// shapes. The estimator counts it, the executor runs it; neither knows a family's name.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model_specs/dtype.h"
#include "model_specs/spec.h"

namespace vramfit {

/// A size that may depend on the micro-batch: factor * (batch ? B : 1) * (sequence ? S : 1).
struct Dim {
  std::int64_t factor = 1;
  bool batch = false, sequence = false;
  bool operator==(const Dim&) const = default;
};
inline constexpr Dim kTokens{1, true, true};  // rows of an activation: B * S
constexpr Dim fixed(std::int64_t n) { return Dim{n, false, false}; }

/// Concrete sizes of one micro-batch on one rank.
struct BatchShape {
  std::int64_t batch = 1, sequence = 1;
};
std::int64_t resolve(const Dim& dim, const BatchShape& shape);

/// The kind of a value's elements; the job's precision turns it into a Dtype.
enum class ValueType { compute, fp32, ids };

/// A tensor inside a segment. Rows are tokens, batch-major; heads lie inside a row ([B*S, heads*dim]).
struct Value {
  std::string name;  // "self_attn.q"
  std::vector<Dim> shape;
  ValueType type = ValueType::compute;
  bool operator==(const Value&) const = default;
};
std::int64_t element_count(const Value& value, const BatchShape& shape);

/// A parameter, whole. `shape[0]` is the dim that is sharded.
struct Parameter {
  std::string name;  // checkpoint name: "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;
  /// normal: deviation 0.02; uniform: between -1 and 1 divided by the square root of shape[1]; norms: of the rows of
  /// the matrix whose outputs they scale (program/stages/adapters.h).
  enum class Init { normal, ones, zeros, uniform, norms } init = Init::normal;
};
std::int64_t element_count(const Parameter& parameter);

/// An op's use of a parameter: all of it, or `count` of its output features starting at `first`
/// (packed q/k/v and gate/up matrices are used slice by slice, without views of activations).
struct ParameterUse {
  int parameter = -1;                  // index in Graph::parameters
  std::int64_t first = 0, count = -1;  // -1: all
};

/// Rows of model_specs/ops.def, which says what each one takes and gives.
enum class OpKind {
#define OP(name) name,
#include "model_specs/ops.def"
#undef OP
};
inline constexpr std::size_t kOpKinds = 0
#define OP(name) +1
#include "model_specs/ops.def"
#undef OP
    ;
std::string_view op_name(OpKind kind);

/// What an op needs besides its tensors; each kind reads the fields named in its comment above. A query sees keys of
/// its own row and, with a window, only the last `window` of them (transformers: key > query - sliding_window).
struct Attributes {
  double eps = 0, scale = 1, softcap = 0;
  std::int64_t groups = 1;                                         // rms_norm
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0, window = 0;  // attention, rope (heads, head_dim)
  bool causal = true, weight_plus_one = false, transposed_weight = false;
  Activation activation = Activation::silu;
  int rope_table = 0;                      // index in Graph::ropes
  std::int64_t chunks = 1;                 // linear_cross_entropy
  double dropout = 0;                      // lora: probability that an element of its input is dropped
  double label_smoothing = 0, z_loss = 0;  // cross_entropy, linear_cross_entropy
  bool gradients_in_forward = false;       // linear_cross_entropy
  std::int64_t experts_per_token = 0;      // experts
  bool normalizes_scores = false;          // experts: a token's scores of its experts add up to 1
  bool keeps_wide_scores = false;          // experts: in fp32, where others round them to the logits' dtype
  double limit = 0;                        // experts: gates and ups are clamped to it; 0: they aren't
  bool is_composed = false;                // activation: of many calls in transformers (gelu_new)
  bool upcasts_scores = false;             // attention: in fp32 where transformers' own code computes it (gpt2)
  bool operator==(const Attributes&) const = default;
};

struct Op {
  OpKind kind{};
  std::string name;         // "self_attn.q_proj": unique in its segment
  std::vector<int> inputs;  // values of the segment
  std::vector<ParameterUse> parameters;
  std::vector<int> outputs;
  Attributes attributes;
};

enum class SegmentRole { embedding, block, head, loss };

/// A stretch of the chain. Its first value is its input (token ids for the embedding), `output` is
/// the next segment's input. Labels, where an op reads them, are the value named "labels".
struct Segment {
  std::string name;  // "layers.3"
  SegmentRole role = SegmentRole::block;
  std::vector<Value> values;
  std::vector<Op> ops;
  int input = 0, output = -1;
  int labels = -1;  // value index, or -1
};

/// Probabilities that the configuration asks for and the engine doesn't apply: of the embedding's elements, of
/// attention's probabilities, and of what blocks add to the hidden states.
struct DropoutRates {
  double embedding = 0, attention = 0, hidden = 0;
};

struct Graph {
  std::vector<Segment> segments;
  std::vector<Parameter> parameters;    // in the order of the checkpoint's modules; tied ones once
  std::vector<Rope> ropes;              // distinct rotary tables, each [S, head_dim/2] cos and sin in fp32
  std::vector<std::int64_t> rope_dims;  // rotated dims of each table
  bool is_unpacked = false;             // of a checkpoint that has q, k and v in one matrix (torchtune's Phi-3)
  bool masked_lm = false;               // bert: labels on a seeded 15 % of positions; else next token
  DropoutRates dropout;                 // of families whose Trainer is counted
  std::string library_attention;        // transformers' code that the model's config asks for; "" if its usual
};

/// Whether any layer is a mixture of experts.
bool has_experts(const Graph& graph);

/// How the loss region is laid out: whole logits, or one op over row chunks. What is computed there.
struct LossOptions {
  std::int64_t chunks = 0;            // 0: full logits, cross_entropy in a segment of its own
  bool gradients_in_forward = false;  // of the op over row chunks
  double label_smoothing = 0, z_loss = 0;
  auto operator<=>(const LossOptions&) const = default;
};

/// The graph of a runnable family; throws NotModelled("graph of model_type X") for the others.
Graph build_graph(const ModelSpec& spec, const LossOptions& loss);

}  // namespace vramfit
