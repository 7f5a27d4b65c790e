// What happens around each operator: it runs as it would, and what it wrote becomes known, assumed or unknown.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "phantom/values/assume_torch.h"
#include "phantom/values/peaks_torch.h"

namespace vramfit::values {

/// Of a value that is unknown or assumed. `type`: 0 floating, 1 integer, 2 boolean.
using OnRead = void (*)(const char* kind, std::int64_t assumptions, std::int64_t bytes, std::int32_t type);

inline OnRead& on_read() {
  static OnRead kOnRead = nullptr;
  return kOnRead;
}

/// What the operator reads while one lives on this thread is part of its size, and the answer to it is withdrawn after.
class InSizedOperator {
 public:
  InSizedOperator() { ++depth(); }
  ~InSizedOperator() {
    --depth();
    vramfit_answer_withdraw();
  }
  InSizedOperator(const InSizedOperator&) = delete;
  InSizedOperator& operator=(const InSizedOperator&) = delete;
  static int& depth() {
    thread_local int kDepth = 0;
    return kDepth;
  }
};

inline constexpr std::int32_t kFloating = 0, kInteger = 1, kBoolean = 2;

inline void report_read(const char* kind, std::int64_t assumptions, std::int32_t type, std::int64_t bytes) {
  if (assumptions == 0 || on_read() == nullptr || InSizedOperator::depth() > 0) return;
  on_read()(kind, assumptions, bytes, type);
}

inline void report_read(const char* kind, const at::Tensor& t, std::int64_t assumptions) {
  const std::int32_t type = t.scalar_type() == at::kBool ? kBoolean : is_integral(t) ? kInteger : kFloating;
  report_read(kind, assumptions, type, bytes_of(t));
}

/// What is known of an operator's arguments before it runs.
struct Call {
  std::vector<c10::IValue> arguments;  // copies: running consumes the stack's
  Tensors written;
  std::int64_t assumptions = 0;  // of all that it reads; VRAMFIT_UNKNOWN
};

class Observer final : public c10::OperatorKernel {
 public:
  explicit Observer(OperatorFacts facts) : facts_(std::move(facts)), rule_(rule_of(facts_.base)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) const {
    observe(op, keys, stack);
    tell_peaks();
  }

 private:
  void observe(const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) const {
    const c10::DispatchKeySet next =
        facts_.role == Role::factory
            ? c10::DispatchKeySet(key_of_factory(*stack))
            : keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
    const bool is_sparse =
        facts_.role == Role::coalesce && next.highestPriorityTypeId() == c10::DispatchKey::SparseCUDA;
    if (is_sparse) return run_coalesce(op, next, *stack);
    if (next.highestPriorityTypeId() != c10::DispatchKey::CUDA) return op.redispatchBoxed(next, stack);
    if (facts_.role == Role::sized) return run_sized(op, next, *stack);
    if (facts_.role == Role::equal) return run_equal(op, next, *stack);
    const bool to_host = facts_.role == Role::copy && !argument(*stack, 0).toTensor().is_cuda();
    if (to_host) return read(op, next, *stack, argument(*stack, 1).toTensor(), "copy to the host");
    if (facts_.role == Role::scalar_read) return read(op, next, *stack, argument(*stack, 0).toTensor(), "item");
    const Call call = look_at(*stack);
    if (run(op, next, *stack, call.written)) settle(op, call, results_of(*stack, call.written));
  }

  const c10::IValue& argument(const c10::Stack& stack, std::size_t position) const {
    return stack[stack.size() - facts_.writes.size() + position];
  }

  Call look_at(const c10::Stack& stack) const {
    Call call;
    if (!facts_.computes) call.assumptions = VRAMFIT_UNKNOWN;
    for (std::size_t n = 0; n < facts_.writes.size(); ++n) {
      each_tensor(argument(stack, n), [&](const at::Tensor& t) {
        if (facts_.writes[n]) call.written.push_back(t);
        if (facts_.only_writes[n] || call.assumptions == VRAMFIT_UNKNOWN) return;
        const std::int64_t one = bytes_of(t) > limit_bytes(t) ? VRAMFIT_UNKNOWN : known(t);
        call.assumptions = one == VRAMFIT_UNKNOWN ? one : call.assumptions | one;
      });
    }
    if (call.assumptions != VRAMFIT_UNKNOWN || rule_ != nullptr) {
      call.arguments.assign(stack.end() - static_cast<std::ptrdiff_t>(facts_.writes.size()), stack.end());
    }
    return call;
  }

  /// True if it launched something, so that what it wrote is not known yet.
  static bool run(const c10::OperatorHandle& op, c10::DispatchKeySet next, c10::Stack& stack, const Tensors& written) {
    const bool is_computed = !written.empty() && is_index_or_mask(written[0]);
    if (vramfit_operation_begin(is_computed ? settings().integer_bytes : 0) == 0) {
      op.redispatchBoxed(next, &stack);
      return false;
    }
    try {
      op.redispatchBoxed(next, &stack);
    } catch (...) {
      vramfit_operation_end();
      throw;
    }
    return vramfit_operation_end() != 0;
  }

  Tensors results_of(const c10::Stack& stack, const Tensors& written) const {
    Tensors results = written;
    const std::size_t first = stack.size() - facts_.aliases.size();
    for (std::size_t n = 0; n < facts_.aliases.size(); ++n) {
      if (!facts_.aliases[n]) each_tensor(stack[first + n], [&](const at::Tensor& t) { results.push_back(t); });
    }
    return results;
  }

  static void set_all(const Tensors& results, std::int64_t assumptions) {
    for (const at::Tensor& t : results) set_known(t, assumptions);
  }

  void settle(const c10::OperatorHandle& op, const Call& call, const Tensors& results) const {
    if (call.assumptions != VRAMFIT_UNKNOWN && are_small(results)) {
      const std::optional<c10::Stack> made = computed(op, facts_, call.arguments);
      if (made && put_all(*made, results, call.written.size())) return set_all(results, of_result(call));
    }
    if (facts_.role == Role::keeps || facts_.role == Role::unscale) return keep(results);
    set_all(results, VRAMFIT_UNKNOWN);
    if (rule_ != nullptr && !results.empty() && call.arguments[0].isTensor()) rule_({facts_, call.arguments, results});
  }

  /// What a computed result rests on. Whether an unknown number is finite doesn't depend on which one was assumed.
  std::int64_t of_result(const Call& call) const {
    const std::int64_t drawn = facts_.generator >= 0 ? std::int64_t{VRAMFIT_ASSUMES_SAMPLED} : 0;
    const bool is_assumed = (call.assumptions & VRAMFIT_ASSUMES_VALUE) != 0;
    if (!is_assumed || !asks_if_finite(facts_.base, call.arguments)) return call.assumptions | drawn;
    return (call.assumptions & ~std::int64_t{VRAMFIT_ASSUMES_VALUE}) | VRAMFIT_ASSUMES_FINITE;
  }

  static bool are_small(const Tensors& results) {
    return std::all_of(results.begin(), results.end(),
                       [](const at::Tensor& t) { return bytes_of(t) <= limit_bytes(t); });
  }

  /// Results but for the first `done`, which the CPU wrote in place.
  bool put_all(const c10::Stack& made, const Tensors& results, std::size_t done) const {
    for (std::size_t n = 0; n < facts_.aliases.size(); ++n) {
      if (facts_.aliases[n]) continue;
      if (!made[n].isTensor() && !made[n].isTensorList()) return false;
      const auto list = made[n].isTensorList() ? made[n].toTensorVector() : std::vector<at::Tensor>{made[n].toTensor()};
      for (const at::Tensor& t : list) {
        if (t.defined() && (done >= results.size() || !put(results[done++], t))) return false;
      }
    }
    return done == results.size();
  }

  /// Scales of mixed precision: gradients are unknown after it, whether they were finite and the scale are not.
  void keep(const Tensors& results) const {
    for (const at::Tensor& t : results) {
      const bool is_gradient = facts_.role == Role::unscale && !t.is_same(results.back());
      const bool is_kept = !is_gradient && bytes_of(t) <= limit_bytes(t);
      const std::int64_t before = is_kept ? known(t) : VRAMFIT_UNKNOWN;
      set_known(t, before == VRAMFIT_UNKNOWN ? before : before | VRAMFIT_ASSUMES_FINITE);
    }
  }

  c10::DispatchKey key_of_factory(const c10::Stack& stack) const {
    const c10::IValue& device = argument(stack, static_cast<std::size_t>(facts_.device));
    return c10::computeDispatchKey(std::nullopt, std::nullopt, device.toOptional<c10::Device>());
  }

  /// The card's kernel compares without further operators, and reads one boolean.
  void run_equal(const c10::OperatorHandle& op, c10::DispatchKeySet next, c10::Stack& stack) const {
    const Call call = look_at(stack);
    const at::Tensor left = argument(stack, 0).toTensor(), right = argument(stack, 1).toTensor();
    const bool is_read = is_on_card(left) && is_on_card(right) && left.sizes() == right.sizes() && left.numel() > 0 &&
                         left.const_data_ptr() != right.const_data_ptr();
    if (!is_read) return run_answered(op, next, stack, std::nullopt);
    std::optional<c10::Stack> made;
    if (call.assumptions != VRAMFIT_UNKNOWN) made = computed(op, facts_, call.arguments);
    report_read("equal", made ? call.assumptions : std::int64_t{VRAMFIT_ASSUMES_SELECTION}, kBoolean, 1);
    // As `(left == right).all()` with unknown numbers, by assume_equality.
    run_answered(op, next, stack, made ? made->back().toBool() : is_integral(left));
  }

  static auto unique_columns(const at::Tensor& host) {
    return at::_ops::unique_dim::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), host, /*dim=*/1,
                                            /*sorted=*/true, /*return_inverse=*/false, /*return_counts=*/false);
  }

  /// What duplicate entries of a sparse tensor are joined to.
  void run_coalesce(const c10::OperatorHandle& op, c10::DispatchKeySet next, c10::Stack& stack) const {
    const at::Tensor indices = argument(stack, 0).toTensor()._indices();
    const std::int64_t assumptions = bytes_of(indices) > limit_bytes(indices) ? VRAMFIT_UNKNOWN : known(indices);
    const auto view = assumptions == VRAMFIT_UNKNOWN ? std::nullopt : host_view(indices);
    std::optional<at::Tensor> joined;
    if (view) joined = std::get<0>(unique_columns(*view));
    const std::int64_t rests_on = joined ? assumptions : std::int64_t{VRAMFIT_ASSUMES_SELECTION};
    report_read("size of coalesce", indices, rests_on);
    run_answered(op, next, stack, joined ? joined->size(1) : assumed_rows(indices[0]));
    const at::Tensor result = stack.back().toTensor();
    set_known(result._values(), VRAMFIT_UNKNOWN);
    set_known(result._indices(), joined && put(result._indices(), *joined) ? assumptions : VRAMFIT_UNKNOWN);
  }

  /// Runs an operator that reads a count or a boolean of the card itself: this one.
  static void run_answered(const c10::OperatorHandle& op, c10::DispatchKeySet next, c10::Stack& stack,
                           std::optional<std::int64_t> answer) {
    if (answer) vramfit_answer_leave(*answer);
    const InSizedOperator inside;
    run(op, next, stack, {});
  }

  /// Code that nobody observes made it unknown: compiled code, a kernel of the program's own, a graph.
  static std::string with_writer(const char* kind, const at::Tensor& t) {
    const char* name = vramfit_value_writer(address_of(t));
    if (name == nullptr) name = vramfit_value_writer(t.storage().data());
    return name == nullptr ? std::string(kind) : std::string(kind) + " of what " + name + " wrote";
  }

  /// A read that fails, because another rank has ended, fails at once: who reads is looked up afterwards.
  void read(const c10::OperatorHandle& op, c10::DispatchKeySet next, c10::Stack& stack, const at::Tensor source,
            const char* kind) const {
    std::int64_t assumptions = 0;
    bool is_reported = false;
    std::string what(kind);
    if (is_on_card(source) && InSizedOperator::depth() == 0) {
      assumptions = known(source);
      if (assumptions == VRAMFIT_UNKNOWN) {
        what = with_writer(kind, source);
        if (assume_value(source)) assumptions = known(source);
      }
      // Core counts a large unknown one, as a checkpoint's.
      is_reported = assumptions != VRAMFIT_UNKNOWN || is_integral(source);
    }
    run(op, next, stack, {});
    if (is_reported) report_read(what.c_str(), source, assumptions);
  }

  void run_sized(const c10::OperatorHandle& op, c10::DispatchKeySet next, c10::Stack& stack) const {
    Call call = look_at(stack);
    const at::Tensor source = argument(stack, 0).toTensor();
    const bool counts_trues = facts_.name == "_unique2" && source.scalar_type() == at::kBool;
    if (counts_trues) ask_for_all(call);
    std::optional<c10::Stack> made;
    if (call.assumptions != VRAMFIT_UNKNOWN) made = computed(op, facts_, call.arguments);
    const std::int64_t assumptions = made ? call.assumptions : std::int64_t{VRAMFIT_ASSUMES_SELECTION};
    if (source.numel() > 0) report_read(("size of " + facts_.name).c_str(), source, assumptions);
    const std::int64_t count = !made          ? assumed_rows(source)
                               : counts_trues ? trues_of((*made)[0].toTensor(), (*made)[2].toTensor())
                                              : rows_of((*made)[0].toTensor(), call);
    run_answered(op, next, stack, count);
    const bool is_whole = made && put_each(*made, stack);
    set_all(results_of(stack, {}), is_whole ? assumptions : VRAMFIT_UNKNOWN);
  }

  /// Tensors by their position: those that nobody asked for may be missing on the card.
  static bool put_each(const c10::Stack& made, const c10::Stack& stack) {
    const std::size_t first = stack.size() - made.size();
    for (std::size_t n = 0; n < made.size(); ++n) {
      const at::Tensor& to = stack[first + n].toTensor();
      if (to.defined() && !put(to, made[n].toTensor())) return false;
    }
    return true;
  }

  /// Of booleans, the card's _unique2 reads how many are true, and always returns how often each value is there.
  static void ask_for_all(Call& call) {
    for (std::size_t n = 2; n < call.arguments.size(); ++n) call.arguments[n] = true;
  }

  static std::int64_t trues_of(const at::Tensor& values, const at::Tensor& counts) {
    const std::int64_t last = values.numel() - 1;  // false comes before true
    if (last < 0 || !static_cast<const bool*>(values.const_data_ptr())[last]) return 0;
    return static_cast<const std::int64_t*>(counts.const_data_ptr())[last];
  }

  /// The size of the first result that follows from values.
  std::int64_t rows_of(const at::Tensor& first, const Call& call) const {
    const bool has_dim = facts_.dim >= 0 && call.arguments[static_cast<std::size_t>(facts_.dim)].isInt();
    return first.size(has_dim ? call.arguments[static_cast<std::size_t>(facts_.dim)].toInt() : 0);
  }

  static std::int64_t assumed_rows(const at::Tensor& source) {
    return static_cast<std::int64_t>(static_cast<double>(source.numel()) * settings().selected_share);
  }

  OperatorFacts facts_;
  Rule rule_;
};

}  // namespace vramfit::values
