#include <memory>

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "cli/commands/commands.h"
#include "cli/configs/job_configs.h"
#include "cli/files.h"
#include "cli/flags/job_flags.h"
#include "cli/flags/model.h"
#include "cli/run/run_effects.h"
#include "job/resolve_job.h"
#include "program/make_program.h"
#include "program/not_modelled.h"
#include "program/readers/program_text.h"
#include "program/stages/adapters.h"

namespace vramfit {
namespace {

struct ProgramFlags {
  JobFlags job;
  RunEffectFlags run;
};

int run_program(const ProgramFlags& flags) {
  const ModelSpec spec = read_model(flags.job.model);
  const Cluster cluster = read_cluster_flag(flags.job);
  std::vector<std::string> notes;
  const Job job = resolve_job(read_job_choice_on_stack(flags.job, cluster).job, spec, cluster, notes);
  require_rules(job, cluster);
  const Graph graph = training_graph(spec, job);
  RunEffects run = effects_of(flags.run);
  run.clip = run.clip && flags.job.clips;
  write_file("-", program::program_text(program::make_program(
                      {.graph = graph, .job = job, .device = cluster.card.device, .coords = {}, .run = run})));
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void add_program(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<ProgramFlags>();
  add_job_flags(command, flags->job);
  add_stack_flag(command, flags->job, kOwnByDefault);
  add_run_effects(command, flags->run);
  command.callback([flags, &exit_code] {
    apply_configs(flags->job);
    require_modelled(flags->job);
    exit_code = run_program(*flags);
  });
}

}  // namespace vramfit
