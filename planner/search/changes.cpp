#include "planner/search/changes.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/conflict.h"
#include "base/error.h"
#include "base/suggest.h"
#include "job/fields/field_text.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "program/not_modelled.h"

namespace vramfit {
namespace {

constexpr std::size_t kMostValues = 32;

/// Whether the job can be at all: a card may not compute in its precision, and CPU ranks have no CUDA kernels.
bool is_possible(const Job& job, const PlanRequest& request) {
  std::vector<std::string> notes;
  try {
    require_rules(resolve_job(job, request.spec, request.cluster, notes), request.cluster);
    return true;
  } catch (const Error&) {
    return false;
  }
}

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

bool is_set(const PlanRequest& request, std::string_view field) {
  return std::ranges::find(request.fixed, field) != request.fixed.end();
}

// A change may bring other fields along, as a precision does its dtypes; those that the user set stay.
void keep_what_was_set(Job& job, const PlanRequest& request, std::string_view changed_field) {
  for (const std::string& name : request.fixed) {
    if (name == changed_field) continue;
    const JobField& field = job_field_named(name);
    const std::string value = field.get(request.job);
    if (field.get(job) != value) field.set(job, value.empty() ? "none" : value);  // --quantization none reads so
  }
}

void require_possible(const ResultChange& kind, const PlanRequest& request, const std::vector<std::string>& values) {
  if (kind.why_none == nullptr) return;
  const std::string why = kind.why_none(request.job, request.spec, values);
  if (!why.empty()) throw Conflict(fmt::format("--allow {}: {}", kind.name, why));
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

std::vector<Change> changes(const PlanRequest& request, bool allowed, bool last_resort) {
  std::vector<Change> list;
  for (const ResultChange& kind : result_changes()) {
    if (kind.last_resort != last_resort) continue;
    const auto named = request.allowed.kinds.find(std::string(kind.name));
    const bool is_named = named != request.allowed.kinds.end();
    const bool is_allowed = is_named || (request.allowed.any && !is_set(request, kind.field));
    if (is_allowed != allowed) continue;
    const std::vector<std::string> values = is_named ? named->second : std::vector<std::string>{};
    if (is_named) require_possible(kind, request, values);
    const std::size_t before = list.size();
    for (Job& job : kind.choices(request.job, request.spec, values)) {
      keep_what_was_set(job, request, kind.field);
      if (job.method == Method::qlora && job.quantization == "none") continue;  // as was set: lora by another name
      if (values.empty() && !is_possible(job, request))
        continue;  // what a person names is refused with the reason instead
      const std::string needs = fmt::format("{}:{}", kind.name, kind.value(job));
      list.push_back({.needs = needs, .job = std::move(job), .kind = &kind});
    }
    if (is_named && values.empty() && kind.why_none != nullptr && list.size() == before) {
      throw Conflict(fmt::format("--allow {}: what is set leaves no other choice of it", kind.name));
    }
  }
  return list;
}

std::vector<std::vector<Change>> groups_to_search(const PlanRequest& request) {
  std::vector<Change> first{{.needs = "", .job = request.job}};
  std::ranges::move(changes(request, true, false), std::back_inserter(first));
  std::vector<std::vector<Change>> groups{std::move(first)};
  for (Change& change : changes(request, true, true)) groups.push_back({std::move(change)});
  return groups;
}

}  // namespace vramfit
