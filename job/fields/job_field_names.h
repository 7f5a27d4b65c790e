// The names of the values that a job's fields can take, and how a name is parsed.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "job/fields/field_text.h"
#include "job/job.h"

namespace vramfit {

template <typename E>
struct Named {
  std::string_view name;
  E value;
};
template <typename E>
Named(const char*, E) -> Named<E>;  // clang 14 deduces no aggregates

inline constexpr std::array kRuntimes{
#define RUNTIME(x, name) Named{name, Runtime::x},
#include "job/stacks/runtimes.def"
#undef RUNTIME
};
/// "vramfit|pytorch-fsdp2|...": all of them.
inline constexpr std::string_view kRuntimeValues =
    std::string_view{
#define RUNTIME(x, name) "|" name
#define RUNTIME_WORD(name) "|" name
#include "job/stacks/runtimes.def"
#undef RUNTIME_WORD
#undef RUNTIME
    }
        .substr(1);
inline constexpr std::array kModelings{Named{"vramfit", Modeling::vramfit},
                                       Named{"torchtitan", Modeling::torchtitan},
                                       Named{"torchtitan-0.2", Modeling::torchtitan_02},
                                       Named{"transformers", Modeling::transformers},
                                       Named{"trl", Modeling::trl},
                                       Named{"trl-dpo", Modeling::trl_dpo},
                                       Named{"trl-reward", Modeling::trl_reward},
                                       Named{"trl-grpo", Modeling::trl_grpo},
                                       Named{"accelerate", Modeling::accelerate},
                                       Named{"torchtune", Modeling::torchtune}};
inline constexpr std::array kMethods{Named{"full", Method::full}, Named{"lora", Method::lora},
                                     Named{"qlora", Method::qlora}};
/// Of the kinds that are a name alone.
inline constexpr std::array kReshards{
    Named{"default", Reshard{ReshardByDefault{}}}, Named{"last-kept", Reshard{ReshardLastKept{}}},
    Named{"always", Reshard{ReshardAlways{}}}, Named{"never", Reshard{ReshardNever{}}}};
inline constexpr std::array kPrefetches{Named{"pre", BackwardPrefetch::pre}, Named{"post", BackwardPrefetch::post},
                                        Named{"none", BackwardPrefetch::none}};
inline constexpr std::array kFinishes{Named{"early", ReduceFinish::early}, Named{"end", ReduceFinish::end}};
inline constexpr std::array kLoads{Named{"each", Load::each}, Named{"rank0", Load::rank0}};
inline constexpr std::array kAccumulates{Named{"sharded", Accumulate::sharded},
                                         Named{"unsharded", Accumulate::unsharded}};
inline constexpr std::array kImplementations{
    Named{"fused", OptimizerImplementation::fused},         Named{"foreach", OptimizerImplementation::foreach},
    Named{"loop", OptimizerImplementation::loop},           Named{"paged", OptimizerImplementation::paged},
    Named{"deepspeed", OptimizerImplementation::deepspeed}, Named{"torchao", OptimizerImplementation::torchao}};
inline constexpr std::array kKernels{Named{"libtorch", KernelSource::libtorch}, Named{"vramfit", KernelSource::vramfit},
                                     Named{"liger", KernelSource::liger}};
inline constexpr std::array kAttentions{
    Named{"auto", Attention::automatic}, Named{"flash", Attention::flash}, Named{"efficient", Attention::efficient},
    Named{"cudnn", Attention::cudnn},    Named{"math", Attention::math},   Named{"flash-attn", Attention::flash_attn}};
inline constexpr std::array<std::string_view, 6> kOffloads{
    "params", "params:pageable", "optimizer", "optimizer:pageable", "optimizer+gradients", "activations"};

// Far above any real job, and small enough that products of two stay within 64 bits.
inline constexpr std::int64_t kMostCount = std::int64_t{1} << 28;
inline constexpr std::size_t kLongestText = 4096;

template <typename Table>
std::vector<std::string> names_of(const Table& table) {
  std::vector<std::string> names;
  names.reserve(table.size());
  for (const auto& row : table) names.emplace_back(row.name);
  return names;
}

template <typename Table>
auto named(const Table& table, std::string_view value) {
  const auto row = std::ranges::find_if(table, [&](const auto& r) { return r.name == value; });
  if (row == table.end()) unknown_value(value, names_of(table));
  return row->value;
}

template <typename Table, typename E>
std::string name_in(const Table& table, E value) {
  const auto row = std::ranges::find_if(table, [&](const auto& r) { return r.value == value; });
  return row == table.end() ? "" : std::string(row->name);
}

/// The same for a choice that is a variant.
template <typename Table, typename Choice>
std::string name_of_kind(const Table& table, const Choice& choice) {
  const auto row = std::ranges::find_if(table, [&](const auto& r) { return r.value.index() == choice.index(); });
  return row == table.end() ? "" : std::string(row->name);
}

}  // namespace vramfit
