#include "program/runtimes/fsdp2_units.h"

#include <algorithm>
#include <iterator>
#include <variant>

#include "job/sharding/sharding.h"
#include "job/stacks/axolotl_fsdp2.h"
#include "program/stages/adapters.h"
#include "program/stages/wrapping.h"

namespace vramfit {

namespace {

using eager::Module;

Fsdp2Unit unit_of(const std::vector<Module>& modules, std::size_t m, bool reshards) {
  return {.name = modules[m].name, .parameters = modules[m].parameters, .first = m, .last = m, .reshards = reshards};
}

/// The next module of the list that fully_shard was called with.
void add_module(Fsdp2Unit& unit, const std::vector<Module>& modules, std::size_t m) {
  unit.name = group_name(modules[unit.first].name, modules[m].name);
  unit.parameters.insert(unit.parameters.end(), modules[m].parameters.begin(), modules[m].parameters.end());
  unit.last = m;
}

/// A module's own parameters come behind those of the modules in it (_fully_shard/_fsdp_init.py: _get_managed_modules
/// and _get_managed_states), though the model names them first: attention's sinks.
void order_by_modules(std::vector<int>& parameters, const Graph& graph) {
  const auto name = [&](int p) -> const std::string& { return graph.parameters[static_cast<std::size_t>(p)].name; };
  for (auto own = parameters.begin(); own != parameters.end(); ++own) {
    if (!name(*own).ends_with(".sinks")) continue;
    const std::string module = std::string(module_of(name(*own))) + ".";
    auto end = std::next(own);
    while (end != parameters.end() && name(*end).starts_with(module)) ++end;
    if (end == std::next(own)) continue;  // where they are already
    std::rotate(own, std::next(own), end);
  }
}

/// The same of torchtune's LoRALinear, which has weight and bias itself and lora_a and lora_b as modules, and of its
/// DoRALinear, which has magnitudes itself, too.
void order_adapters(std::vector<int>& parameters, const Graph& graph) {
  const auto is_adapter = [own = adapter_parameters(graph)](int p) { return own[static_cast<std::size_t>(p)]; };
  const auto module = [&](int p) {
    const std::string& name = graph.parameters[static_cast<std::size_t>(p)].name;
    return is_adapter(p) ? adapted_module(name) : module_of(name);
  };
  const auto is_matrix = [&](int p) { return graph.parameters[static_cast<std::size_t>(p)].shape.size() > 1; };
  for (auto first = parameters.begin(); first != parameters.end();) {
    const auto end = std::find_if(first, parameters.end(), [&](int p) { return module(p) != module(*first); });
    std::stable_partition(first, end, [&](int p) { return is_adapter(p) && is_matrix(p); });
    first = end;
  }
}

/// Whether the model has no output layer of its own: the last one's parameters end with its norm.
bool is_tied(const Graph& graph, const std::vector<Module>& modules) {
  return graph.parameters[static_cast<std::size_t>(modules.back().parameters.back())].shape.size() == 1;
}

/// torchtitan: embedding and output, where they are units at all, and then the blocks.
std::vector<Fsdp2Unit> torchtitan_units(const Job& job, const std::vector<Module>& modules) {
  const std::size_t last = modules.size() - 1;
  std::vector<Fsdp2Unit> units;
  if (job.wrap_embeddings) {
    units.push_back(unit_of(modules, 0, block_reshards(job, false)));
    units.push_back(unit_of(modules, last, std::holds_alternative<ReshardAlways>(job.reshard)));
  }
  const auto layers = static_cast<std::size_t>(layers_of_unit(job.wrap));
  for (std::size_t m = 1; m < last; m += layers) {
    const std::size_t end = std::min(m + layers, last);
    units.push_back(unit_of(modules, m, block_reshards(job, end == last)));
    for (std::size_t more = m + 1; more < end; ++more) add_module(units.back(), modules, more);
  }
  return units;
}

/// torchtune (training/_distributed.py: shard_model): the blocks, and of custom_sharded_layers the embedding and the
/// output layer, which is gathered for each part that it runs on. Everything else is the root's: norm, and tied
/// weights.
std::vector<Fsdp2Unit> torchtune_units(const Graph& graph, const Job& job, const std::vector<Module>& modules) {
  const std::size_t last = modules.size() - 1;
  std::vector<Fsdp2Unit> units;
  for (std::size_t m = 1; m < last; ++m) units.push_back(unit_of(modules, m, block_reshards(job, false)));
  if (!job.wrap_embeddings || is_tied(graph, modules)) return units;
  units.push_back(unit_of(modules, 0, block_reshards(job, false)));
  units.push_back({.name = modules[last].name,
                   .parameters = {modules[last].parameters.back()},
                   .first = kOutput,
                   .last = kOutput,
                   .reshards = block_reshards(job, false)});
  return units;
}

/// accelerate 1.15 (utils/fsdp_utils.py: fsdp2_prepare_model): the blocks, the embedding, and norm and output, which
/// stay gathered until their backward. Tied weights put the embedding into that last unit. In a model with PEFT around
/// it accelerate may not find the norm, which is then left to the root. So is the output layer of a classifier.
std::vector<Fsdp2Unit> accelerate_units(const Graph& graph, const Job& job, const std::vector<Module>& modules) {
  const std::size_t last = modules.size() - 1;
  std::vector<Fsdp2Unit> units;
  for (std::size_t m = 1; m < last; ++m) units.push_back(unit_of(modules, m, block_reshards(job, false)));
  Fsdp2Unit tail = unit_of(modules, last, false);
  tail.is_end = true;
  const bool has_tied = !is_classifier(job) && is_tied(graph, modules);
  if (has_adapters(job) && !modules[last].is_found_in_peft) {
    tail.parameters.clear();
    if (!has_tied && !is_classifier(job)) tail.parameters.push_back(modules[last].parameters.back());
    tail.first = kOutput;
  }
  if (has_tied) {
    tail.parameters.insert(tail.parameters.end(), modules[0].parameters.begin(), modules[0].parameters.end());
    tail.first = 0;
  } else {
    units.push_back(unit_of(modules, 0, block_reshards(job, false)));
    units.back().is_end = true;
  }
  if (!tail.parameters.empty()) units.push_back(std::move(tail));
  return units;
}

/// axolotl 0.19 (monkeypatch/accelerate/fsdp2.py: fsdp2_prepare_model), in the place of that: the blocks without their
/// adapters, of which each matrix is apart.
std::vector<Fsdp2Unit> axolotl_units(const Graph& graph, const Job& job, const std::vector<Module>& modules) {
  const std::vector<bool> are_adapters = adapter_parameters(graph);
  std::vector<Fsdp2Unit> units;
  for (std::size_t m = 1; m + 1 < modules.size(); ++m) {
    units.push_back(unit_of(modules, m, block_reshards(job, false)));
    std::vector<int> of_adapters;
    std::erase_if(units.back().parameters, [&](int p) {
      const bool is_adapter = are_adapters[static_cast<std::size_t>(p)];
      if (is_adapter) of_adapters.push_back(p);
      return is_adapter;
    });
    for (const int p : of_adapters) {
      units.push_back({.name = graph.parameters[static_cast<std::size_t>(p)].name,
                       .parameters = {p},
                       .first = m,
                       .last = m,
                       .reshards = block_reshards(job, false),
                       .is_adapter = true});
    }
  }
  return units;
}

std::vector<Fsdp2Unit> units_of(const Graph& graph, const Job& job, const std::vector<Module>& modules) {
  if (job.modeling == Modeling::torchtune) return torchtune_units(graph, job, modules);
  if (is_axolotls_fsdp2(job)) return axolotl_units(graph, job, modules);
  return uses_accelerate(job) ? accelerate_units(graph, job, modules) : torchtitan_units(job, modules);
}

}  // namespace

bool block_reshards(const Job& job, bool is_last) {
  if (!sharding_named(job.sharding).reshard || std::holds_alternative<ReshardNever>(job.reshard)) return false;
  return !std::holds_alternative<ReshardLastKept>(job.reshard) || !is_last;
}

std::vector<Fsdp2Unit> fsdp2_units(const Graph& graph, const Job& job, const std::vector<Module>& modules) {
  std::vector<Fsdp2Unit> units = units_of(graph, job, modules);
  const bool has_loras = has_adapters(job) && job.modeling == Modeling::torchtune;
  for (Fsdp2Unit& unit : units) {
    order_by_modules(unit.parameters, graph);
    if (has_loras) order_adapters(unit.parameters, graph);
  }
  return units;
}

}  // namespace vramfit
