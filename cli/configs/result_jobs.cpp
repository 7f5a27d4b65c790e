#include "cli/configs/result_jobs.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <variant>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/json/json_value.h"
#include "base/process/standard_streams.h"
#include "base/text/suggest.h"
#include "base/text/units.h"
#include "cli/files.h"
#include "job/cluster/precision_support.h"
#include "job/fields/job_fields.h"
#include "job/fields/job_json.h"
#include "job/stacks/job_defaults.h"
#include "job/stacks/stacks.h"

namespace vramfit {
namespace {

constexpr std::array<std::string_view, 3> kWithJob{"plan", "run", "estimate"};

/// As one names it again: the catalog's name, a file that is still there, or what it was called.
std::string model_of(JsonObject model) {
  constexpr std::string_view kCatalog = "catalog: ";
  const std::string name = model.text("name"), source = model.has("source") ? model.text("source") : "";
  if (source.starts_with(kCatalog)) return source.substr(kCatalog.size());
  std::error_code error;
  return !source.empty() && std::filesystem::exists(source, error) ? source : name;
}

/// Whether the flags name another number of cards. What is wrong with them is said by whoever needs them.
bool is_on_other_cards(const std::string& gpus, const Cluster& cluster) {
  try {
    return parse_cluster(gpus.substr(0, gpus.find(','))).cards() != cluster.cards();
  } catch (const InputError&) {
    return gpus != cluster.text;
  }
}

/// "65536MiB", as --host-memory takes it.
std::string host_memory_text(Bytes bytes) {
  return fmt::format("{}MiB", static_cast<double>(bytes.n) / static_cast<double>(kMiB.n));
}

/// The document's, with its host memory and network where its text doesn't tell them.
void apply_cluster(JobFlags& flags, const Cluster& cluster) {
  if (!flags.gpus.empty()) return;
  flags.gpus = cluster.text;
  const bool has_usual_network = parse_cluster(cluster.text).network_bandwidth == cluster.network_bandwidth;
  if (!has_usual_network) flags.network_bandwidth = cluster.network_bandwidth;
  const bool is_told = cluster.text.find(',') != std::string::npos;
  if (cluster.host_memory.n == 0 || cluster.is_cpu() || is_told || !flags.host_memory.empty()) return;
  flags.host_memory = host_memory_text(cluster.host_memory);
}

/// What follows from a field, and is left out where a flag gives that field another value; `beside`: only where a flag
/// says that one, too, be it what it was.
struct Follower {
  std::string_view field, of, beside = "";
};
constexpr std::array kFollowers{
    Follower{"global_batch", "micro_batch"},
    Follower{"global_batch", "grad_accum"},
    Follower{"global_batch", "mesh"},
    Follower{"grad_accum", "global_batch"},
    Follower{"grad_accum", "micro_batch", "global_batch"},
    Follower{"micro_batch", "grad_accum", "global_batch"},
    Follower{"mesh", "sharding"},
    Follower{"runtime", "sharding"},
    Follower{"storage_dtype", "precision"},
    Follower{"compute_dtype", "precision"},
    Follower{"reduce_dtype", "precision"},
    Follower{"buffer_dtype", "precision"},
    Follower{"output_dtype", "precision"},
    Follower{"state_dtype", "precision"},
    Follower{"loss_scale", "precision"},
};

/// What a flag or --set says of the field; "" without either. What is wrong with it is said by whoever sets it.
std::string typed_value(const JobFlags& flags, const JobField& field) {
  const auto place = static_cast<std::size_t>(&field - job_fields().data());
  std::string value;
  if (place < flags.values.size()) value = fmt::format("{}", fmt::join(flags.values[place], ","));
  for (const std::string& assignment : flags.set) {
    const std::size_t equals = std::min(assignment.find('='), assignment.size());
    std::string name = assignment.substr(0, equals);
    std::ranges::replace(name, '-', '_');
    if (name == field.name && equals < assignment.size()) value = assignment.substr(equals + 1);
  }
  return value;
}

/// Whether a flag says something else of it than `job`.
bool is_replaced(const JobFlags& flags, const JobField& field, const Job& job) {
  const std::string typed = typed_value(flags, field);
  if (typed.empty()) return false;
  try {
    Job other = job;
    field.set(other, typed);
    return field.get(other) != field.get(job);
  } catch (const InputError&) {
    return false;
  }
}

/// The flag that replaces what the field followed from; "" if none does.
std::string replaced_origin(const JobFlags& flags, const JobField& field, const Job& job) {
  if (!typed_value(flags, field).empty()) return "";
  for (const Follower& row : kFollowers) {
    if (row.field != field.name) continue;
    if (!row.beside.empty() && typed_value(flags, job_field_named(row.beside)).empty()) continue;
    const JobField& of = job_field_named(row.of);
    if (is_replaced(flags, of, job)) return flag_of(of);
  }
  return "";
}

/// Those of what follows from a precision that a library sets anew on other cards.
bool is_by_precision(const JobField& field, const Job& job) {
  const bool follows = std::ranges::any_of(
      kFollowers, [&](const Follower& row) { return row.field == field.name && row.of == "precision"; });
  if (!follows) return false;
  Job usual = job;
  usual.precision = precision_on(job, job.precision.name);
  return field.get(usual) == field.get(job);
}

/// The job as its library's stack begins it on `cluster`; nothing where no stack has its runtime with its modeling.
/// `leaves`: it is for another stack now, also where its own has become another one.
std::optional<Job> begun_by_stack(const Job& job, const Cluster& cluster, bool leaves) {
  Job begun = on_stack(unresolved_job(), job_defaults(stack_of(job), job, cluster));
  if (leaves && job.modeling == Modeling::torchtitan) {  // as --stack torchtitan began before it was release 0.2
    begun.modeling = Modeling::torchtitan;
    begun.attention = Attention::flash;
  }
  const bool is_of_stack = begun.runtime == job.runtime && begun.modeling == job.modeling;
  return is_of_stack ? std::optional(begun) : std::nullopt;
}

/// How a library has a step run, which changes no result and is another one's own affair.
constexpr std::array<std::string_view, 8> kOfStack{"runtime",       "modeling", "wrap", "wrap_embeddings",
                                                   "reduce_finish", "prefetch", "loss", "reshard_head"};

/// What an answer for one stack hasn't for another. Says which choices these are.
void leave_to_other_stack(const JobFlags& flags, const Job& job, const Job& usual, const std::string& path,
                          std::vector<std::string>& set) {
  std::string choices;
  for (const std::string_view name : kOfStack) {
    const auto found = std::ranges::find(set, name);
    if (found == set.end()) continue;
    set.erase(found);
    const JobField& field = job_field_named(name);
    const std::string value = field.get(job);
    const bool is_choice = name != "runtime" && name != "modeling" && value != field.get(Job()) &&
                           value != field.get(usual) && typed_value(flags, field).empty();
    if (is_choice) choices += fmt::format("{}{} {}", choices.empty() ? "" : ", ", flag_of(field), value);
  }
  if (choices.empty()) return;
  complain("vramfit", fmt::format("note: {} is for {}; left out with --stack {}: {}", printable(path, 300),
                                  stack_of(job).what, flags.stack, choices));
}

void apply_result(JobFlags& flags, JsonObject& document, const std::string& path) {
  if (document.is_text("verdict") && document.text("verdict") == "no_plan") {
    document.fail("verdict", "no_plan: the search found no job that fits");
  }
  if (flags.model.empty()) flags.model = model_of(document.object("model"));
  JsonObject cluster_object = document.object("cluster"), job_object = document.object("job");
  const Cluster cluster = read_cluster(cluster_object);
  apply_cluster(flags, cluster);
  Job job = unresolved_job();
  std::vector<std::string> set;
  read_job(job_object, job, set);
  if (document.has("save_kind")) flags.save_kind = document.text("save_kind");
  if (document.has("clip")) flags.clips = flags.clips && document.boolean("clip");
  const bool is_elsewhere = is_on_other_cards(flags.gpus, cluster);
  const Stack& stack = stack_of(job);
  const bool is_on_other_stack =
      !flags.stack.empty() && (&stack_named(flags.stack) != &stack || job.modeling == Modeling::torchtitan);
  // On other cards the library may train in another way, and another library does anyway: what it sets by itself, it
  // sets anew.
  const bool is_shared_otherwise = !replaced_origin(flags, job_field_named("runtime"), job).empty();
  std::optional<Job> begun;
  const bool is_begun_anew = (is_elsewhere || is_shared_otherwise) && flags.has_stack;
  if (is_begun_anew || is_on_other_stack) begun = begun_by_stack(job, cluster, is_on_other_stack);
  if (is_on_other_stack) leave_to_other_stack(flags, job, begun.value_or(Job()), path, set);
  if (is_on_other_stack && begun && begun->precision.name.empty()) {
    begun->precision = precision_on(*begun, default_precision(cluster));
  }
  if (flags.stack.empty() && flags.has_stack && (begun || is_shared_otherwise)) flags.stack = stack.name;
  std::string left_out;
  for (const JobField& field : job_fields()) {
    // Which layers are checkpointed stays, though a library may begin so. Few libraries can choose single ops.
    const bool stays = is_on_other_stack && field.name == "checkpointing" &&
                       !std::holds_alternative<SelectiveCheckpointing>(job.checkpointing);
    const bool is_usual = begun && !stays && (field.get(job) == field.get(*begun) || is_by_precision(field, job));
    if (is_usual && job.runtime != Runtime::pytorch_fsdp1) continue;
    const bool is_of_cards = field.name == "mesh" || field.name == "global_batch";
    if (std::ranges::find(set, field.name) == set.end() || (is_elsewhere && is_of_cards)) continue;
    const std::string origin = replaced_origin(flags, field, job);
    if (origin.empty()) {
      flags.imported.emplace_back(field.name, field.get(job));
    } else if (field.get(job) != field.get(unresolved_job())) {
      left_out += fmt::format("{}{} (by {})", left_out.empty() ? "" : ", ", flag_of(field), origin);
    }
  }
  if (!left_out.empty()) {
    complain("vramfit", fmt::format("note: {} is read without what followed from choices that flags replace: {}",
                                    printable(path, 300), left_out));
  }
  if (!is_elsewhere) return;
  complain("vramfit", fmt::format("note: {} is for {}; its --mesh and --global-batch are left out on {}",
                                  printable(path, 300), printable(cluster.text), printable(flags.gpus)));
}

}  // namespace

void apply_results(JobFlags& flags) {
  std::erase_if(flags.job_files, [&](const std::string& path) {
    const JsonValue value = parse_json(read_file(path), path);
    if (value.kind != JsonValue::Kind::object) return false;
    JsonObject document(value, path);
    if (!document.is_text("schema")) return false;
    const std::string schema = document.text("schema");
    const auto* const kind = std::ranges::find_if(
        kWithJob, [&](std::string_view each) { return schema.starts_with(fmt::format("vramfit/{}@", each)); });
    if (kind == kWithJob.end()) {
      document.fail("schema", fmt::format("\"{}\" is no job; give a job's file, a plan, a run or an estimate",
                                          printable(schema)));
    }
    check_schema(document, *kind);
    apply_result(flags, document, path);
    return true;
  });
}

}  // namespace vramfit
