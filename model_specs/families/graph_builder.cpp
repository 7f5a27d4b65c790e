#include "model_specs/families/graph_builder.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "model_specs/loss_layout.h"

namespace vramfit {

namespace {
constexpr const char* kHead = "lm_head";  // the op that makes the logits
}

GraphBuilder::GraphBuilder(const std::vector<NamedShape>& shapes) {
  for (const NamedShape& shape : shapes) {
    index_.emplace(shape.name, static_cast<int>(graph_.parameters.size()));
    const bool is_bias = shape.name.ends_with("bias");
    graph_.parameters.push_back({shape.name, shape.shape, is_bias ? Parameter::Init::zeros : Parameter::Init::normal});
  }
}

GraphBuilder::GraphBuilder(Graph finished, const LossOptions& loss) : graph_(std::move(finished)) {
  if (graph_.segments.back().role == SegmentRole::loss) graph_.segments.pop_back();
  segment_ = std::move(graph_.segments.back());
  graph_.segments.pop_back();
  const auto head = std::ranges::find(segment_.ops, kHead, &Op::name);
  const int x = head->inputs[0];
  const LinearUse use{.weight = name_of(*head, 0), .bias = name_of(*head, 1)};
  const double cap = segment_.ops.back().attributes.softcap;  // of the op that softcap is, or of the one with the loss
  segment_.values.resize(static_cast<std::size_t>(segment_.labels >= 0 ? segment_.labels : head->outputs[0]));
  segment_.labels = -1;
  segment_.ops.erase(head, segment_.ops.end());
  finish_with_loss(x, use, cap, loss);
}

/// Of a parameter that an op uses, which is now among those that have a name; "" if it uses no such.
std::string GraphBuilder::name_of(const Op& op, std::size_t parameter) {
  if (parameter >= op.parameters.size()) return "";
  const int number = op.parameters[parameter].parameter;
  const std::string& name = graph_.parameters[static_cast<std::size_t>(number)].name;
  index_.emplace(name, number);
  return name;
}

void GraphBuilder::begin(const std::string& name, SegmentRole role, std::int64_t features, const std::string& input) {
  segment_ = Segment{};
  segment_.name = name;
  segment_.role = role;
  if (features == 0) {
    value(input, {kTokens}, ValueType::ids);
  } else {
    value(input, {kTokens, fixed(features)});
  }
}

void GraphBuilder::end(int output) {
  segment_.output = output;
  graph_.segments.push_back(std::move(segment_));
}

int GraphBuilder::embedding(const std::string& name, const std::string& table, double scale) {
  const ParameterUse weight = use(table);
  const int y = value(name, {kTokens, fixed(graph_.parameters[static_cast<std::size_t>(weight.parameter)].shape[1])});
  Op& made = op(OpKind::embedding, name, {0}, {y});
  made.parameters = {weight};
  made.attributes.scale = scale;
  return y;
}

int GraphBuilder::add_embedding(OpKind kind, const std::string& name, int x, const std::string& table) {
  const int y = value(name, {kTokens, fixed(features(x))});
  op(kind, name, {x}, {y}).parameters = {use(table)};
  return y;
}

int GraphBuilder::rms_norm(const std::string& name, int x, const NormUse& norm) {
  const int y = value(name, {kTokens, fixed(features(x))});
  const std::vector<Dim> rows = {Dim{norm.groups, true, true}};
  const int rstd = value(name + ".rstd", rows, ValueType::fp32);
  Op& made = op(OpKind::rms_norm, name, {x}, {y, rstd});
  made.parameters = {use(norm.weight)};
  made.attributes.eps = norm.eps;
  made.attributes.groups = norm.groups;
  made.attributes.weight_plus_one = norm.weight_plus_one;
  set_init(norm.weight, norm.weight_plus_one ? Parameter::Init::zeros : Parameter::Init::ones);
  return y;
}

int GraphBuilder::layer_norm(const std::string& name, int x, const NormUse& norm) {
  const int y = value(name, {kTokens, fixed(features(x))});
  const int mean = value(name + ".mean", {kTokens}, ValueType::fp32);
  const int rstd = value(name + ".rstd", {kTokens}, ValueType::fp32);
  Op& made = op(OpKind::layer_norm, name, {x}, {y, mean, rstd});
  made.parameters = {use(norm.weight), use(norm.bias)};
  made.attributes.eps = norm.eps;
  set_init(norm.weight, Parameter::Init::ones);
  return y;
}

int GraphBuilder::linear(const std::string& name, int x, const LinearUse& linear) {
  const ParameterUse weight = use(linear.weight, linear.first, linear.count);
  const auto& shape = graph_.parameters[static_cast<std::size_t>(weight.parameter)].shape;
  const std::int64_t all = linear.transposed ? shape[1] : shape[0];
  const int y = value(name, {kTokens, fixed(linear.count < 0 ? all : linear.count)});
  Op& made = op(OpKind::linear, name, {x}, {y});
  made.parameters = {weight};
  if (!linear.bias.empty()) made.parameters.push_back(use(linear.bias, linear.first, linear.count));
  made.attributes.transposed_weight = linear.transposed;
  return y;
}

int GraphBuilder::rope(const std::string& name, int x, const Attributes& attention, const Rope& rope) {
  const int y = value(name, {kTokens, fixed(features(x))});
  Op& made = op(OpKind::rope, name, {x}, {y});
  made.attributes.head_dim = attention.head_dim;
  made.attributes.heads = features(x) / attention.head_dim;
  made.attributes.rope_table = rope_table(rope, attention.head_dim);
  return y;
}

int GraphBuilder::attention(const std::string& name, int q, int k, int v, const Attributes& attributes,
                            const std::string& sinks) {
  const int out = value(name, {kTokens, fixed(features(q))});
  const int lse = value(name + ".lse", {Dim{attributes.heads, true, false}, Dim{1, false, true}}, ValueType::fp32);
  Op& made = op(OpKind::attention, name, {q, k, v}, {out, lse});
  made.attributes = attributes;
  if (!sinks.empty()) made.parameters = {use(sinks)};
  return out;
}

int GraphBuilder::glu(const std::string& name, int gate, int up, Activation activation) {
  const int y = value(name, {kTokens, fixed(features(gate))});
  op(OpKind::glu, name, {gate, up}, {y}).attributes.activation = activation;
  return y;
}

int GraphBuilder::experts(const std::string& name, int x, const ExpertsUse& experts) {
  const int y = value(name, {kTokens, fixed(features(x))});
  Op& made = op(OpKind::experts, name, {x}, {y});
  made.parameters = {use(experts.router), use(experts.gate_up), use(experts.down)};
  for (const std::string& bias : {experts.router_bias, experts.gate_up_bias, experts.down_bias}) {
    if (!bias.empty()) made.parameters.push_back(use(bias));
  }
  made.attributes = experts.attributes;
  return y;
}

int GraphBuilder::apply(OpKind kind, const std::string& name, int x, const Attributes& attributes) {
  const int y = value(name, {kTokens, fixed(features(x))});
  op(kind, name, {x}, {y}).attributes = attributes;
  return y;
}

int GraphBuilder::scale(const std::string& name, int x, double factor) {
  return factor == 1 ? x : apply(OpKind::scale, name, x, {.scale = factor});
}

int GraphBuilder::add(const std::string& name, int x, int f) {
  const int y = value(name, {kTokens, fixed(features(x))});
  op(OpKind::add, name, {x, f}, {y});
  return y;
}

void GraphBuilder::finish_with_loss(int x, const LinearUse& head, double cap, const LossOptions& loss) {
  if (loss.chunks > 0) {
    const int targets = labels();
    const int sum = value("loss", {fixed(1)}, ValueType::fp32);
    Op& made = op(OpKind::linear_cross_entropy, kHead, {x, targets}, {sum});
    made.parameters = {use(head.weight)};
    if (!head.bias.empty()) made.parameters.push_back(use(head.bias));
    made.attributes.chunks = loss.chunks;
    made.attributes.gradients_in_forward = loss.gradients_in_forward;
    made.attributes.softcap = cap;
    made.attributes.label_smoothing = loss.label_smoothing;
    made.attributes.z_loss = loss.z_loss;
    end(sum);
    return;
  }
  int logits = linear(kHead, x, head);
  // Not in place: the gradient of tanh needs its own output, and that of the linear op needs neither.
  if (cap != 0) logits = apply(OpKind::softcap, "softcap", logits, {.softcap = cap});
  segment_.values[static_cast<std::size_t>(logits)].name = "logits";
  const std::int64_t vocabulary = features(logits);
  end(logits);

  begin("loss", SegmentRole::loss, vocabulary, "logits");
  const int targets = labels();
  const int sum = value("loss", {fixed(1)}, ValueType::fp32);
  const int lse = value("lse", {kTokens}, ValueType::fp32);
  Op& made = op(OpKind::cross_entropy, "cross_entropy", {0, targets}, {sum, lse});
  made.attributes.label_smoothing = loss.label_smoothing;
  made.attributes.z_loss = loss.z_loss;
  end(sum);
}

ParameterUse GraphBuilder::use(const std::string& name, std::int64_t first, std::int64_t count) const {
  const auto found = index_.find(name);
  if (found == index_.end()) throw std::logic_error("graph uses a parameter that isn't listed: " + name);
  return ParameterUse{found->second, first, count};
}

std::int64_t GraphBuilder::features(int value) const {
  return segment_.values[static_cast<std::size_t>(value)].shape.back().factor;
}

int GraphBuilder::value(const std::string& name, std::vector<Dim> shape, ValueType type) {
  segment_.values.push_back({name, std::move(shape), type});
  return static_cast<int>(segment_.values.size()) - 1;
}

int GraphBuilder::labels() { return segment_.labels = value("labels", {kTokens}, ValueType::ids); }

Op& GraphBuilder::op(OpKind kind, const std::string& name, std::vector<int> inputs, std::vector<int> outputs) {
  Op made;
  made.kind = kind;
  made.name = name;
  made.inputs = std::move(inputs);
  made.outputs = std::move(outputs);
  return segment_.ops.emplace_back(std::move(made));
}

int GraphBuilder::rope_table(const Rope& rope, std::int64_t head_dim) {
  // transformers rotates int(head_dim * partial_rotary_factor) dims of each head.
  const auto dims = static_cast<std::int64_t>(static_cast<double>(head_dim) * rope.partial_factor);
  if (dims < 2 || dims % 2 != 0) {
    throw ModelError(
        fmt::format("head_dim {}: rotary positions need an even number of rotated dims, not {}", head_dim, dims));
  }
  for (std::size_t i = 0; i < graph_.ropes.size(); ++i) {
    if (graph_.ropes[i] == rope && graph_.rope_dims[i] == dims) return static_cast<int>(i);
  }
  graph_.ropes.push_back(rope);
  graph_.rope_dims.push_back(dims);
  return static_cast<int>(graph_.ropes.size()) - 1;
}

void GraphBuilder::set_init(const std::string& name, Parameter::Init init) {
  graph_.parameters[static_cast<std::size_t>(index_.at(name))].init = init;
}

Graph with_loss(Graph graph, const LossOptions& loss) { return GraphBuilder(std::move(graph), loss).take(); }

}  // namespace vramfit
