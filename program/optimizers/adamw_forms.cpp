#include "program/optimizers/adamw_forms.h"

namespace vramfit {

namespace {

constexpr std::string_view kRoot = "root of exp_avg_sq", kDenominator = "denominator", kNumber = "number",
                           kCastNumber = "number, cast";
constexpr std::size_t kLoopPlaces = 3;

/// What the calls make, in their order. Numbers have the places after those of parameters and of the loop's variables.
class Calls {
 public:
  Calls(const Unit& unit, const UnitUpdate& update) : unit_(unit), update_(update) {
    for (std::size_t slot = 0; slot < unit.parameters.size(); ++slot) {
      if (unit.parameters[slot].trainable) slots_.push_back(slot);
    }
  }

  const std::vector<std::size_t>& slots() const { return slots_; }
  std::vector<UpdateTemporary> take() { return std::move(made_); }

  void make(std::string_view name, std::size_t slot, std::size_t place) {
    made_.push_back({name, slot, place, unit_.parameters[slot].shard_elements * dtype_bytes(update_.state)});
  }
  void free(std::size_t slot, std::size_t place) { made_.push_back({{}, slot, place, {}}); }

  /// On CPU a call that takes a number makes a tensor of it, in double, and another in the dtype of its operand. On
  /// CUDA it is an argument of the kernel.
  void begin_number(std::size_t slot) {
    if (update_.device != DeviceKind::cpu) return;
    made_.push_back({kNumber, slot, number_place(), dtype_bytes(Dtype::f32) + dtype_bytes(Dtype::f32)});
    made_.push_back({kCastNumber, slot, number_place() + 1, dtype_bytes(update_.storage)});
  }
  void end_number(std::size_t slot) {
    if (update_.device != DeviceKind::cpu) return;
    free(slot, number_place());
    free(slot, number_place() + 1);
  }
  void number(std::size_t slot) {
    begin_number(slot);
    end_number(slot);
  }
  void number_of_each() {
    for (const std::size_t slot : slots_) number(slot);
  }

 private:
  std::size_t number_place() const { return slots_.size() + kLoopPlaces; }

  const Unit& unit_;
  const UnitUpdate& update_;
  std::vector<std::size_t> slots_;
  std::vector<UpdateTemporary> made_;
};

/// _foreach_sqrt makes a list as large as the parameters, which lives until the update is done.
void by_lists(Calls& calls, bool divides) {
  if (divides) calls.number_of_each();
  calls.number_of_each();  // parameters decay
  calls.number_of_each();  // the second average moves
  std::size_t place = 0;
  for (const std::size_t slot : calls.slots()) calls.make(kRoot, slot, place++);
  calls.number_of_each();  // roots are divided
  calls.number_of_each();  // and eps added
}

/// The loop's variable keeps a parameter's denominator until that of the next one is whole.
void by_parameter(Calls& calls, bool divides) {
  constexpr std::size_t kRootPlace = 0, kNext = 1, kOld = 2;
  static_assert(kOld < kLoopPlaces);
  std::size_t next = kNext, old = kOld;
  for (const std::size_t slot : calls.slots()) {
    if (divides) calls.number(slot);
    calls.number(slot);
    calls.number(slot);
    calls.make(kRoot, slot, kRootPlace);
    calls.begin_number(slot);
    calls.make(kDenominator, slot, next);
    calls.end_number(slot);
    calls.free(slot, kRootPlace);
    calls.number(slot);
    calls.free(slot, old);
    std::swap(next, old);
  }
}

}  // namespace

std::vector<UpdateTemporary> temporaries_of_adamw(const Unit& unit, const UnitUpdate& update) {
  if (!is_of_calls(update.form)) return {};
  Calls calls(unit, update);
  update.form == OptimizerImplementation::foreach ? by_lists(calls, update.divides)
                                                  : by_parameter(calls, update.divides);
  return calls.take();
}

/// Decay, both averages, the root, its quotient and sum, the update: on GPUs a further quotient, as the step size is
/// the card's. Gradients are read twice, and read and written where they are divided.
Work work_of_adamw_calls(const UnitUpdate& update) {
  constexpr std::int64_t kNumbersFirst = 12, kCalls = 8;
  // Elements that one launch of a call over lists takes at most: 320 blocks of 65536.
  constexpr std::int64_t kOfLaunch = std::int64_t{320} << 16;
  const bool is_cuda = update.device == DeviceKind::cuda;
  const std::int64_t calls = kCalls + (is_cuda ? 1 : 0) + (update.divides ? 1 : 0);
  const std::int64_t of_call =
      update.form == OptimizerImplementation::loop ? update.parameters : ceil_div(update.elements, kOfLaunch);
  const Bytes gradient = dtype_bytes(update.gradient), state = dtype_bytes(update.state);
  const Bytes each =
      4 * dtype_bytes(update.storage) + (is_cuda ? 16 : 14) * state + (update.divides ? 4 : 2) * gradient;
  return {.launches = (is_cuda ? kNumbersFirst : 0) + calls * of_call,
          .bytes = static_cast<double>((update.elements * each).n)};
}

}  // namespace vramfit
