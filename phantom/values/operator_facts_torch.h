// What the schema of an operator says, and which operators are observed.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace vramfit::values {

enum class Role {
  ordinary,
  copy,         // copy_: between host and card, or on it
  scalar_read,  // _local_scalar_dense: item()
  sized,        // the number of its rows follows from values
  coalesce,     // the same of a sparse tensor
  equal,        // reads a boolean itself
  factory,      // has a kernel for cards, which it chooses by the device that it is told
  unscale,      // divides gradients, and leaves its flag as it is if they are finite
  keeps         // leaves what it writes as it is, if numbers are finite
};

struct OperatorFacts {
  std::string name;                       // without namespace and overload: "topk"
  std::string base;                       // without the underscore of the form that works in place
  std::vector<bool> writes, only_writes;  // of each argument; the second: its former value doesn't matter
  std::vector<bool> aliases;              // of each result: it is an argument
  std::ptrdiff_t generator = -1, dim = -1, device = -1;  // the arguments of these names
  bool computes = false;                                 // the CPU has it, and results are the same kind
  Role role = Role::ordinary;
};

inline bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> beginnings) {
  for (const std::string_view beginning : beginnings) {
    if (text.substr(0, beginning.size()) == beginning) return true;
  }
  return false;
}

inline Role role_of(const std::string& name, const std::string& overload) {
  static const std::unordered_map<std::string, Role> kRoles{
      {"copy_", Role::copy},
      {"_local_scalar_dense", Role::scalar_read},
      {"nonzero", Role::sized},
      {"_unique2", Role::sized},
      {"unique_dim", Role::sized},
      {"unique_consecutive", Role::sized},
      {"unique_dim_consecutive", Role::sized},
      {"_coalesce", Role::coalesce},
      {"equal", Role::equal},
      {"tril_indices", Role::factory},
      {"triu_indices", Role::factory},
      {"_amp_foreach_non_finite_check_and_unscale_", Role::unscale},
      {"_amp_update_scale_", Role::keeps}};
  const auto found = kRoles.find(name);
  return found == kRoles.end() || overload == "out" ? Role::ordinary : found->second;
}

/// Operators that change no bytes, or whose memory is the allocator's business.
inline bool is_left_alone(std::string_view name) {
  return starts_with_any(name, {"empty", "resize", "_resize", "set_", "record_stream", "_has_", "_cudnn_init", "is_"});
}

/// The CPU has kernels of these names that give other tensors, or take long, or need what only a card has.
inline bool is_for_cards_only(std::string_view name) {
  return starts_with_any(
      name, {"_fused",         "_scaled",     "_flash",         "_efficient", "_cudnn", "cudnn",        "_thnn",
             "native_dropout", "convolution", "_convolution",   "miopen",     "_ctc",   "_transformer", "_triton",
             "_weight_int",    "_grouped",    "_embedding_bag", "_assert",    "_cslt",  "_sparse"});
}

/// Of the schema; empty where an operator is not to be observed.
inline std::optional<OperatorFacts> facts_of(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  OperatorFacts facts;
  facts.name = schema.name().substr(schema.name().find("::") + 2);
  facts.base = facts.name.back() == '_' ? facts.name.substr(0, facts.name.size() - 1) : facts.name;
  if (is_left_alone(facts.name)) return std::nullopt;
  bool is_view = !schema.returns().empty();
  for (const c10::Argument& result : schema.returns()) {
    facts.aliases.push_back(result.alias_info() != nullptr);
    is_view = is_view && result.alias_info() != nullptr && !result.alias_info()->isWrite();
  }
  if (is_view) return std::nullopt;
  facts.role = role_of(facts.name, schema.overload_name());
  for (const c10::Argument& argument : schema.arguments()) {
    // Batch norms update these without saying so.
    const bool is_running = starts_with_any(argument.name(), {"running_"});
    const bool is_written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    facts.writes.push_back(is_written || is_running);
    facts.only_writes.push_back(argument.is_out());
    const std::ptrdiff_t position = static_cast<std::ptrdiff_t>(facts.writes.size()) - 1;
    if (argument.name() == "generator") facts.generator = position;
    if (argument.name() == "dim") facts.dim = position;
    if (argument.name() == "device") facts.device = position;
  }
  const bool fills = facts.role == Role::copy || facts.name == "fill_" || facts.name == "zero_" ||
                     (facts.generator >= 0 && facts.name.back() == '_');
  if (fills && !facts.writes.empty()) facts.only_writes[0] = facts.writes[0];
  const bool has_kernel = op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
                          op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
                          op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
  facts.computes = has_kernel && !is_for_cards_only(facts.name);
  return facts;
}

/// Every operator of torch's own with a kernel for cards. copy_ has none of its own but launches some; _coalesce has
/// one for sparse tensors.
inline bool is_observed(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  if (!starts_with_any(name, {"aten::"})) return false;
  const Role role = role_of(name.substr(6), op.schema().overload_name());
  if (role == Role::coalesce) return op.hasKernelForDispatchKey(c10::DispatchKey::SparseCUDA);
  if (op.hasKernelForDispatchKey(c10::DispatchKey::BackendSelect) && role != Role::factory) return false;
  return op.hasKernelForDispatchKey(c10::DispatchKey::CUDA) ||
         (name == "aten::copy_" && op.schema().overload_name().empty());
}

}  // namespace vramfit::values
