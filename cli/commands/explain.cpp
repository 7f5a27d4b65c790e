#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/process/standard_streams.h"
#include "cli/commands/commands.h"
#include "cli/configs/job_configs.h"
#include "cli/estimate/default_stack.h"
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

/// Whether a job needs as much on the one as on the other, as with cards of one model with NVLink and with PCIe.
bool are_alike(const Card& one, const Card& other) {
  return one.device.compute_capability == other.device.compute_capability &&
         one.device.sm_count == other.device.sm_count && one.context == other.context && one.nccl == other.nccl &&
         one.pytorch_context == other.pytorch_context && one.bf16 == other.bf16;
}

/// The card of the catalog that has as much, to a hundredth of a GiB, the first of several that are alike; unlike ones
/// have, or none: a card of that size.
std::string card_with(Bytes total) {
  const std::string size = fmt::format("{:.2f}", gib_of(total));
  const Card* found = nullptr;
  for (const Card& card : card_catalog()) {
    if (fmt::format("{:.2f}", gib_of(card.memory)) != size) continue;
    if (found != nullptr && !are_alike(*found, card)) return size + "GiB";
    if (found == nullptr) found = &card;
  }
  return found == nullptr ? size + "GiB" : found->name;
}

/// Reads --job. Without --gpus the card is that of the message, as many as --job says, or one if no rank but 0 is in
/// the log. Where that isn't known, --gpus stays empty, and is asked for.
void read_job(JobFlags& job, const Explanation& explanation) {
  const std::string card = job.gpus.empty() && explanation.use.total ? card_with(*explanation.use.total) : "";
  if (!card.empty()) job.gpus = card;
  apply_configs(job);
  if (card.empty()) return;
  if (job.gpus == card) {
    const bool are_several =
        std::ranges::any_of(explanation.log.failures, [](const LoggedFailure& each) { return each.rank > 0; });
    job.gpus = are_several ? "" : "1x" + card;
  }
  if (!job.gpus.empty()) complain("vramfit", fmt::format("note: --gpus {}: the card is the message's", job.gpus));
}

int run_explain(ExplainFlags& flags) {
  Explanation explanation = explain(flags.file);
  if (names_job(flags)) {
    read_job(flags.job, explanation);
    const ModelSpec spec = read_model(flags.job.model);
    put_beside(explanation, answer_of(flags, spec).estimate);
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
  add_stack_flag(command, flags->job, kUsualByDefault);
  add_run_effects(command, flags->run);
  command.add_flag("--json", flags->json, "Print one JSON object (configs/schemas/explanation.schema.json)")
      ->group(kOutputFlags);
  command.callback([flags, &exit_code] { exit_code = run_explain(*flags); });
}

}  // namespace vramfit
