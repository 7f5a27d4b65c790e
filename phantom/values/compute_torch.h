// Runs an operator on the CPU, on the bytes of the card's tensors.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/unique_dim_ops.h>

#include "phantom/values/operator_facts_torch.h"
#include "phantom/values/tensors_torch.h"

namespace vramfit::values {

using Tensors = c10::SmallVector<at::Tensor, 8>;

/// The card's tensors in an argument or a result: a tensor, or a list of tensors.
template <typename F>
void each_tensor(const c10::IValue& value, const F& f) {
  if (value.isTensor()) {
    if (is_on_card(value.toTensor())) f(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorVector()) {
      if (is_on_card(t)) f(t);
    }
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) each_tensor(element, f);
  }
}

/// vramfit's own, so that the program's draws what it would have drawn.
inline at::Generator& generator() {
  static at::Generator kGenerator = at::detail::createCPUGenerator(20'251'122);
  return kGenerator;
}

/// An argument for the CPU's operator. False where a tensor can't be viewed.
bool to_host(const c10::IValue& value, c10::IValue& out);

inline bool list_to_host(const c10::IValue& value, c10::IValue& out) {
  c10::List<at::Tensor> list;
  for (const at::Tensor& t : value.toTensorVector()) {
    c10::IValue one;
    if (!to_host(t, one)) return false;
    list.push_back(one.toTensor());
  }
  out = list;
  return true;
}

/// Of tensors that may be missing, as indices are.
inline bool optional_list_to_host(const c10::IValue& value, c10::IValue& out) {
  c10::List<std::optional<at::Tensor>> list;
  for (const c10::IValue& element : value.toListRef()) {
    c10::IValue one;
    if (element.isTensor() && !to_host(element, one)) return false;
    list.push_back(element.isTensor() ? std::optional<at::Tensor>(one.toTensor()) : std::nullopt);
  }
  out = list;
  return true;
}

inline bool to_host(const c10::IValue& value, c10::IValue& out) {
  if (value.isTensor() && is_on_card(value.toTensor())) {
    const std::optional<at::Tensor> view = host_view(value.toTensor());
    if (!view) return false;
    out = *view;
    return true;
  }
  if (value.isTensorList()) return list_to_host(value, out);
  const bool has_tensors = value.isList() && !value.toListRef().empty() &&
                           (value.toListRef()[0].isTensor() || value.toListRef()[0].isNone());
  if (has_tensors) return optional_list_to_host(value, out);
  out = value.isDevice() ? c10::IValue(c10::Device(at::kCPU)) : value;
  return true;
}

/// The CPU's results; none if it can't. Arguments that the operator writes are written in place.
inline std::optional<c10::Stack> computed(const c10::OperatorHandle& op, const OperatorFacts& facts,
                                          const std::vector<c10::IValue>& arguments) {
  c10::Stack stack;
  stack.reserve(arguments.size());
  for (std::size_t n = 0; n < arguments.size(); ++n) {
    c10::IValue value;
    if (!to_host(arguments[n], value)) return std::nullopt;
    stack.push_back(static_cast<std::ptrdiff_t>(n) == facts.generator ? c10::IValue(generator()) : std::move(value));
  }
  try {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    return stack;
  } catch (const std::exception&) {  // no kernel for this dtype, or an index out of range: unknown, as without us
    return std::nullopt;
  }
}

/// Copies a result into the card's tensor. False if it is not one of the same kind. Results that nobody asked for are
/// empty on the card, whatever the CPU makes of them.
inline bool put(const at::Tensor& to, const at::Tensor& result) {
  if (to.numel() == 0) return true;
  if (!result.defined() || to.sizes() != result.sizes() || to.scalar_type() != result.scalar_type()) return false;
  const std::optional<at::Tensor> view = host_view(to);
  if (!view) return false;
  at::Tensor target = *view;
  at::_ops::copy_::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), target, result, false);
  return true;
}

}  // namespace vramfit::values
