#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "cli/commands/commands.h"
#include "cli/configs/job_configs.h"
#include "cli/estimate/asked.h"
#include "cli/explain/explanation.h"
#include "cli/files.h"
#include "cli/flags/help.h"
#include "cli/flags/model.h"

namespace vramfit {
namespace {

struct ExplainFlags : JobQuestion {
  std::string file;
  bool json = false;
};

bool names_job(const ExplainFlags& flags) { return !flags.job.model.empty() || any_job_flag(flags.job); }

int run_explain(const ExplainFlags& flags) {
  Explanation explanation = explain(flags.file);
  if (names_job(flags)) {
    const ModelSpec spec = read_model(flags.job.model);
    put_beside(explanation, estimate_of(flags, read_asked(flags), spec));
  }
  write_file("-", flags.json ? explanation_to_json(explanation) : explanation_text(explanation, detect_terminal()));
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void add_explain(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<ExplainFlags>();
  command
      .add_option(
          "FILE", flags->file,
          "A log with PyTorch's out-of-memory message, or a snapshot that torch.cuda.memory._dump_snapshot wrote")
      ->required();
  add_job_flags(command, flags->job);
  add_stack_flag(command, flags->job);
  add_run_effects(command, flags->run);
  command.add_flag("--json", flags->json, "Print one JSON object (configs/schemas/explanation.schema.json)")
      ->group(kOutputFlags);
  command.callback([flags, &exit_code] {
    apply_configs(flags->job);
    exit_code = run_explain(*flags);
  });
}

}  // namespace vramfit
