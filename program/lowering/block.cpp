#include "program/lowering/block.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/numbers/index.h"
#include "program/ops/op_row.h"

namespace vramfit::program {

namespace {

class BlockLowering {
 public:
  BlockLowering(const BlockInputs& inputs, const CallSlots& call)
      : in_(inputs),
        call_(call),
        is_written_(call.slots.size()),
        values_(inputs.segment.values.size()),
        gradients_(inputs.segment.values.size()) {
    for (const Slot& slot : call.slots) slots_.push_back(writer_.declare({.bytes = {}, .dtype = slot.dtype}));
    for (const SlotOfValue& v : call.values) values_[at(v.value)] = slots_[at(v.slot)];
    for (const SlotOfValue& v : call.gradients) gradients_[at(v.value)] = slots_[at(v.slot)];
    for (const Op& op : in_.segment.ops) {
      first_weight_.push_back(weights_.size());
      for (const ParameterUse& use : op.parameters) weights_.push_back(weight_of(use));
    }
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (!call.slots[slot].is_kept) slots_[slot].reset();
    }
  }

  LoweredBlock lower(const std::vector<TapeAction>& actions) {
    for (const TapeAction& action : actions) perform(action);
    writer_.be_quiet(true);  // what is left belongs to the caller
    LoweredBlock lowered;
    const std::vector<int> numbers = renumber(lowered);
    const auto slots_of = [&](const std::vector<Held>& list) {
      std::vector<SlotOfValue> slots;
      for (std::size_t v = 0; v < list.size(); ++v) {
        if (list[v]) slots.push_back({static_cast<int>(v), numbers[at(list[v].buffer())]});
      }
      return slots;
    };
    lowered.values = slots_of(values_);
    lowered.gradients = slots_of(gradients_);
    return lowered;
  }

 private:
  Held weight_of(const ParameterUse& use) const {
    const auto unit = std::ranges::find(in_.units, in_.layout.unit_of_parameter[at(use.parameter)]);
    const int slot = call_.weights[static_cast<std::size_t>(unit - in_.units.begin())];
    return slot < 0 ? Held{} : slots_[at(slot)];
  }

  void perform(const TapeAction& action) {
    switch (action.what) {
      case TapeAction::Do::run:
        return forward(action);
      case TapeAction::Do::backward:
        return backward(action);
      case TapeAction::Do::drop_value:
        return drop_value(action.value);
      case TapeAction::Do::drop_gradient:
        return gradients_[at(action.value)].reset();
    }
  }

  void drop_value(int value) {
    Held& dropped = values_[at(value)];
    if (call_.loss >= 0 && value == in_.segment.output && dropped) {
      writer_.run({.kernel = Kernel::add_loss},
                  {value_operand(&dropped, How::read, value), {&slots_[at(call_.loss)], How::add}});
    }
    dropped.reset();
  }

  /// Number of the view of a value as a whole, or of its gradient, which has the same; -1 if views are not kept.
  int view_of(int value) {
    if (!in_.views.are_kept()) return -1;
    const Value& v = in_.segment.values[at(value)];
    std::vector<std::int64_t> sizes;
    for (const Dim& dim : v.shape) sizes.push_back(resolve(dim, in_.shape));
    return in_.views.number(whole_view(sizes, value_dtype(v, in_.precision)));
  }
  Writer::Operand value_operand(const Held* held, How how, int value) {
    return {held, how, program::value_of(value), view_of(value)};
  }
  Writer::Operand gradient_operand(const Held* held, How how, int value) {
    return {held, how, program::gradient_of(value), view_of(value)};
  }

  /// Of the op's parameter `p`, or of its gradient, which `held` has; it lies where the call says with the offset
  /// `base`.
  int view_of(const Op& op, std::size_t p, const Held& held, std::size_t base) {
    if (!held || !in_.views.are_kept()) return -1;
    const ParameterUse& use = op.parameters[p];
    const bool by_column = op.attributes.transposed_weight && op_row(op.kind).transposable == static_cast<int>(p);
    const Dtype dtype = writer_.code().buffers[at(held.buffer())].dtype;
    return in_.views.number(
        used_view(in_.graph.parameters[at(use.parameter)].shape, use, by_column, dtype, static_cast<int>(base)));
  }

  Held allocate_value(int value, bool gradient) {
    const Value& v = in_.segment.values[at(value)];
    return writer_.allocate(
        {.bytes = element_count(v, in_.shape) * dtype_bytes(value_dtype(v, in_.precision)),
         .label = in_.labels.number({".", v.name, gradient ? ": gradient" : ""}),
         .segment = -1,
         .category = in_loss_region(in_.segment, value) ? Category::logits_and_loss : Category::activations,
         .dtype = value_dtype(v, in_.precision)});
  }

  /// Temporaries of a kernel, and the outputs or gradients that it allocates itself.
  Range inside(const Op& op, const std::vector<Step>& steps, const TapeAction* backward_action) {
    writer_.begin_inside();
    std::vector<std::pair<const std::string*, Held>> temporaries;
    for (const Step& step : steps) {
      switch (step.what) {
        case Step::What::temporary:
          temporaries.emplace_back(&step.name,
                                   writer_.allocate({.bytes = step.bytes,
                                                     .label = in_.labels.number({".", op.name, ": ", step.name}),
                                                     .segment = -1,
                                                     .category = Category::temporaries}));
          break;
        case Step::What::release:
          std::erase_if(temporaries, [&](const auto& t) { return *t.first == step.name; });
          break;
        case Step::What::output:
          values_[at(op.outputs[at(step.index)])] = allocate_value(op.outputs[at(step.index)], false);
          break;
        case Step::What::input_gradient:
          if (backward_action->input_gradients[at(step.index)].mode == GradientTarget::Mode::fresh) {
            gradients_[at(op.inputs[at(step.index)])] = allocate_value(op.inputs[at(step.index)], true);
          }
          break;
        case Step::What::parameter_gradient:
          break;
      }
    }
    for (auto& temporary : temporaries) temporary.second.reset();
    return writer_.end_inside();
  }

  void add_weights(int index, Writer::Operands& operands) {
    const Op& op = in_.segment.ops[at(index)];
    for (std::size_t p = 0; p < op.parameters.size(); ++p) {
      const std::size_t w = first_weight_[at(index)] + p;
      operands.push_back(Writer::viewed(weights_[w], How::read, view_of(op, p, weights_[w], w)));
    }
  }

  /// The outputs of an op that its function doesn't allocate itself.
  void make_outputs(int index) {
    const Op& op = in_.segment.ops[at(index)];
    const Rule& rule = in_.tape.rules[at(index)];
    std::size_t first = 0;
    if (rule.in_place_input >= 0) {
      values_[at(op.outputs[0])] = std::move(values_[at(op.inputs[at(rule.in_place_input)])]);
      first = 1;
    }
    if (rule.outputs_inside) return;
    for (std::size_t o = first; o < op.outputs.size(); ++o) {
      values_[at(op.outputs[o])] = allocate_value(op.outputs[o], false);
    }
  }

  void add_forward(int index, Writer::Operands& operands) {
    const Op& op = in_.segment.ops[at(index)];
    const Rule& rule = in_.tape.rules[at(index)];
    const std::size_t first = rule.in_place_input < 0 ? 0 : 1;
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const bool is_taken = static_cast<int>(i) == rule.in_place_input;
      operands.push_back(value_operand(&values_[at(is_taken ? op.outputs[0] : op.inputs[i])], How::read, op.inputs[i]));
    }
    add_weights(index, operands);
    for (std::size_t o = 0; o < op.outputs.size(); ++o) {
      operands.push_back(value_operand(&values_[at(op.outputs[o])], o < first ? How::add : How::write, op.outputs[o]));
    }
  }

  void forward(const TapeAction& action) {
    const int index = action.op, joined = action.joined;
    const Rule& rule = in_.tape.rules[at(index)];
    if (joined >= 0) make_outputs(joined);
    make_outputs(index);
    const Range steps = inside(in_.segment.ops[at(index)], rule.forward, nullptr);
    Writer::Operands& operands = writer_.operands();
    if (joined >= 0) add_forward(joined, operands);
    add_forward(index, operands);
    const bool has_backward = in_.tape.needs[at(index)].any();
    writer_.run(
        {.kernel = Kernel::forward, .op = index, .inside = steps, .has_backward = has_backward, .joined = joined},
        operands, joined < 0 ? rule.work.forward : rule.joint_forward);
  }

  /// The slot of the next gradient home; allocated, with zeros where the op writes nothing, if nothing has written to
  /// it.
  Writer::Operand next_home(const Op& op, std::size_t parameter) {
    const std::size_t home = next_home_++;
    const auto slot = at(call_.homes[home].slot);
    const ParameterUse& use = op.parameters[parameter];
    const std::size_t base = weights_.size() + home;
    if (call_.slots[slot].is_new && !is_written_[slot]) {
      writer_.allocate(slots_[slot]);
      const Bytes filled = call_.slots[slot].filled;
      const bool writes_whole = !is_direct_gradient(op.kind, use.parameter, in_.precision, in_.layout) && use.count < 0;
      const int padding = writes_whole ? padding_view(use, slot, base) : -1;
      writer_.run({.kernel = Kernel::zero},
                  {Writer::viewed(slots_[slot], writes_whole ? How::write_part : How::write, padding)},
                  Work{.launches = filled.n > 0 ? 1 : 0, .bytes = static_cast<double>(filled.n)});
    }
    is_written_[slot] = true;
    const How how = call_.homes[home].adds ? How::add : How::write;
    return Writer::viewed(slots_[slot], how, view_of(op, parameter, slots_[slot], base));
  }

  /// Of a whole parameter's gradient, what lies beyond the parameter.
  int padding_view(const ParameterUse& use, std::size_t slot, std::size_t base) {
    const Dtype dtype = call_.slots[slot].dtype;
    View view = list_view(element_count(in_.graph.parameters[at(use.parameter)]),
                          call_.slots[slot].filled.n / dtype_bytes(dtype).n, dtype);
    view.base = static_cast<int>(base);
    return in_.views.number(view);
  }

  /// What backward reads: saved values where the rule says so, gradients of outputs, weights.
  void add_read(const Op& op, int index, Writer::Operands& operands) {
    const Rule& rule = in_.tape.rules[at(index)];
    const auto add_saved = [&](Ref::Of of, const std::vector<int>& values) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        const bool is_saved = std::ranges::count(rule.saved, Ref{of, static_cast<int>(i)}) > 0;
        operands.push_back(value_operand(is_saved ? &values_[at(values[i])] : nullptr, How::read, values[i]));
      }
    };
    add_saved(Ref::Of::input, op.inputs);
    const std::size_t first_output = operands.size();
    add_saved(Ref::Of::output, op.outputs);
    // The loss, where it is computed in backward.
    if (call_.loss >= 0 && op.outputs[0] == in_.segment.output) {
      operands[first_output] = value_operand(&values_[at(op.outputs[0])], How::add, op.outputs[0]);
    }
    for (const int output : op.outputs) {
      operands.push_back(gradient_operand(&gradients_[at(output)], How::read, output));
    }
    add_weights(index, operands);
  }

  static How how_of(const GradientTarget& target, const Rule& rule, std::size_t input) {
    if (target.mode == GradientTarget::Mode::accumulate) return How::add;
    const bool is_taken = target.mode == GradientTarget::Mode::take_output_gradient;
    return is_taken && rule.gradients[input].from == GradientSource::From::pass_through ? How::pass : How::write;
  }

  void backward(const TapeAction& action) {
    using Mode = GradientTarget::Mode;
    const Op& op = in_.segment.ops[at(action.op)];
    const Rule& rule = in_.tape.rules[at(action.op)];
    Writer::Operands& operands = writer_.operands();
    add_read(op, action.op, operands);
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const GradientTarget& target = action.input_gradients[i];
      Held& gradient = gradients_[at(op.inputs[i])];
      if (target.mode == Mode::fresh && !rule.gradients_inside) gradient = allocate_value(op.inputs[i], true);
      if (target.mode == Mode::take_output_gradient) gradient = gradients_[at(target.value)];
      if (target.mode == Mode::take_saved) gradient = values_[at(target.value)];
    }
    const Range steps = inside(op, rule.backward, &action);
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      const GradientTarget& target = action.input_gradients[i];
      const Held* gradient = target.mode == Mode::none ? nullptr : &gradients_[at(op.inputs[i])];
      operands.push_back(gradient_operand(gradient, how_of(target, rule, i), op.inputs[i]));
    }
    for (std::size_t p = 0; p < op.parameters.size(); ++p) {
      operands.push_back(in_.tape.needs[at(action.op)].parameters[p] ? next_home(op, p)
                                                                     : Writer::Operand(nullptr, How::write));
    }
    writer_.run({.kernel = Kernel::backward, .op = action.op, .inside = steps}, operands, rule.work.backward);
  }

  /// Slots first, then what the block leaves, then what it frees itself. Returns the new numbers.
  std::vector<int> renumber(LoweredBlock& lowered) {
    Code& code = writer_.code();
    std::vector<int> numbers(code.buffers.size(), -1);
    int next = 0;
    const auto place = [&](int buffer) {
      if (numbers[at(buffer)] < 0) numbers[at(buffer)] = next++;
    };
    for (std::size_t slot = 0; slot < call_.slots.size(); ++slot) place(static_cast<int>(slot));
    for (const std::vector<Held>* list : {&values_, &gradients_}) {
      for (const Held& held : *list) {
        if (!held || numbers[at(held.buffer())] >= 0) continue;
        place(held.buffer());
        lowered.made.push_back(code.buffers[at(held.buffer())]);
      }
    }
    lowered.code.slots = next;
    for (std::size_t b = 0; b < numbers.size(); ++b) place(static_cast<int>(b));
    std::vector<Buffer> buffers(code.buffers.size());
    for (std::size_t b = 0; b < buffers.size(); ++b) buffers[at(numbers[b])] = code.buffers[b];
    code.buffers = std::move(buffers);
    for (Instruction& instruction : code.instructions) {
      if (auto* allocation = std::get_if<Allocate>(&instruction)) allocation->buffer = numbers[at(allocation->buffer)];
      if (auto* end = std::get_if<Free>(&instruction)) end->buffer = numbers[at(end->buffer)];
    }
    for (Access& access : code.accesses) {
      if (access.buffer >= 0) access.buffer = numbers[at(access.buffer)];
    }
    for (Inside& step : code.inside) step.buffer = numbers[at(step.buffer)];
    lowered.code.code = std::move(code);
    return numbers;
  }

  const BlockInputs& in_;
  const CallSlots& call_;
  Writer writer_;                 // outlives what it handed out
  std::vector<bool> is_written_;  // by slot: something in the block has written a gradient there
  std::vector<Held> slots_, values_, gradients_, weights_;
  std::vector<std::size_t> first_weight_;  // by op, in weights_
  std::size_t next_home_ = 0;
};

}  // namespace

LoweredBlock lower_block(const BlockInputs& inputs, const std::vector<TapeAction>& actions, const CallSlots& call) {
  return BlockLowering(inputs, call).lower(actions);
}

}  // namespace vramfit::program
