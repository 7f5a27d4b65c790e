// Builds the segments of a Graph: values get their shapes, ops their parameters by checkpoint name.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "model_specs/graph.h"

namespace vramfit {

/// A weight used by a linear op: all of it, or `count` output features starting at `first`.
struct LinearUse {
  std::string weight;  // checkpoint name
  std::string bias{};  // "": none
  std::int64_t first = 0, count = -1;
  bool transposed = false;  // weight is (inputs, outputs)
};

/// A norm's weight (and bias), its groups per row, and its form.
struct NormUse {
  std::string weight;
  std::string bias{};
  double eps = 1e-6;
  std::int64_t groups = 1;
  bool weight_plus_one = false;
};

/// A mixture's weights with their biases, and attributes of the op.
struct ExpertsUse {
  std::string router, gate_up, down;
  std::string router_bias{}, gate_up_bias{}, down_bias{};  // "": none, of any of them
  Attributes attributes;
};

class GraphBuilder {
 public:
  /// `shapes` become the graph's parameters, in that order.
  explicit GraphBuilder(const std::vector<NamedShape>& shapes);
  /// Goes on with a graph that finish_with_loss() has finished: its end is taken off, and made anew with `loss`.
  GraphBuilder(Graph finished, const LossOptions& loss);

  /// Starts a segment; its input is value 0, [tokens, features], or ids when features is 0.
  void begin(const std::string& name, SegmentRole role, std::int64_t features, const std::string& input = "input");
  void end(int output);

  int embedding(const std::string& name, const std::string& table, double scale = 1);
  /// position_embedding or type_embedding.
  int add_embedding(OpKind kind, const std::string& name, int x, const std::string& table);
  int rms_norm(const std::string& name, int x, const NormUse& norm);
  int layer_norm(const std::string& name, int x, const NormUse& norm);
  int linear(const std::string& name, int x, const LinearUse& linear);
  int rope(const std::string& name, int x, const Attributes& attention, const Rope& rope);
  /// `sinks`: their parameter; "": none.
  int attention(const std::string& name, int q, int k, int v, const Attributes& attributes,
                const std::string& sinks = "");
  int glu(const std::string& name, int gate, int up, Activation activation);
  int experts(const std::string& name, int x, const ExpertsUse& experts);
  /// An op of one value of x's shape, without parameters.
  int apply(OpKind kind, const std::string& name, int x, const Attributes& attributes);
  /// `factor` times x, in its place; x itself for a factor of 1.
  int scale(const std::string& name, int x, double factor);
  int add(const std::string& name, int x, int f);
  /// Ends the model. With full loss, a linear op (and softcap) to "logits" ends the head and a loss segment follows;
  /// with chunks, linear_cross_entropy ends it. `x` is the head's normalized hidden state.
  void finish_with_loss(int x, const LinearUse& head, double cap, const LossOptions& loss);

  bool has_parameter(const std::string& name) const { return index_.contains(name); }
  Graph take() { return std::move(graph_); }

 private:
  ParameterUse use(const std::string& name, std::int64_t first = 0, std::int64_t count = -1) const;
  std::int64_t features(int value) const;
  int value(const std::string& name, std::vector<Dim> shape, ValueType type = ValueType::compute);
  int labels();
  Op& op(OpKind kind, const std::string& name, std::vector<int> inputs, std::vector<int> outputs);
  int rope_table(const Rope& rope, std::int64_t head_dim);
  void set_init(const std::string& name, Parameter::Init init);
  std::string name_of(const Op& op, std::size_t parameter);

  Graph graph_;
  Segment segment_;
  std::unordered_map<std::string, int> index_;
};

}  // namespace vramfit
