#include "cli/run/run_replan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/files/result_file.h"
#include "base/process/standard_streams.h"
#include "base/text/suggest.h"
#include "cli/files.h"
#include "cli/private_folder.h"
#include "job/fields/job_fields.h"
#include "planner/answer/plan_json.h"
#include "planner/search/search.h"
#include "program/files/checkpoint_steps.h"
#include "program/files/run_record.h"

namespace vramfit {
namespace {

constexpr int kOutOfMemory = static_cast<int>(ExitCode::out_of_memory);

/// "2xcpu-1GiB" with another size; "8xH100-80GB@71.20GiB".
std::string with_memory(const Cluster& cluster, Bytes memory) {
  const bool is_small = memory < kGiB;
  const double number = static_cast<double>(memory.n) / static_cast<double>((is_small ? kMiB : kGiB).n);
  const std::string size = fmt::format("{:.2f}{}", number, is_small ? "MiB" : "GiB");
  if (cluster.is_cpu()) return cluster.text.substr(0, cluster.text.find("cpu-") + 4) + size;
  return fmt::format("{}@{}", cluster.text.substr(0, cluster.text.find('@')), size);
}

/// How much memory to plan for after `plan` ran out, the best first. What a rank held when it was refused more is there
/// for certain; if that is too little for any plan (it may have been refused early), then less than the failed plan was
/// predicted to need. A budget of CPU ranks is known.
std::vector<Bytes> capacities(const PlanFile& plan, const std::optional<RunRecord>& record, Bytes budget) {
  const Bytes predicted = plan.predicted_ranks.at(static_cast<std::size_t>(plan.predicted_worst)).total;
  std::vector<Bytes> list;
  if (plan.cluster.is_cpu() && budget > Bytes{} && budget < predicted) {
    list.push_back(budget);
  } else if (record) {
    list.push_back(record->ranks.at(static_cast<std::size_t>(record->worst)).memory.total);
  }
  list.push_back(predicted - Bytes{1});
  std::erase_if(list, [&](Bytes bytes) { return bytes <= Bytes{} || bytes >= plan.cluster.card.memory; });
  return list;
}

void drop(std::vector<std::string>& arguments, std::string_view flag) {
  for (auto found = std::ranges::find(arguments, flag); found != arguments.end();
       found = std::ranges::find(arguments, flag)) {
    arguments.erase(found, found + 2);
  }
}

class Replanning {
 public:
  explicit Replanning(const ReplannedRun& run) : run_(run), arguments_(run.arguments) { load(run.plan_path); }

  int run(const RunPlan& run_plan) {
    for (int attempt = 1;; ++attempt) {
      const RunEnd end = run_plan(plan_, path_, arguments_);
      const bool goes_on = end.exit_code == kOutOfMemory && attempt <= run_.most && plan_again(end, attempt);
      keep(end, goes_on ? std::to_string(attempt) : "");
      if (!goes_on) return end.exit_code;
    }
  }

 private:
  void load(const std::string& path) {
    plan_ = plan_from_json(read_file(path), path);
    path_ = path;
    request_.spec = plan_.spec;
    request_.job = plan_.job;
    request_.fixed = plan_.fixed;
    request_.cluster = plan_.cluster;
    request_.clip = plan_.clip;
  }

  /// With -o: of an attempt that was not the last under its number.
  void keep(const RunEnd& end, const std::string& number) const {
    const std::string& output = run_.options.output;
    if (output.empty() || end.record.empty()) return;
    if (number.empty()) return write_file(output, end.record);
    if (!is_stdout(output)) write_file(file_beside(output, number), end.record);
  }

  bool plan_again(const RunEnd& end, int attempt) {
    std::optional<RunRecord> record;
    if (!end.record.empty()) record = run_from_json(end.record, "run.json");
    const bool retried = record && record->stopped_at_retries;
    request_.rejected.push_back({.job = plan_.job, .why = retried ? "needed retries when run" : "ran out of memory"});
    for (const Bytes capacity : capacities(plan_, record, run_.options.budget)) {
      request_.cluster.card.memory = capacity;
      request_.cluster.text = with_memory(plan_.cluster, capacity);
      const Plan plan = make_plan(request_);
      if (!plan.chosen) continue;
      take(plan, attempt);
      return true;
    }
    complain("vramfit", "--replan: no plan of this job needs less memory");
    return false;
  }

  void take(const Plan& plan, int attempt) {
    const std::string text = plan_to_json(request_, plan);
    const std::string path = fmt::format("{}/plan{}.json", folder_.path(), attempt + 1);
    write_file(path, text);
    if (!run_.options.output.empty() && !is_stdout(run_.options.output)) {
      write_file(file_beside(run_.options.output, fmt::format("{}.plan", attempt + 1)), text);
    }
    const std::string changes = job_as_flags(plan.chosen->job, plan_.job);
    plan_ = plan_from_json(text, path);
    path_ = path;
    const std::string from = resume_if_saved() ? "from the last checkpoint" : "from the first step: nothing was saved";
    complain("vramfit",
             fmt::format("{}; planned again for {} ({} of at most {}): {}, {}", request_.rejected.back().why,
                         printable(request_.cluster.text), attempt, run_.most, printable(changes, 1000), from));
  }

  /// A checkpoint of this run is newer than the one that it began with.
  bool resume_if_saved() {
    const SaveFlags& save = run_.options.save;
    if (!save.directory.empty() && !committed_steps(save.directory).empty()) {
      drop(arguments_, "--resume");
      drop(arguments_, "--weights");
      arguments_.insert(arguments_.end(), {"--resume", save.directory});
      return true;
    }
    return !save.resume.empty();
  }

  const ReplannedRun& run_;
  std::vector<std::string> arguments_;
  PlanRequest request_;
  PlanFile plan_;
  std::string path_;
  PrivateFolder folder_{"replan"};
};

}  // namespace

int run_replanning(const ReplannedRun& run, const RunPlan& run_plan) { return Replanning(run).run(run_plan); }

}  // namespace vramfit
