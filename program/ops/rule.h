// What one op allocates and keeps: a pure function of the op, its sizes, its Needs and the device.
// The tape (program/stages/tape.h) allocates outputs and gradients from the graph's shapes; a rule says what
// backward reads, which storages are taken over, and what the kernels allocate besides.
#pragma once

#include <string>
#include <vector>

#include "job/cluster/device.h"
#include "job/job.h"
#include "model_specs/graph.h"
#include "program/work.h"

namespace vramfit {

/// Which inputs and parameters of an op need a gradient, and whether it adds to an existing one.
struct Needs {
  std::vector<bool> inputs, parameters;
  std::vector<bool> accumulate_inputs, accumulate_parameters;
  bool any() const;
};

/// A tensor of an op that backward reads.
struct Ref {
  enum class Of { input, output } of = Of::input;
  int index = 0;
  bool operator==(const Ref&) const = default;
};

/// Where the gradient of an input comes from when it is the first contribution. If something else still needs the
/// storage, the tape falls back to a fresh buffer, so kernels must work both in place and out of place.
/// A later contribution is always added to the existing gradient (pass_through too).
struct GradientSource {
  enum class From {
    fresh,            // a new buffer of the input's shape
    pass_through,     // the gradient of output 0 itself, unchanged (add)
    output_gradient,  // written over the gradient of output 0
    saved             // written over the saved input `index`, after its last reader
  } from = From::fresh;
  int index = 0;
};

/// One event inside a kernel call, in order.
struct Step {
  enum class What { temporary, release, output, input_gradient, parameter_gradient } what = What::temporary;
  int index = -1;    // of the output or gradient
  std::string name;  // of the temporary
  Bytes bytes;       // of the temporary
};

struct Rule {
  std::vector<Ref> saved;
  int in_place_input = -1;                // output 0 takes over this input's storage
  std::vector<GradientSource> gradients;  // per input; inputs without an entry: fresh
  std::vector<Step> forward, backward;    // temporaries still held at the end are freed there, in order
  bool outputs_inside = false;            // the kernel allocates the outputs itself, at its `output` steps
  bool gradients_inside = false;          // the same for fresh input gradients
  bool backward_in_forward = false;       // backward follows forward at once, of a segment's last op
  OpWork work;                            // filled in by rule_for
  // Of one pass that does the op before it as well, where OpRow::joins says so; filled in by rule_for. Empty: none.
  std::vector<Work> joint_forward;
};

/// Everything a rule may read.
struct OpContext {
  const Op& op;
  const Segment& segment;
  const Graph& graph;
  const Precision& precision;
  const Device& device;
  Attention attention = Attention::automatic;
  bool deterministic = false;
  BatchShape shape;
  KernelSource kernels = KernelSource::libtorch;

  std::int64_t input_elements(int i) const;
  std::int64_t output_elements(int i) const;
  std::int64_t tokens() const { return checked_mul(shape.batch, shape.sequence); }
  Dtype compute() const { return precision.compute; }
};

/// The rule of `context.op.kind` for modeling `vramfit`, from its row (program/ops/op_row.h).
Rule rule_for(const OpContext& context, const Needs& needs);

/// Whether any matrix product of the graph adds a bias, for which CUDA uses cublasLt.
bool adds_bias(const Graph& graph);

/// Element type of a value under a precision.
Dtype value_dtype(const Value& value, const Precision& precision);

}  // namespace vramfit
