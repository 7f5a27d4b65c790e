#include "cli/configs/export/export.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <stdexcept>

#include <fmt/format.h>

#include "base/error.h"
#include "base/text/shell_quoted.h"
#include "base/text/suggest.h"
#include "cli/configs/syntax/yaml.h"
#include "job/allocator/allocator_settings.h"
#include "job/fields/field_text.h"
#include "job/fields/job_fields.h"
#include "job/sharding/sharding.h"
#include "job/stacks/stacks.h"
#include "model_specs/catalog.h"

namespace vramfit {
namespace {

constexpr std::array kTools{
#define EXPORT(name) &name##_export,
#include "cli/configs/export/list.def"
#undef EXPORT
};

constexpr std::string_view kNoSuch = "there is no such choice";
constexpr std::string_view kExpandableInEnvironment = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";

constexpr std::array kCommon{
    FieldRow{"runtime", Carried::implied},
    FieldRow{"modeling", Carried::implied},
    FieldRow{"storage_dtype", Carried::precision},
    FieldRow{"compute_dtype", Carried::precision},
    FieldRow{"reduce_dtype", Carried::precision},
    FieldRow{"buffer_dtype", Carried::precision},
    FieldRow{"output_dtype", Carried::precision},
    FieldRow{"state_dtype", Carried::precision},
    FieldRow{"loss_scale", Carried::refused, "|auto", "the tool scales the loss by itself"},
    FieldRow{"mesh", Carried::implied},
    FieldRow{"reshard", Carried::marked, "default|always|never", kNoSuch},
    FieldRow{"wrap_embeddings", Carried::marked, "on", "embeddings and output are separate units"},
    FieldRow{"prefetch", Carried::marked, "backward=pre,forward=0,limit=0", kNoSuch},
    FieldRow{"reduce_finish", Carried::marked, "early", kNoSuch},
    FieldRow{"accumulate", Carried::marked, "sharded", kNoSuch},
    FieldRow{"bucket_bytes", Carried::marked, "26214400", kNoSuch},
    FieldRow{"overlap_comm", Carried::marked, "off", kNoSuch},
    FieldRow{"zero3_sizes", Carried::marked, "", kNoSuch},
    FieldRow{"grpo", Carried::refused, "", kNoSuch},
    FieldRow{"packing", Carried::refused, "", kNoSuch},
    FieldRow{"rotary_positions", Carried::marked, "", kNoSuch},
    FieldRow{"reentrant_checkpoints", Carried::marked, "off", kNoSuch},
    FieldRow{"find_unused_parameters", Carried::marked, "", kNoSuch},
    FieldRow{"reshard_head", Carried::marked, "off", kNoSuch},
    FieldRow{"deterministic", Carried::refused, "off", "set it in the script"},
    FieldRow{"compile", Carried::marked, "off", "turn torch.compile on in the tool"},
    FieldRow{"load", Carried::marked, "each", "the tool decides how weights are loaded"},
    FieldRow{"optimizer_in_backward", Carried::refused, "off", kNoSuch},
    FieldRow{"master_dtype", Carried::refused, "", kNoSuch},
    FieldRow{"gradient_dtype", Carried::refused, "", kNoSuch},
    FieldRow{"label_smoothing", Carried::refused, "", "set it in the script"},
    FieldRow{"z_loss", Carried::refused, "", kNoSuch},
    FieldRow{"ignore_index", Carried::refused, "", "mask its labels in the script"},
    FieldRow{"kernels", Carried::refused, "", kNoSuch},
    FieldRow{"allocator", Carried::command},
    FieldRow{"freeze", Carried::refused, "", "freeze parameters in the script"},
    FieldRow{"gradient_mask", Carried::refused, "none", kNoSuch},
    FieldRow{"rslora", Carried::refused, "|off", kNoSuch},
    FieldRow{"dora", Carried::refused, "|off", "only --stack vramfit plans it; set it in the tool's own file"},
};

const FieldRow& row_of(const ExportTool& tool, std::string_view field) {
  const auto own = std::ranges::find(tool.fields, field, &FieldRow::field);
  if (own != tool.fields.end()) return *own;
  const auto* const common = std::ranges::find(kCommon, field, &FieldRow::field);
  if (common == kCommon.end()) throw std::logic_error(fmt::format("{}: no word of {}", tool.name, field));
  return *common;
}

bool is_same(const FieldRow& row, const std::string& value) {
  const std::vector<std::string> same = split_list(row.same, '|');
  return std::ranges::find(same, value) != same.end();
}

/// Whether a dtype is what the precision's name says.
bool is_of_precision(const Job& job, const JobField& field) {
  Job usual = job;
  usual.precision = precision_on(job, job.precision.name);
  return field.get(usual) == field.get(job);
}

void carry(ExportWriter& writer, const ExportTool& tool, const JobField& field) {
  const FieldRow& row = row_of(tool, field.name);
  const Job& job = writer.plan().job;
  const bool has_no_units = writer.plan().cluster.cards() == 1;
  if (has_no_units && field.name == "wrap_embeddings") return;
  switch (row.carried) {
    case Carried::written:
    case Carried::implied:
    case Carried::command:
      return;
    case Carried::precision:
      if (!is_of_precision(job, field)) writer.refuse(field.name, "only what the precision's name says can be written");
      return;
    case Carried::script:
      if (!field.get(job).empty() && !is_same(row, field.get(job))) writer.leave_to_script(field.name);
      return;
    case Carried::marked:
      if (!is_same(row, field.get(job))) writer.mark(field.name, row.why);
      return;
    case Carried::refused:
      if (!is_same(row, field.get(job))) writer.refuse(field.name, row.why);
      return;
  }
}

}  // namespace

std::span<const FieldRow> common_fields() { return kCommon; }

std::vector<std::string> export_tool_names() {
  std::vector<std::string> names;
  for (const auto tool : kTools) names.emplace_back(tool().name);
  return names;
}

const ExportTool& export_tool_named(std::string_view name) {
  for (const auto tool : kTools) {
    if (tool().name == name) return tool();
  }
  if (name == "transformers") {
    throw InputError(
        "transformers: its Trainer reads no file of its own; accelerate has FSDP's, deepspeed DeepSpeed's, "
        "and trl those of TRL's trainers");
  }
  unknown_value(name, export_tool_names());
}

Export export_plan(const PlanFile& plan, const ExportTool& named) {
  const bool is_otherwise = plan.job.runtime == Runtime::deepspeed && named.with_deepspeed != nullptr;
  const ExportTool& tool = is_otherwise ? *named.with_deepspeed : named;
  if (plan.cluster.is_cpu()) throw InputError(fmt::format("--to {}: the plan is for CPU ranks", tool.name));
  ExportWriter writer(plan, tool);
  if (plan.job.runtime == Runtime::pytorch_fsdp1) {
    writer.refuse("runtime", "what is written is for FSDP2: --runtime pytorch-fsdp2");
  }
  if ((has_pairs(plan.job) || plan.job.modeling == Modeling::trl_grpo) && tool.name != "trl") {
    writer.refuse("modeling", "what is written is for supervised fine-tuning: --to trl");
  }
  if (plan.job.method == Method::full && !writer.value("quantization").empty()) {
    writer.refuse("quantization", "the tool doesn't train quantized weights");
  }
  if (sharding_named(plan.job.sharding).of_deepspeed && tool.name != "deepspeed" && !is_otherwise) {
    writer.refuse("sharding", "only DeepSpeed shards just the optimizer states: --to deepspeed");
  }
  for (const JobField& field : job_fields()) carry(writer, tool, field);
  tool.write(writer);
  return writer.take();
}

std::string ExportWriter::model() const {
  const ModelSpec& spec = plan_.spec;
  const bool is_short = spec.source.starts_with("catalog:") && spec.name.find('/') == std::string::npos;
  const CatalogEntry* const entry = is_short ? find_in_catalog(spec.name) : nullptr;
  return entry == nullptr ? spec.name : std::string(entry->id);
}

std::string ExportWriter::value(std::string_view field) const { return job_field_named(field).get(plan_.job); }

void ExportWriter::refuse(std::string_view field, std::string_view why) const {
  const JobField& row = job_field_named(field);
  throw InputError(fmt::format("--to {}: {} {}: {}", tool_.name, flag_of(row), printable(row.get(plan_.job)), why));
}

void ExportWriter::mark(std::string_view field, std::string_view why) {
  const JobField& row = job_field_named(field);
  export_.marks.push_back(fmt::format("{} {}: {}", flag_of(row), printable(row.get(plan_.job)), why));
  export_.marked_fields.emplace_back(field);
}

/// A loss in chunks is the engine's, and the global batch follows from the others.
void ExportWriter::leave_to_script(std::string_view field) {
  mark(field, "belongs in your script");
  if (field == "global_batch" || (field == "loss" && !is("loss", "full"))) return;
  tell_estimate(fmt::format("{} {}", flag_of(job_field_named(field)), shell_quoted(value(field))));
}

void ExportWriter::set_command(const std::string& command) {
  const std::string allocator = value("allocator");
  if (puts_gradients_first(allocator)) mark("allocator", "only this engine has that order; segments are expandable");
  if (names_expandable_segments(allocator)) {
    export_.command = fmt::format("{} {}", kExpandableInEnvironment, command);
    tell_estimate("--allocator expandable");
  } else {
    if (allocator != "native") mark("allocator", "set PYTORCH_CUDA_ALLOC_CONF yourself, if PyTorch has it");
    export_.command = command;
  }
}

std::string ExportWriter::comments() const {
  std::string text;
  if (!export_.marks.empty()) text = "# Not carried from the plan:\n";
  for (const std::string& mark : export_.marks) text += fmt::format("#   {}\n", mark);
  if (names_expandable_segments(value("allocator"))) {
    text += fmt::format("# The plan's figures need {} in the environment.\n", kExpandableInEnvironment);
  }
  return text;
}

bool is_sharded(const ExportWriter& writer) {
  return writer.plan().cluster.cards() > 1 && sharding_named(writer.plan().job.sharding).parameters;
}

bool is_resharded(const ExportWriter& writer) {
  const Job& job = writer.plan().job;
  return sharding_named(job.sharding).reshard && !std::holds_alternative<ReshardNever>(job.reshard);
}

std::string yaml_text(std::string_view text) {
  const bool is_safe = !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '/' || c == '.' || c == '-';
  });
  if (is_safe && text.front() != '-' && plain_yaml_scalar(text, 1).kind == ConfigNode::Kind::text) {
    return std::string(text);
  }
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace vramfit
