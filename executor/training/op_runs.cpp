#include <utility>

#include "executor/meter/meter.h"
#include "executor/observe/observer.h"
#include "executor/training/op_runs_torch.h"
#include "executor/training/tensor_torch.h"

namespace vramfit {

namespace {

/// Temporaries asked for by name, held until the call ends.
class OpTemporaries final : public Temporaries {
 public:
  OpTemporaries(const std::string& prefix, at::Device place) : prefix_(prefix), place_(place) {}
  at::Tensor allocate(std::string_view name, const std::vector<std::int64_t>& sizes, Dtype dtype) override {
    held_.push_back(allocate_tensor(sizes, dtype, {place_, Category::temporaries, prefix_ + ": " + std::string(name)}));
    return held_.back();
  }

 private:
  const std::string& prefix_;
  at::Device place_;
  std::vector<at::Tensor> held_;
};

/// Takes the next operands of a call, in their order.
class OperandReader {
 public:
  explicit OperandReader(Operands& operands) : operands_(operands) {}
  std::size_t next() const { return next_; }
  void skip(std::size_t count) { next_ += count; }
  void take(std::size_t count, std::vector<at::Tensor>& to) {
    for (std::size_t i = 0; i < count; ++i) to.push_back(operands_.view(next_++));
  }
  /// Which of the next `count` operands there are, and whether they are added to; takes none.
  void look(std::size_t count, std::vector<bool>& wanted, std::vector<bool>& adds) const {
    for (std::size_t i = next_; i < next_ + count; ++i) {
      wanted.push_back(operands_.has(i));
      adds.push_back(operands_.has(i) && operands_.adds(i));
    }
  }

 private:
  Operands& operands_;
  std::size_t next_ = 0;
};

}  // namespace

struct OpRuns::Run {
  Run(OpContext of, const StepFacts& facts, at::Device place)
      : context(of),
        prefix(of.segment.name + "." + of.op.name),
        temporaries(prefix, place),
        call{.context = context,
             .needs = needs,
             .facts = facts,
             .temporaries = temporaries,
             .inputs = {},
             .outputs = {},
             .parameters = {},
             .input_gradients = {},
             .parameter_gradients = {}} {}

  const Op& op() const { return context.op; }

  OpContext context;
  Needs needs;  // what the program has gradients for
  std::string prefix;
  OpTemporaries temporaries;
  OpCall call;
};

OpRuns::OpRuns(const OpRunsContext& context)
    : context_(context), shape_{context.job.micro_batch, context.job.sequence} {}

OpContext OpRuns::context_of(const Operands& operands, int op) const {
  const Segment& s = context_.graph.segments[at_index(operands.segment())];
  return {.op = s.ops[at_index(op)],
          .segment = s,
          .graph = context_.graph,
          .precision = context_.job.precision,
          .device = context_.device,
          .attention = context_.job.attention,
          .deterministic = context_.job.deterministic,
          .shape = shape_,
          .kernels = context_.job.kernels};
}

template <typename F>
void OpRuns::execute(Run& run, Operands& operands, const F& function) const {
  if (observer != nullptr) observer->op_begins(operands.segment(), operands.run().op);
  {
    const ExpectedScope scope(operands.expected(), run.prefix + ": unlisted");
    function(run.call);
  }
  if (observer != nullptr) observer->op_ends();
}

void OpRuns::finish_forward(Run& run, Operands& operands, std::size_t first_output) const {
  const Op& op = run.op();
  for (std::size_t o = 0; o < op.outputs.size(); ++o) {
    at::Tensor& output = operands[first_output + o];
    output = std::move(run.call.outputs[o]);
    if (on_value) on_value(run.context.segment, run.context.segment.values[at_index(op.outputs[o])], output);
  }
}

void OpRuns::forward(Operands& operands) {
  const int joined = operands.run().joined;
  OperandReader reader(operands);
  const auto take = [&](Run& run) {
    const Op& op = run.op();
    run.needs.inputs.assign(op.inputs.size(), operands.run().has_backward);
    reader.take(op.inputs.size(), run.call.inputs);
    reader.take(op.parameters.size(), run.call.parameters);
    const std::size_t first_output = reader.next();
    reader.take(op.outputs.size(), run.call.outputs);
    return first_output;
  };
  Run run(context_of(operands, operands.run().op), context_.facts, context_.place);
  const OpFunctions& functions = op_functions(run.op().kind, context_.device.kind, context_.job.kernels);
  if (joined < 0) {
    const std::size_t first_output = take(run);
    execute(run, operands, functions.forward);
    return finish_forward(run, operands, first_output);
  }
  Run before(context_of(operands, joined), context_.facts, context_.place);
  const std::size_t output_before = take(before), first_output = take(run);
  execute(run, operands, [&](OpCall& call) { functions.joint_forward(before.call, call); });
  finish_forward(before, operands, output_before);
  finish_forward(run, operands, first_output);
}

void OpRuns::backward(Operands& operands) {
  Run run(context_of(operands, operands.run().op), context_.facts, context_.place);
  const Op& op = run.op();
  OpCall& call = run.call;
  OperandReader reader(operands);
  reader.take(op.inputs.size(), call.inputs);
  reader.take(op.outputs.size(), call.outputs);
  at::Tensor gradient = operands.view(reader.next());
  call.output_gradient = &gradient;
  reader.skip(op.outputs.size());
  reader.take(op.parameters.size(), call.parameters);
  const std::size_t first_gradient = reader.next();
  reader.look(op.inputs.size(), run.needs.inputs, run.needs.accumulate_inputs);
  reader.take(op.inputs.size(), call.input_gradients);
  reader.look(op.parameters.size(), run.needs.parameters, run.needs.accumulate_parameters);
  reader.take(op.parameters.size(), call.parameter_gradients);
  execute(run, operands, op_functions(op.kind, context_.device.kind, context_.job.kernels).backward);
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (call.input_gradients[i].defined()) operands[first_gradient + i] = std::move(call.input_gradients[i]);
  }
}

}  // namespace vramfit
