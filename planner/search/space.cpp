#include "planner/search/space.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "job/fields/job_fields.h"
#include "job/resolve_job.h"
#include "program/not_modelled.h"

namespace vramfit {
namespace {

bool is_decided_by_person(const Dimension& dimension, const PlanRequest& request) {
  return std::ranges::any_of(dimension.fields, [&](std::string_view field) { return request.is_fixed(field); });
}

/// Resolves a combination, or says that it contradicts itself.
bool resolves(Job& job, const PlanRequest& request) {
  std::vector<std::string> notes;
  try {
    job = resolve_job(job, request.spec, request.cluster, notes);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

/// Whether two jobs have the same choice of a row.
bool is_alike(const Job& a, const Job& b, const Dimension& row) {
  return std::ranges::all_of(row.fields, [&](std::string_view name) {
    const JobField& field = job_field_named(name);
    return field.get(a) == field.get(b);
  });
}

}  // namespace

bool has_rules(const Job& job, const Cluster& cluster) {
  try {
    require_rules(job, cluster);
    return true;
  } catch (const NotModelled&) {
    return false;
  }
}

Space::Space(const PlanRequest& request, Job base)
    : request_(request),
      space_{.spec = request.spec,
             .cluster = request.cluster,
             .efficiency = request.efficiency ? *request.efficiency : efficiency_of(request.cluster),
             .clip = request.clip,
             .is_sharding_set = request.is_fixed("sharding")} {
  std::vector<std::string> notes;
  base_ = resolve_job(std::move(base), request.spec, request.cluster, notes);
  for (const Dimension& row : dimensions()) {
    if (is_decided_by_person(row, request)) continue;
    rows_.push_back(&row);
    if (row.only_fragments) continue;
    fragments_from_ = rows_.size();
    if (row.may_contradict) settled_ = rows_.size();
    if (!row.open) bounded_from_ = rows_.size();
    if (!row.is_simple) simple_from_ = rows_.size();
  }
  simple_from_ = std::max(simple_from_, settled_);
  // Nothing bounds groups of other runtimes, and which combinations they have rules for is found out one by one.
  if (base_.runtime != Runtime::vramfit) bounded_from_ = simple_from_ = fragments_from_;
  open_from_.resize(rows_.size() + 1);
  for (std::size_t level = rows_.size(); level-- > 0;) {
    open_from_[level] = open_from_[level + 1];
    if (rows_[level]->open) open_from_[level].add(*rows_[level]->open);
  }
}

bool Space::can_be(Job& job, std::size_t level) const {
  if (level < settled_) return true;
  if (level == settled_ && !resolves(job, request_)) return false;
  const bool is_known = base_.runtime == Runtime::vramfit && level > settled_;  // rules are the same for all choices
  return is_known || has_rules(job, request_.cluster);
}

std::vector<Job> Space::choices(const Job& job, std::size_t level) const {
  std::vector<Job> list = rows_[level]->choices(job, space_);
  if (list.empty()) list.push_back(job);
  std::erase_if(list, [&](Job& choice) { return !can_be(choice, level + 1); });
  return list;
}

std::int64_t Space::count(const Job& job, std::size_t level) {
  if (level == levels()) return 1;
  const std::pair key{level, kinds_of(job)};
  if (is_simple(level)) {
    if (const auto known = counts_.find(key); known != counts_.end()) return known->second;
  }
  std::int64_t leaves = 0;
  for (const Job& choice : choices(job, level)) leaves += count(choice, level + 1);
  if (is_simple(level)) counts_.emplace(key, leaves);
  return leaves;
}

std::optional<Job> Space::completed(Job job, std::size_t level, const Job& like) const {
  for (; level < levels(); ++level) {
    std::vector<Job> list = choices(job, level);
    if (list.empty()) return std::nullopt;
    const auto same = std::ranges::find_if(list, [&](const Job& choice) { return is_alike(choice, like, row(level)); });
    job = same == list.end() ? std::move(list.front()) : std::move(*same);
  }
  return job;
}

std::vector<Job> Space::neighbours(const Job& job) const {
  std::vector<Job> found;
  for (std::size_t level = 0; level < levels(); ++level) {
    for (Job& choice : choices(job, level)) {
      if (is_alike(choice, job, row(level))) continue;
      if (std::optional<Job> other = completed(std::move(choice), level + 1, job)) found.push_back(*std::move(other));
    }
  }
  return found;
}

std::vector<Job> enumerate_jobs(const PlanRequest& request) {
  const Space space(request, request.job);
  std::vector<Job> jobs{space.base()};
  for (std::size_t level = 0; level < space.levels(); ++level) {
    std::vector<Job> next;
    for (const Job& job : jobs) std::ranges::move(space.choices(job, level), std::back_inserter(next));
    jobs = std::move(next);
  }
  return jobs;
}

}  // namespace vramfit
