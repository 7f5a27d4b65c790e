#include "program/stages/wrapping.h"

#include <algorithm>
#include <memory>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/characters.h"
#include "base/text/suggest.h"
#include "job/parameters/glob.h"

namespace vramfit {

namespace {

using Names = std::vector<std::string>;

/// The unit of each segment: `layers` consecutive blocks have one, the last ones maybe fewer. Embedding and head have
/// units of their own, or the root's.
Names units_of_segments(const Graph& graph, std::int64_t layers, bool wrap_embeddings) {
  std::vector<std::size_t> blocks;
  Names names;
  for (std::size_t s = 0; s < graph.segments.size(); ++s) {
    const SegmentRole role = graph.segments[s].role;
    if (role == SegmentRole::block) blocks.push_back(s);
    const char* const end = role == SegmentRole::embedding ? "embed" : "head";
    names.emplace_back(wrap_embeddings ? end : kRootUnit);
  }
  const auto most = static_cast<std::size_t>(layers);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const std::size_t first = b / most * most, last = std::min(first + most, blocks.size()) - 1;
    names[blocks[b]] = group_name(graph.segments[blocks[first]].name, graph.segments[blocks[last]].name);
  }
  return names;
}

Names wrap_by_layer(const Graph& graph, std::int64_t layers, bool wrap_embeddings) {
  Names names(graph.parameters.size(), kRootUnit);
  std::vector<bool> seen(graph.parameters.size(), false);
  const Names units = units_of_segments(graph, layers, wrap_embeddings);
  for (std::size_t s = 0; s < units.size(); ++s) {
    const Segment& segment = graph.segments[s];
    const std::string& name = units[s];
    for (const Op& op : segment.ops) {
      for (const ParameterUse& use : op.parameters) {
        const auto index = static_cast<std::size_t>(use.parameter);
        if (!seen[index]) names[index] = name;
        seen[index] = true;
      }
    }
  }
  return names;
}

/// A module of the checkpoint's tree, which follows from the dots in parameter names.
struct Module {
  std::string path, name;       // "model.layers.0", "0"; both empty for the root
  std::int64_t elements = 0;    // of its parameters and those below
  std::vector<int> parameters;  // its own and those below
  std::vector<std::unique_ptr<Module>> children;
  /// Whether this is an nn.ModuleList, whose children are numbered: it can't be called, so it is never a unit.
  bool is_list() const { return !children.empty() && std::ranges::all_of(children.front()->name, is_digit); }
};

Module& child_of(Module& parent, std::string_view name) {
  const auto found =
      std::ranges::find_if(parent.children, [&](const std::unique_ptr<Module>& child) { return child->name == name; });
  if (found != parent.children.end()) return **found;
  auto child = std::make_unique<Module>();
  child->name = name;
  child->path = parent.path.empty() ? child->name : fmt::format("{}.{}", parent.path, name);
  parent.children.push_back(std::move(child));
  return *parent.children.back();
}

Module module_tree(const Graph& graph) {
  Module root;
  for (std::size_t i = 0; i < graph.parameters.size(); ++i) {
    const Parameter& parameter = graph.parameters[i];
    std::string_view rest = parameter.name;
    Module* module = &root;
    while (true) {
      module->elements = checked_add(module->elements, element_count(parameter));
      module->parameters.push_back(static_cast<int>(i));
      const std::size_t dot = rest.find('.');
      if (dot == std::string_view::npos) break;
      module = &child_of(*module, rest.substr(0, dot));
      rest.remove_prefix(dot + 1);
    }
  }
  return root;
}

/// FSDP's size_based_auto_wrap_policy: children before their parent; if the remaining parameters are large enough, they
/// are a unit. Returns the number of elements that were assigned to units.
std::int64_t wrap_by_size(const Module& module, std::int64_t least, Names& names) {
  if (module.elements < least) return 0;
  std::int64_t wrapped = 0;
  for (const auto& child : module.children) wrapped += wrap_by_size(*child, least, names);
  if (module.path.empty() || module.is_list() || module.elements - wrapped < least) return wrapped;
  for (const int parameter : module.parameters) {
    std::string& name = names[static_cast<std::size_t>(parameter)];
    if (name == kRootUnit) name = module.path;
  }
  return module.elements;
}

/// The outermost module around `parameter` that matches: `model.layers.*` means layers, not all that is in them.
std::string_view matched_module(std::string_view parameter, const std::string& pattern) {
  for (std::size_t dot = parameter.find('.'); dot != std::string_view::npos; dot = parameter.find('.', dot + 1)) {
    if (matches_glob(pattern, parameter.substr(0, dot))) return parameter.substr(0, dot);
  }
  return {};
}

Names wrap_by_pattern(const Graph& graph, const std::vector<std::string>& patterns) {
  Names names(graph.parameters.size(), kRootUnit);
  std::vector<std::size_t> depth(graph.parameters.size(), 0);
  for (const std::string& pattern : patterns) {
    bool matched = false;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::string_view module = matched_module(graph.parameters[i].name, pattern);
      matched = matched || !module.empty();
      if (module.size() <= depth[i]) continue;  // if several patterns match: the innermost module
      names[i] = module;
      depth[i] = module.size();
    }
    if (matched) continue;
    const std::string& example = graph.parameters[graph.parameters.size() / 2].name;
    throw InputError(fmt::format("--wrap pattern:{}: no module is called so (one is {})", printable(pattern),
                                 example.substr(0, example.rfind('.'))));
  }
  return names;
}

}  // namespace

std::int64_t layers_of_unit(const Wrap& wrap) {
  const auto* groups = std::get_if<WrapGroups>(&wrap);
  return groups == nullptr ? 1 : groups->layers;
}

std::string group_name(const std::string& first, const std::string& last) {
  return first == last ? first : fmt::format("{}-{}", first, last.substr(last.rfind('.') + 1));
}

std::vector<std::string> unit_names(const Graph& graph, const Job& job) {
  if (is_by_layer(job.wrap)) return wrap_by_layer(graph, layers_of_unit(job.wrap), job.wrap_embeddings);
  if (const auto* by_pattern = std::get_if<WrapByPattern>(&job.wrap)) return wrap_by_pattern(graph, by_pattern->globs);
  Names names(graph.parameters.size(), kRootUnit);
  if (const auto* by_size = std::get_if<WrapBySize>(&job.wrap)) {
    wrap_by_size(module_tree(graph), by_size->least_parameters, names);
  }
  return names;
}

}  // namespace vramfit
