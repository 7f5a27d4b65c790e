#include "estimator/at_peak.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "program/make_program.h"
#include "program/readers/bytes.h"
#include "program/stages/adapters.h"

namespace vramfit {
namespace {

constexpr Bytes kCardGranule{512};  // of PyTorch's allocator
constexpr std::string_view kDigits = "0123456789";

/// "layers.3.mlp" -> "layers.*.mlp": numbers that stand alone between dots, spaces and colons.
std::string without_numbers(std::string_view text) {
  constexpr std::string_view kBounds = ". :,";
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_not_of(kDigits, at), text.size());
    const bool begins = at == 0 || text[at - 1] == '.';
    const bool ends = end == text.size() || kBounds.find(text[end]) != std::string_view::npos;
    if (end > at && begins && ends) {
      result += '*';
      at = end;
      continue;
    }
    result += text[at++];
  }
  return result;
}

/// The parameter that a label names: "model.layers.3.mlp.up_proj.weight"; "" if it names none.
std::string_view parameter_in(std::string_view label) {
  for (const std::string_view suffix : {".weight", ".bias"}) {
    const std::size_t at = label.find(suffix);
    if (at == std::string_view::npos) continue;
    const std::size_t space = label.substr(0, at).rfind(' ');
    const std::size_t begin = space == std::string_view::npos ? 0 : space + 1;
    return label.substr(begin, at - begin);
  }
  return {};
}

struct Live {
  Bytes bytes;
  std::int64_t tensors = 0;

  void add(Bytes more) {
    bytes += more;
    ++tensors;
  }
};

/// Positions of the events that allocate what lives after event `last`.
std::vector<std::size_t> living(const Ledger& ledger, std::size_t last) {
  std::unordered_map<std::int64_t, std::size_t> open;
  for (std::size_t i = 0; i <= last && i < ledger.events.size(); ++i) {
    const Event& event = ledger.events[i];
    if (event.bytes > 0) {
      open[event.id] = i;
    } else {
      open.erase(event.id);
    }
  }
  std::vector<std::size_t> positions;
  positions.reserve(open.size());
  for (const auto& [id, position] : open) positions.push_back(position);
  std::ranges::sort(positions);
  return positions;
}

/// After which event the most lives, each block a multiple of `granule`.
std::size_t peak_event(const Ledger& ledger, Bytes granule) {
  std::int64_t now = 0, most = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < ledger.events.size(); ++i) {
    const std::int64_t bytes = ledger.events[i].bytes;
    const std::int64_t rounded = round_up(std::abs(bytes), granule.n);
    now = bytes > 0 ? checked_add(now, rounded) : now - rounded;
    if (now <= most) continue;
    most = now;
    at = i;
  }
  return at;
}

using Modules = std::map<std::string, Live>;  // by path; each has what is below it

/// The tree below `path`, larger modules first.
void add_children(const Modules& modules, const std::string& path, int depth, std::vector<HeldModule>& tree) {
  std::vector<std::pair<std::string, Live>> children;
  const std::string prefix = path.empty() ? "" : path + "/";
  for (auto it = modules.lower_bound(prefix); it != modules.end() && it->first.starts_with(prefix); ++it) {
    if (it->first != path && it->first.find('/', prefix.size()) == std::string::npos) children.emplace_back(*it);
  }
  std::ranges::stable_sort(children, std::greater{}, [](const auto& child) { return child.second.bytes; });
  for (const auto& [child, live] : children) {
    tree.push_back({.name = child.substr(prefix.size()), .depth = depth, .bytes = live.bytes, .tensors = live.tensors});
    add_children(modules, child, depth + 1, tree);
  }
}

/// Parts of a module's path; a number belongs to the list before it: "layers.*".
std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  std::string_view rest = path;
  while (!rest.empty()) {
    const std::size_t dot = std::min(rest.find('.'), rest.size());
    const std::string_view part = rest.substr(0, dot);
    if (part == "*" && !parts.empty()) {
      parts.back() += ".*";
    } else {
      parts.emplace_back(part);
    }
    rest.remove_prefix(std::min(dot + 1, rest.size()));
  }
  return parts;
}

void add_to(Modules& modules, const std::string& path, Bytes bytes) {
  std::string so_far;
  for (const std::string& part : parts_of(path)) {
    so_far += so_far.empty() ? part : "/" + part;
    modules[so_far].add(bytes);
  }
}

}  // namespace

std::string module_in(std::string_view label) {
  std::string_view module = parameter_in(label);
  if (module.empty()) module = label.substr(0, label.find(':'));
  for (const std::string_view prefix : {"base_model.model.", "model."}) {
    if (module.starts_with(prefix)) module.remove_prefix(prefix.size());
  }
  const bool is_sentence = module.find('.') == std::string_view::npos && module.find(' ') != std::string_view::npos;
  if (module.empty() || is_sentence) return "other";
  return without_numbers(module);
}

AtPeak at_peak(const Ledger& ledger, Bytes granule) {
  AtPeak result;
  if (ledger.events.empty()) return result;
  const std::size_t last = peak_event(ledger, granule);
  result.phase = ledger.events[last].phase;
  result.step = ledger.events[last].step;
  Modules modules;
  std::map<std::pair<std::string, Category>, Live> names;
  for (const std::size_t position : living(ledger, last)) {
    const Event& event = ledger.events[position];
    const std::string_view label =
        event.label < 0 ? std::string_view("other") : ledger.labels.at(static_cast<std::size_t>(event.label));
    add_to(modules, module_in(label), Bytes{event.bytes});
    names[{without_numbers(label), event.category}].add(Bytes{event.bytes});
    result.requested += Bytes{event.bytes};
    ++result.tensors;
  }
  add_children(modules, "", 0, result.modules);
  for (const auto& [name, live] : names) {
    result.largest.push_back({.name = name.first, .category = name.second, .bytes = live.bytes, .count = live.tensors});
  }
  std::ranges::stable_sort(result.largest, std::greater{}, &HeldTensors::bytes);
  return result;
}

AtPeak at_peak(const ModelSpec& spec, const Estimate& estimate, const RunEffects& run) {
  const Graph graph = training_graph(spec, estimate.job);
  const program::Program program = program::make_program({.graph = graph,
                                                          .job = estimate.job,
                                                          .device = estimate.cluster.card.device,
                                                          .coords = {},
                                                          .run = run,
                                                          .labels = true});
  return at_peak(ledger_of(program, {.steps = 2, .abbreviate = true}),
                 estimate.cluster.is_cpu() ? Bytes{1} : kCardGranule);
}

}  // namespace vramfit
