#include "cli/estimate/instead.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/flags/imported_choices.h"
#include "job/fields/job_fields.h"
#include "job/stacks/job_defaults.h"

namespace vramfit {
namespace {

Job without_choices_of_libraries(Job job) {
  const Job none, there = job;
  for (const JobField& field : job_fields()) {
    const std::string value = field.get(there);
    const std::string kept = choice_on(std::string(field.name), value, there).value_or(field.get(none));
    if (kept != value) field.set(job, kept);
  }
  return job;
}

/// How flags are to be changed for `to` in place of `from`.
void add_changes(Instead& instead, const Job& from, const Job& to) {
  for (const JobField& field : job_fields()) {
    const std::string value = field.get(to);
    if (value == field.get(from)) continue;
    if (value != field.get(unresolved_job())) {
      instead.flags += fmt::format(" {} {}", flag_of(field), value);
    } else {
      instead.without += fmt::format("{} {}", instead.without.empty() ? ", without" : " and", flag_of(field));
    }
  }
}

}  // namespace

Instead instead_on(JobFlags flags, const Stack& stack, const Job& job, const Cluster& cluster) {
  const std::vector<std::string> fixed = read_job_choice(flags, stack, cluster).fixed;
  Instead instead{.choice = {}, .flags = fmt::format("--stack {}", stack.name), .without = ""};
  for (const StackDefault& each : job_defaults(stack_of(job), job, cluster)) {
    const bool is_alike = each.field == "precision" || each.field == "checkpointing";
    if (!is_alike || std::ranges::find(fixed, each.field) != fixed.end()) continue;
    flags.imported.insert(flags.imported.begin(), {std::string(each.field), std::string(each.value)});  // others win
    instead.flags += fmt::format(" {} {}", flag_of(job_field_named(each.field)), each.value);
  }
  instead.choice = read_job_choice(flags, stack, cluster);
  if (stack.name == "vramfit") {
    Job job_there = without_choices_of_libraries(instead.choice.job);
    add_changes(instead, instead.choice.job, job_there);
    instead.choice.job = std::move(job_there);
  }
  return instead;
}

}  // namespace vramfit
