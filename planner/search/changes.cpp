#include "planner/search/changes.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/conflict.h"
#include "base/error.h"
#include "base/text/suggest.h"
#include "job/fields/field_text.h"
#include "job/fields/job_fields.h"
#include "job/parameters/quantization.h"
#include "job/resolve_job.h"
#include "job/stacks/stacks.h"
#include "program/not_modelled.h"
#include "program/stages/offload.h"

namespace vramfit {
namespace {

constexpr std::size_t kMostValues = 32;
constexpr std::size_t kMostCombinations = 20000;  // a second or so, before anything is searched

/// A combination of changes, and where it stands among the others.
struct Combination {
  Change change;
  std::vector<std::pair<std::size_t, std::size_t>> parts;  // by kind: its row, and the number of its choice
};

/// None for "any".
const ResultChange* kind_named(const std::string& name) {
  std::vector<std::string> known{"any"};
  for (const ResultChange& row : result_changes()) {
    if (row.name == name) return &row;
    known.emplace_back(row.name);
  }
  if (name == "any") return nullptr;
  throw InputError(fmt::format("--allow {}: unknown kind{}", printable(name), did_you_mean(name, known)));
}

// A change may bring other fields along, as a precision does its dtypes; those that the user set stay.
void keep_what_was_set(Job& job, const PlanRequest& request, const std::vector<const ResultChange*>& kinds) {
  for (const std::string& name : request.fixed) {
    if (std::ranges::find(kinds, name, &ResultChange::field) != kinds.end()) continue;
    const JobField& field = job_field_named(name);
    const std::string value = field.get(request.job);
    if (field.get(job) != value) field.set(job, value.empty() ? "none" : value);  // --quantization none reads so
  }
}

/// What --allow names of a kind; none: not the kind.
const std::vector<std::string>* values_named(const PlanRequest& request, const ResultChange& kind) {
  const auto named = request.allowed.kinds.find(std::string(kind.name));
  return named == request.allowed.kinds.end() ? nullptr : &named->second;
}

bool is_allowed(const PlanRequest& request, const ResultChange& kind) {
  return values_named(request, kind) != nullptr || (request.allowed.any && !request.is_fixed(kind.field));
}

/// The job with each change of a kind, besides those that it has.
std::vector<Change> with_each(const Change& change, const ResultChange& kind, const PlanRequest& request,
                              const std::vector<std::string>& values) {
  std::vector<Change> changed;
  for (Job& job : kind.choices(change.job, request.spec, values)) {
    Change other{.job = std::move(job), .needs = change.needs, .kinds = change.kinds};
    other.kinds.insert(other.kinds.begin(), &kind);
    keep_what_was_set(other.job, request, other.kinds);
    if (other.job.method == Method::qlora && other.job.quantization == "none")
      continue;  // as was set: lora by another name
    other.needs.insert(other.needs.begin(), fmt::format("{}:{}", kind.name, kind.value(other.job)));
    changed.push_back(std::move(other));
  }
  return changed;
}

/// The largest changes are made first, since what smaller ones there may be depends on them: frozen matrices on the
/// method, kernels on the optimizer.
std::vector<Combination> all_combinations(const PlanRequest& request) {
  std::vector<Combination> list{{.change = {.job = request.job}, .parts = {}}};
  const std::span<const ResultChange> kinds = result_changes();
  for (std::size_t row = kinds.size(); row-- > 0;) {
    if (!is_allowed(request, kinds[row])) continue;
    const std::vector<std::string>* const named = values_named(request, kinds[row]);
    const std::vector<std::string> values = named == nullptr ? std::vector<std::string>{} : *named;
    const std::size_t before = list.size();
    for (std::size_t i = 0; i < before; ++i) {
      std::vector<Change> changed = with_each(list[i].change, kinds[row], request, values);
      for (std::size_t c = 0; c < changed.size(); ++c) {
        Combination& added = list.emplace_back(Combination{.change = std::move(changed[c]), .parts = list[i].parts});
        added.parts.emplace(added.parts.begin(), row, c);
      }
      if (list.size() > kMostCombinations) {
        throw InputError(fmt::format("--allow: more than {} combinations of changes; name fewer kinds or values",
                                     kMostCombinations));
      }
    }
  }
  return list;
}

std::size_t count_last_resorts(const Combination& combination) {
  return static_cast<std::size_t>(
      std::ranges::count_if(combination.change.kinds, [](const ResultChange* kind) { return kind->last_resort; }));
}

/// The last resorts' parts are behind the others.
std::span<const std::pair<std::size_t, std::size_t>> parts_of(const Combination& combination, bool last_resorts) {
  const std::span parts{combination.parts};
  const std::size_t others = parts.size() - count_last_resorts(combination);
  return last_resorts ? parts.subspan(others) : parts.first(others);
}

/// The fewest last resorts come first, then in the order of their rows; of equal ones likewise by the other changes.
bool comes_before(const Combination& a, const Combination& b) {
  for (const bool last_resorts : {true, false}) {
    const auto of_a = parts_of(a, last_resorts), of_b = parts_of(b, last_resorts);
    if (of_a.size() != of_b.size()) return of_a.size() < of_b.size();
    if (!std::ranges::equal(of_a, of_b)) return std::ranges::lexicographical_compare(of_a, of_b);
  }
  return false;
}

/// Equal for jobs that differ in name alone.
std::string identity(Job job) {
  if (job.runtime == Runtime::vramfit && job.method == Method::qlora) job.method = Method::lora;
  return job_as_flags(job, unresolved_job());
}

/// Whether the engine would train matrices that are codes of few bits, and no configuration has their masters in host
/// memory.
bool lacks_masters(const Job& job, const PlanRequest& request) {
  if (job.runtime != Runtime::vramfit) return false;
  const Quantization* const format = quantization_named(job.quantization);
  if (format == nullptr || !format->trains || offload_of(job).states || has_frozen_matrices(job, request.spec)) {
    return false;
  }
  return request.is_fixed("offload") || request.cluster.is_cpu() || request.cluster.host_memory.n == 0;
}

struct Combinations {
  std::vector<Combination> list;   // that can be, each job once, in the order of groups_to_search()
  std::set<std::string> possible;  // what those that can be need, also where another one is the same job
};

Combinations combinations(const PlanRequest& request) {
  Combinations made{.list = all_combinations(request), .possible = {}};
  std::ranges::sort(made.list, comes_before);
  std::set<std::string> jobs;
  std::erase_if(made.list, [&](const Combination& combination) {
    const std::vector<std::string>& needs = combination.change.needs;
    const std::optional<Job> job = possible_job(combination.change.job, request);
    if (!needs.empty() && (!job || lacks_masters(combination.change.job, request))) return true;
    if (job) made.possible.insert(needs.begin(), needs.end());
    return job && !jobs.insert(identity(*job)).second;
  });
  return made;
}

/// Its numbers, of the kinds whose choices are one.
std::vector<std::int64_t> sizes_of(const Change& change) {
  std::vector<std::int64_t> sizes;
  for (const ResultChange& kind : result_changes()) {
    if (kind.shrinks)
      sizes.push_back(whole_number(kind.value(change.job), 1, std::numeric_limits<std::int64_t>::max()));
  }
  return sizes;
}

/// What it needs besides sizes.
std::vector<std::string> other_needs(const Change& change) {
  std::vector<std::string> needs;
  for (std::size_t i = 0; i < change.needs.size(); ++i) {
    if (!change.kinds[i]->shrinks) needs.push_back(change.needs[i]);
  }
  return needs;
}

bool is_smaller(const std::vector<std::int64_t>& a, const std::vector<std::int64_t>& b) {
  return a != b && std::ranges::equal(a, b, std::less_equal());
}

/// "optimizer:adamw-8bit": a value that --allow names, as the needs of a change have it.
std::string need_named(const PlanRequest& request, const ResultChange& kind, const std::string& value) {
  std::vector<Job> choices = kind.choices(request.job, request.spec, {value});
  if (choices.empty()) {
    choices.push_back(request.job);
    job_field_named(kind.field).set(choices.front(), value);
  }
  return fmt::format("{}:{}", kind.name, kind.value(choices.front()));
}

std::string own_need(const PlanRequest& request, const ResultChange& kind) {
  return fmt::format("{}:{}", kind.name, kind.value(request.job));
}

/// Why a job can't be; "" if it can.
std::string why_impossible(const Job& job, const PlanRequest& request) {
  std::vector<std::string> notes;
  try {
    require_rules(resolve_job(job, request.spec, request.cluster, notes), request.cluster);
    return "";
  } catch (const NotModelled& lacking) {
    return lacking.feature_name;
  } catch (const Error& error) {
    return error.what();
  }
}

std::string why_no_choice(const PlanRequest& request, const ResultChange& kind,
                          const std::vector<std::string>& values) {
  for (const Change& change : with_each({.job = request.job}, kind, request, values)) {
    if (std::string why = why_impossible(change.job, request); !why.empty()) return why;
  }
  if (kind.why_none != nullptr) {
    if (std::string why = kind.why_none(request.job, request.spec, values); !why.empty()) return why;
  }
  const std::string_view stack = stack_of(request.job).name;
  const std::string own =
      fmt::format("{} {}", flag_of(job_field_named(kind.field)), printable(kind.value(request.job)));
  return request.job.runtime == Runtime::vramfit ? fmt::format("beside {} none is tried unless it is named", own)
                                                 : fmt::format("--stack {} has none beside {} here", stack, own);
}

/// A kind as --allow takes it, with a value where it has none by default; "" where the job can't have it.
std::string possible_kind(const PlanRequest& request, const ResultChange& kind) {
  const auto can_be = [&](const std::vector<std::string>& values) {
    return std::ranges::any_of(with_each({.job = request.job}, kind, request, values), [&](const Change& change) {
      return possible_job(change.job, request) && !lacks_masters(change.job, request);
    });
  };
  if (can_be({})) return std::string(kind.name);
  if (kind.by_name == nullptr) return "";
  for (const std::string& value : kind.by_name(request.job)) {
    if (can_be({value})) return fmt::format("{}:{}", kind.name, value);
  }
  return "";
}

/// What is named must be able to change something.
[[noreturn]] void refuse(const PlanRequest& request, const ResultChange& kind, const std::vector<std::string>& values) {
  std::vector<std::string> others;
  for (const ResultChange& other : result_changes()) {
    const std::string name = &other == &kind ? "" : possible_kind(request, other);
    if (!name.empty()) others.push_back(name);
  }
  throw Conflict(
      fmt::format("--allow {}{}{}: {}{}{}", kind.name, values.empty() ? "" : ":", fmt::join(values, ""),
                  why_no_choice(request, kind, values),
                  others.empty() ? "" : "; kinds of change that this job may have: ", fmt::join(others, ", ")));
}

void require_some(const PlanRequest& request, const std::set<std::string>& possible) {
  if (possible.empty() && !possible_job(request.job, request)) return;  // the search says what stands against the job
  for (const ResultChange& kind : result_changes()) {
    const std::vector<std::string>* const values = values_named(request, kind);
    if (values == nullptr) continue;
    const std::string any = std::string(kind.name) + ":";
    const auto has_some = [&](const std::string& need) { return need.starts_with(any); };
    if (values->empty() && std::ranges::none_of(possible, has_some)) refuse(request, kind, {});
    for (const std::string& value : *values) {
      const std::string need = need_named(request, kind, value);
      if (need != own_need(request, kind) && !possible.contains(need)) refuse(request, kind, {value});
    }
  }
}

std::vector<std::vector<Change>> in_groups(std::vector<Combination> list) {
  std::vector<std::vector<Change>> groups;
  for (Combination& combination : list) {
    const bool is_first =
        groups.empty() || last_resorts_of(groups.back().front()) != last_resorts_of(combination.change);
    if (is_first) groups.emplace_back();
    groups.back().push_back(std::move(combination.change));
  }
  return groups;
}

}  // namespace

Allowed parse_allowed(const std::string& text) {
  Allowed allowed;
  if (text.empty()) return allowed;
  for (const std::string& part : split_list(text)) {
    const std::size_t colon = part.find(':');
    const std::string kind = part.substr(0, colon);
    const ResultChange* const row = kind_named(kind);
    std::vector<std::string>& values = allowed.kinds[kind];
    if (row == nullptr) allowed.any = true;
    if (colon == std::string::npos) continue;
    if (row == nullptr) throw InputError("--allow any: takes no value");
    values.push_back(part.substr(colon + 1));
    row->check(values.back());
    if (values.size() > kMostValues)
      throw InputError(fmt::format("--allow {}: more than {} values", kind, kMostValues));
  }
  return allowed;
}

std::optional<Job> possible_job(const Job& job, const PlanRequest& request) {
  std::vector<std::string> notes;
  try {
    Job resolved = resolve_job(job, request.spec, request.cluster, notes);
    require_rules(resolved, request.cluster);
    return resolved;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string allow_text(const std::vector<std::string>& needs) { return fmt::to_string(fmt::join(needs, ",")); }

std::vector<std::string> last_resorts_of(const Change& change) {
  std::vector<std::string> list;
  for (std::size_t i = 0; i < change.kinds.size(); ++i) {
    if (change.kinds[i]->last_resort) list.push_back(change.needs[i]);
  }
  return list;
}

std::vector<Change> changes_not_allowed(const PlanRequest& request, bool last_resort) {
  const Change none{.job = request.job};
  std::vector<Change> list;
  for (const ResultChange& kind : result_changes()) {
    if (kind.last_resort != last_resort || is_allowed(request, kind)) continue;
    std::vector<Change> changed = with_each(none, kind, request, {});
    std::erase_if(changed, [&](const Change& change) { return !possible_job(change.job, request); });
    std::ranges::move(changed, std::back_inserter(list));
  }
  return list;
}

std::vector<std::string> void_allowed(const PlanRequest& request) {
  std::vector<std::string> list;
  for (const ResultChange& kind : result_changes()) {
    const std::vector<std::string>* const values = values_named(request, kind);
    if (values == nullptr) continue;
    for (const std::string& value : *values) {
      if (need_named(request, kind, value) != own_need(request, kind)) continue;
      list.push_back(fmt::format("--allow {}:{} changes nothing: the job has it", kind.name, value));
    }
  }
  return list;
}

std::vector<std::vector<Change>> groups_to_search(const PlanRequest& request) {
  Combinations made = combinations(request);
  require_some(request, made.possible);
  return in_groups(std::move(made.list));
}

std::vector<Change> smallest_sizes(const std::vector<std::vector<Change>>& groups) {
  std::map<std::vector<std::string>, std::vector<std::vector<std::int64_t>>> sizes;
  for (const std::vector<Change>& group : groups) {
    for (const Change& change : group) sizes[other_needs(change)].push_back(sizes_of(change));
  }
  std::vector<Change> list;
  for (const std::vector<Change>& group : groups) {
    std::ranges::copy_if(group, std::back_inserter(list), [&](const Change& change) {
      const std::vector<std::int64_t> own = sizes_of(change);
      return std::ranges::none_of(sizes[other_needs(change)],
                                  [&](const auto& others) { return is_smaller(others, own); });
    });
  }
  return list;
}

std::vector<std::vector<Change>> groups_with(const PlanRequest& request, const Change& change) {
  PlanRequest wider = request;
  const ResultChange& kind = *change.kinds.front();
  wider.allowed.kinds[std::string(kind.name)] = {kind.value(change.job)};
  std::vector<std::vector<Change>> groups;
  for (std::vector<Change>& group : in_groups(combinations(wider).list)) {
    std::erase_if(group, [&](const Change& other) { return !std::ranges::count(other.needs, change.needs.front()); });
    if (!group.empty()) groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace vramfit
