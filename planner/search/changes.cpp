#include "planner/search/changes.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/error.h"
#include "base/suggest.h"
#include "job/fields/field_text.h"
#include "job/fields/job_fields.h"
#include "job/optimizers.h"
#include "job/resolve_job.h"

namespace vramfit {
namespace {

constexpr std::int64_t kShortestSequence = 128;
constexpr std::size_t kMostValues = 32;

// What the executor trains in. fp8 rounds far more than the others, so it is tried only by name.
std::vector<Job> precisions(const Job& job, const std::vector<std::string>& values) {
  std::vector<Job> changed;
  for (const std::string_view name : {"bf16-mixed", "bf16-pure", "fp16-mixed", "fp32", "fp8"}) {
    const bool wanted = values.empty() ? name == "bf16-pure" : std::ranges::find(values, name) != values.end();
    if (!wanted || job.precision.name == name) continue;
    Job choice = job;
    choice.precision = precision_named(name);
    changed.push_back(choice);
  }
  return changed;
}

std::vector<Job> sequences(const Job& job, const std::vector<std::string>& values) {
  std::vector<std::int64_t> lengths;
  lengths.reserve(values.size());
  for (const std::string& value : values) lengths.push_back(whole_number(value, 1, std::int64_t{1} << 28));
  if (values.empty()) {
    for (std::int64_t length = job.sequence / 2; length >= kShortestSequence; length /= 2) lengths.push_back(length);
  }
  std::ranges::sort(lengths, std::greater<>());
  std::vector<Job> changed;
  changed.reserve(lengths.size());
  for (const std::int64_t length : lengths) {
    if (length >= job.sequence) continue;
    changed.push_back(job);
    changed.back().sequence = length;
  }
  return changed;
}

// Those of the engine that keep less for each weight; by default the one that trains most alike.
std::vector<Job> optimizers(const Job& job, const std::vector<std::string>& values) {
  std::vector<std::string> names = values;
  if (values.empty() && job.optimizer == "adamw") names.emplace_back("adamw-8bit");
  std::vector<Job> changed;
  for (const std::string& name : names) {
    Job choice = job;
    job_field_named("optimizer").set(choice, name);
    if (choice.optimizer != job.optimizer) changed.push_back(std::move(choice));
  }
  return changed;
}

// Adapters on frozen weights; by default in the weights' own dtype, and in 4 bits where that is still too large. Other
// runtimes than the engine's own have no adapters.
std::vector<Job> methods(const Job& job, const std::vector<std::string>& values) {
  std::vector<std::string> names = values;
  if (values.empty() && job.method == Method::full && job.runtime == Runtime::vramfit) names = {"lora", "qlora"};
  std::vector<Job> changed;
  for (const std::string& name : names) {
    Job choice = job;
    job_field_named("method").set(choice, name);
    if (choice.method == job.method) continue;
    std::vector<std::string> notes;  // defaults show as flags of the plan
    resolve_adapters(choice, notes);
    changed.push_back(std::move(choice));
  }
  return changed;
}

std::string precision_of(const Job& job) { return job.precision.name; }
std::string sequence_of(const Job& job) { return fmt::to_string(job.sequence); }
std::string optimizer_of(const Job& job) { return job.optimizer; }
std::string method_of(const Job& job) { return job_field_named("method").get(job); }

/// Whether the job can be at all: a card may not compute in its precision.
bool resolves(const Job& job, const PlanRequest& request) {
  std::vector<std::string> notes;
  try {
    resolve_job(job, request.spec, request.cluster, notes);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

constexpr std::array kChangeKinds{
    ChangeKind{"precision", "precision", false, false, precisions, precision_of},
    ChangeKind{"optimizer", "optimizer", false, false, optimizers, optimizer_of},
    ChangeKind{"method", "method", true, true, methods, method_of},
    ChangeKind{"seq-len", "seq_len", true, false, sequences, sequence_of},
};

/// Changes that people ask for and the search has no choice of, each with the way to its answer.
struct UnsearchedKind {
  std::string_view name, answer;
};
constexpr std::array kUnsearchedKinds{
    UnsearchedKind{
        "quantization",
        "weights in few bits train differently; set them with --method qlora, or --quantization and --freeze"},
    UnsearchedKind{"global-batch", "the search keeps the global batch; set a smaller one with --global-batch"},
};

void check_method(const std::string& name) {
  Job job;
  job_field_named("method").set(job, name);
}

void require_kind(const std::string& kind) {
  const auto* const unsearched = std::ranges::find(kUnsearchedKinds, kind, &UnsearchedKind::name);
  if (unsearched != kUnsearchedKinds.end()) {
    throw InputError(fmt::format("--allow {}: not searched: {}", kind, unsearched->answer));
  }
  std::vector<std::string> known{"any"};
  for (const ChangeKind& row : kChangeKinds) known.emplace_back(row.name);
  if (std::ranges::find(known, kind) == known.end()) {
    throw InputError(fmt::format("--allow {}: unknown kind{}", printable(kind), did_you_mean(kind, known)));
  }
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
    if (field.get(job) != value) field.set(job, value);
  }
}

}  // namespace

std::span<const ChangeKind> change_kinds() { return kChangeKinds; }

Allowed parse_allowed(const std::string& text) {
  Allowed allowed;
  if (text.empty()) return allowed;
  for (const std::string& part : split_list(text)) {
    const std::size_t colon = part.find(':');
    const std::string kind = part.substr(0, colon);
    require_kind(kind);
    std::vector<std::string>& values = allowed.kinds[kind];
    if (kind == "any") allowed.any = true;
    if (colon == std::string::npos) continue;
    if (kind == "any") throw InputError("--allow any: takes no value");
    values.push_back(part.substr(colon + 1));
    if (kind == "precision") precision_named(values.back());
    if (kind == "optimizer") optimizer_number(values.back());
    if (kind == "method") check_method(values.back());
    if (kind == "seq-len") whole_number(values.back(), 1, std::int64_t{1} << 28);
    if (values.size() > kMostValues)
      throw InputError(fmt::format("--allow {}: more than {} values", kind, kMostValues));
  }
  return allowed;
}

std::vector<Change> changes(const PlanRequest& request, bool allowed, bool last_resort) {
  std::vector<Change> list;
  for (const ChangeKind& kind : kChangeKinds) {
    if (kind.last_resort != last_resort) continue;
    const auto named = request.allowed.kinds.find(std::string(kind.name));
    const bool is_named = named != request.allowed.kinds.end();
    const bool is_allowed = is_named || (request.allowed.any && !is_set(request, kind.field));
    if (is_allowed != allowed) continue;
    const std::vector<std::string> values = is_named ? named->second : std::vector<std::string>{};
    for (Job& job : kind.choices(request.job, values)) {
      keep_what_was_set(job, request, kind.field);
      if (job.method == Method::qlora && job.quantization == "none") continue;  // as was set: lora by another name
      if (values.empty() && !resolves(job, request))
        continue;  // what a person names is refused with the reason instead
      const std::string needs = fmt::format("{}:{}", kind.name, kind.value(job));
      list.push_back({.needs = needs, .job = std::move(job), .shown_if_faster = kind.shown_if_faster});
    }
  }
  return list;
}

}  // namespace vramfit
