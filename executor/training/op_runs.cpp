#include <utility>

#include "executor/meter/meter.h"
#include "executor/observe/observer.h"
#include "executor/sharding/unit_state_torch.h"
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

}  // namespace

struct OpRuns::Run {
  Run(OpContext of, const Needs& needed, const StepFacts& facts, at::Device place)
      : context(of),
        needs(needed),
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
  const Value& value(int index) const { return context.segment.values[at_index(index)]; }

  OpContext context;
  Needs needs;
  std::string prefix;
  OpTemporaries temporaries;
  OpCall call;
};

OpRuns::OpRuns(const OpRunsContext& context)
    : context_(context),
      shape_{context.job.micro_batch, context.job.sequence},
      tapes_(make_shared_tapes(tape_inputs(context.graph, context.job, context.device))) {}

OpContext OpRuns::context_of(const Operands& operands) const {
  const Segment& s = context_.graph.segments[at_index(operands.segment())];
  return {.op = s.ops[at_index(operands.run().op)],
          .segment = s,
          .graph = context_.graph,
          .precision = context_.job.precision,
          .device = context_.device,
          .attention = context_.job.attention,
          .deterministic = context_.job.deterministic,
          .shape = shape_};
}

const Needs& OpRuns::needs_of(const Operands& operands) const {
  return tapes_[at_index(operands.segment())]->needs[at_index(operands.run().op)];
}

const Unit& OpRuns::unit_of(const ParameterUse& use) const {
  return context_.layout.units[at_index(context_.layout.unit_of_parameter[at_index(use.parameter)])];
}

const UnitParameter& OpRuns::place_of(const ParameterUse& use) const {
  return unit_of(use).parameters[at_index(context_.layout.slot_of_parameter[at_index(use.parameter)])];
}

at::Tensor OpRuns::shaped(const at::Tensor& tensor, const Value& value) const {
  if (!tensor.defined()) return tensor;
  std::vector<std::int64_t> sizes;
  for (const Dim& dim : value.shape) sizes.push_back(resolve(dim, shape_));
  return tensor.sizes() == at::IntArrayRef(sizes) ? tensor : tensor.view(sizes);
}

at::Tensor OpRuns::weight(const at::Tensor& storage, const ParameterUse& use, const Op& op) const {
  if (!storage.defined()) return {};
  const UnitParameter& p = place_of(use);
  const std::int64_t offset = unit_of(use).gathered_is_shard ? p.shard_offset : p.gathered_offset;
  const std::vector<std::int64_t>& shape = context_.graph.parameters[at_index(use.parameter)].shape;
  return used_part(whole_parameter(storage, offset, p, shape), use, op.attributes.transposed_weight);
}

at::Tensor OpRuns::gradient_home(const at::Tensor& home, const ParameterUse& use, const Op& op) const {
  const UnitParameter& p = place_of(use);
  const bool is_shard = is_direct_gradient(op.kind, context_.job.precision, context_.layout);
  const std::vector<std::int64_t>& shape = context_.graph.parameters[at_index(use.parameter)].shape;
  return used_part(whole_parameter(home, is_shard ? p.shard_offset : 0, p, shape), use,
                   op.attributes.transposed_weight);
}

void OpRuns::zero_padding(Operands& operands) const {
  const UnitParameter& p = place_of(context_of(operands).op.parameters[at_index(operands.run().parameter)]);
  const std::int64_t used = p.rows * p.row_elements;
  operands[0].narrow(0, used, p.padded_elements - used).zero_();
}

void OpRuns::execute(Run& run, Operands& operands, void (*function)(OpCall&)) const {
  if (observer != nullptr) observer->op_begins(operands.segment(), operands.run().op);
  {
    const ExpectedScope scope(operands.expected(), run.prefix + ": unlisted");
    function(run.call);
  }
  if (observer != nullptr) observer->op_ends();
}

void OpRuns::forward(Operands& operands) {
  Run run(context_of(operands), needs_of(operands), context_.facts, context_.place);
  const Op& op = run.op();
  std::size_t next = 0;
  for (const int input : op.inputs) run.call.inputs.push_back(shaped(operands[next++], run.value(input)));
  for (const ParameterUse& use : op.parameters) run.call.parameters.push_back(weight(operands[next++], use, op));
  const std::size_t first_output = next;
  for (const int output : op.outputs) run.call.outputs.push_back(shaped(operands[next++], run.value(output)));
  execute(run, operands, op_functions(op.kind, context_.device.kind).forward);
  for (std::size_t o = 0; o < op.outputs.size(); ++o) {
    at::Tensor& output = operands[first_output + o];
    output = std::move(run.call.outputs[o]);
    if (on_value) on_value(run.context.segment, run.value(op.outputs[o]), output);
  }
}

void OpRuns::backward(Operands& operands) {
  Run run(context_of(operands), needs_of(operands), context_.facts, context_.place);
  const Op& op = run.op();
  OpCall& call = run.call;
  std::size_t next = 0;
  for (const int input : op.inputs) call.inputs.push_back(shaped(operands[next++], run.value(input)));
  for (const int output : op.outputs) call.outputs.push_back(shaped(operands[next++], run.value(output)));
  at::Tensor gradient = shaped(operands[next], run.value(op.outputs[0]));
  call.output_gradient = &gradient;
  next += op.outputs.size();
  for (const ParameterUse& use : op.parameters) call.parameters.push_back(weight(operands[next++], use, op));
  const std::size_t first_gradient = next;
  for (std::size_t i = 0; i < op.inputs.size(); ++i, ++next) {
    run.needs.accumulate_inputs[i] = operands.has(next) && operands.adds(next);
    call.input_gradients.push_back(shaped(operands[next], run.value(op.inputs[i])));
  }
  for (std::size_t p = 0; p < op.parameters.size(); ++p, ++next) {
    run.needs.accumulate_parameters[p] = operands.has(next) && operands.adds(next);
    call.parameter_gradients.push_back(operands.has(next) ? gradient_home(operands[next], op.parameters[p], op)
                                                          : at::Tensor());
  }
  execute(run, operands, op_functions(op.kind, context_.device.kind).backward);
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    if (call.input_gradients[i].defined()) operands[first_gradient + i] = std::move(call.input_gradients[i]);
  }
}

}  // namespace vramfit
