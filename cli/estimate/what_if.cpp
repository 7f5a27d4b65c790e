#include "cli/estimate/what_if.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/suggest.h"
#include "cli/estimate/instead.h"
#include "cli/flags/flag_synonyms.h"
#include "cli/format/estimate_text.h"
#include "job/cluster/host_memory.h"
#include "job/fields/field_text.h"
#include "job/fields/job_fields.h"

namespace vramfit {
namespace {

/// What a change may name beside fields of the job.
struct QuestionKey {
  std::string_view name, flag;
  std::string& (*of)(JobQuestion& question);
};
constexpr std::array kQuestionKeys{
    QuestionKey{"gpus", "--gpus", [](JobQuestion& q) -> std::string& { return q.job.gpus; }},
    QuestionKey{"host_memory", "--host-memory", [](JobQuestion& q) -> std::string& { return q.job.host_memory; }},
    QuestionKey{"network", "--network", [](JobQuestion& q) -> std::string& { return q.network; }},
    QuestionKey{"stack", "--stack", [](JobQuestion& q) -> std::string& { return q.job.stack; }},
};

constexpr std::string_view kEngine = "--stack vramfit";

std::vector<std::string> parts_of(const std::string& change) {
  std::vector<std::string> parts = split_list(change, ' ');
  std::erase(parts, "");
  return parts;
}

/// "--micro-batch" and "micro-batch" are "micro_batch".
std::string field_name(std::string key) {
  if (key.starts_with("--")) key.erase(0, 2);
  std::ranges::replace(key, '-', '_');
  return key;
}

/// What a change says of host memory is instead of what the cluster said, or --host-memory.
void drop_old_host_memory(JobQuestion& question, std::string_view name, std::string_view value) {
  const std::string key = fmt::format(",{}", kHostMemoryKey);
  if (name == "host_memory") question.job.gpus.resize(std::min(question.job.gpus.find(key), question.job.gpus.size()));
  if (name == "gpus" && value.find(key) != std::string_view::npos) question.job.host_memory.clear();
}

/// Applies KEY=VALUE; returns it as a flag.
std::string apply(JobQuestion& question, const std::string& part) {
  auto [key, value] = key_and_value(part);
  if (value.empty()) throw InputError(fmt::format("{}: the value is empty", printable(key)));
  std::string name = field_name(key);
  if (const auto known = known_setting(name, value)) {
    name = field_name(known->field);
    value = known->value;
  }
  const auto* const other = std::ranges::find(kQuestionKeys, name, &QuestionKey::name);
  if (other != kQuestionKeys.end()) {
    drop_old_host_memory(question, name, value);
    other->of(question) = value;
    return fmt::format("{} {}", other->flag, value);
  }
  const JobField& field = job_field_named(name);
  Job scratch = unresolved_job();
  set_job_field(scratch, field, value, std::string(field.name));
  question.job.set.push_back(fmt::format("{}={}", field.name, value));
  return fmt::format("{} {}", flag_of(field), value);
}

/// Other stacks have another loss, so that figures of them are of another job.
void require_same_task(const Job& before, const Estimate& after) {
  if (after.verdict == Verdict::not_modelled) return;
  const auto task = [](const Job& job) {
    return has_trl(job) && job.modeling != Modeling::trl ? job.modeling : Modeling::trl;
  };
  if (task(before) == task(after.job)) return;
  throw InputError("changes what is trained for: TRL's other trainers have their own losses (--stack trl-dpo)");
}

WhatIf what_if(JobQuestion question, const std::string& change, const ModelSpec& spec, const Job& before) {
  try {
    std::string flags;
    for (const std::string& part : parts_of(change)) {
      flags += fmt::format("{}{}", flags.empty() ? "" : " ", apply(question, part));
    }
    if (flags.empty()) throw InputError("names nothing to change; expected KEY=VALUE");
    Asked asked = read_asked(question);
    const bool is_engine_instead = asked.stack->name == "vramfit" && stack_of(before).name != asked.stack->name;
    if (is_engine_instead) {
      Instead instead = instead_on(question.job, *asked.stack, before, asked.cluster);
      asked.choice = std::move(instead.choice);
      const std::size_t typed = flags.find(kEngine);
      if (typed == std::string::npos) {  // by its runtime and modeling
        flags += " " + instead.flags;
      } else {
        flags.replace(typed, kEngine.size(), instead.flags);
      }
      flags += instead.without;
    }
    WhatIf made{.change = flags, .estimate = estimate_of(question, asked, spec, false)};
    require_same_task(before, made.estimate);
    return made;
  } catch (const InputError& error) {
    throw InputError(fmt::format("--what-if {}: {}", printable(change), error.what()));
  }
}

std::string outcome(Verdict verdict, const Terminal& terminal) {
  const Style style = verdict == Verdict::fits           ? Style::good
                      : verdict == Verdict::does_not_fit ? Style::bad
                                                         : Style::warning;
  return styled(terminal, style, outcome_of(verdict));
}

/// "3.21", "0.0412".
std::string seconds(double value) { return fmt::format("{:.{}f}", value, value < 1 ? 4 : 2); }

/// Longer names stand in a line of their own.
constexpr std::size_t kWidestChange = 40;

/// GiB and its difference, step and its difference, tokens/s and its difference.
std::string figures(const Estimate& base, const WhatIf* what_if) {
  const Estimate& estimate = what_if == nullptr ? base : what_if->estimate;
  std::string total, more, step, more_step, tokens, more_tokens;
  if (!estimate.ranks.empty()) {
    total = fmt::format("{:.2f}", gib_of(worst_rank(estimate).total));
  }
  if (estimate.speed) {
    step = seconds(estimate.speed->time.step_seconds);
    tokens = fmt::format("{:.0f}", estimate.speed->tokens_per_second);
  }
  if (what_if != nullptr) {
    if (const auto change = total_change(base, *what_if)) more = fmt::format("{:+.2f}", gib_of(*change));
    if (base.speed && estimate.speed) {
      const auto percent = [](double now, double before) { return fmt::format("{:+.0f} %", 100 * (now / before - 1)); };
      more_step = percent(estimate.speed->time.step_seconds, base.speed->time.step_seconds);
      more_tokens = percent(estimate.speed->tokens_per_second, base.speed->tokens_per_second);
    }
  }
  return fmt::format("{:>8} {:>8}  {:>8} {:>7}  {:>9} {:>7}", total, more, step, more_step, tokens, more_tokens);
}

/// "activations -12.01, fragmentation +0.30": differences of at least a hundredth of a GiB, largest first.
std::string parts_text(const Estimate& base, const WhatIf& what_if) {
  const auto change = breakdown_change(base, what_if);
  if (!change) return "";
  std::vector<std::pair<Bytes, std::string_view>> parts;
  for (std::size_t i = 0; i < kBreakdownParts; ++i) {
    if (std::abs(gib_of((*change)[i])) >= 0.005) parts.emplace_back((*change)[i], breakdown_part_name(i));
  }
  std::ranges::stable_sort(parts, std::greater{}, [](const auto& part) { return std::abs(part.first.n); });
  std::string text;
  for (const auto& [bytes, name] : parts) {
    text += fmt::format("{}{} {:+.2f}", text.empty() ? "" : ", ", name, gib_of(bytes));
  }
  return text;
}

}  // namespace

std::vector<WhatIf> what_ifs(const JobQuestion& question, const std::vector<std::string>& changes,
                             const ModelSpec& spec, const Job& before) {
  std::vector<WhatIf> list;
  list.reserve(changes.size());
  for (const std::string& change : changes) list.push_back(what_if(question, change, spec, before));
  return list;
}

std::string what_if_text(const Estimate& base, const std::vector<WhatIf>& what_ifs, const Terminal& terminal) {
  if (what_ifs.empty()) return "";
  std::size_t width = std::string_view("What if").size();
  for (const WhatIf& each : what_ifs) width = std::max(width, std::min(each.change.size(), kWidestChange));
  std::string text = fmt::format("\n{:<{}}  {:>8} {:>8}  {:>8} {:>7}  {:>9} {:>7}\n", "What if", width + 2, "GiB",
                                 "more", "step, s", "more", "tokens/s", "more");
  const auto row = [&](std::string_view name, const WhatIf* what_if, Verdict verdict) {
    const bool is_wide = name.size() > width;
    if (is_wide) text += fmt::format("  {}\n", name);
    text += fmt::format("  {:<{}}  {}  {}\n", is_wide ? "" : name, width, figures(base, what_if),
                        outcome(verdict, terminal));
  };
  row("as it is", nullptr, base.verdict);
  for (const WhatIf& each : what_ifs) {
    row(printable(each.change), &each, each.estimate.verdict);
    if (each.estimate.verdict == Verdict::not_modelled)
      text += fmt::format("    {}\n", printable(each.estimate.why, 500));
    const Estimate& estimate = each.estimate;
    if (!estimate.job.offload.empty() && estimate.job.offload != base.job.offload && estimate.host_bytes.n > 0) {
      text += fmt::format("    {} of host memory a node\n", format_gib(estimate.host_bytes));
    }
    if (const std::string parts = parts_text(base, each); !parts.empty()) text += fmt::format("    {}\n", parts);
  }
  return text;
}

}  // namespace vramfit
