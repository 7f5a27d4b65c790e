// A plan as configurations of other tools. What changes the result of training and can't be written is refused; what
// changes memory or speed alone is marked: said in a comment of the file, and to the user.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "program/files/plan_reader.h"

namespace vramfit {

/// What becomes of a job field.
enum class Carried {
  written,    // the tool has a key for it; values that it lacks are refused or marked as they are written
  implied,    // follows from what is written
  precision,  // refused unless it is the precision's
  script,     // belongs to the user's own script: marked unless it is one of `same`
  command,    // is set by the command that starts the tool
  marked,     // unless it is one of `same`
  refused     // unless it is one of `same`
};

struct FieldRow {
  std::string_view field;
  Carried carried;
  std::string_view same = "";  // values that the tool has anyway, separated by '|'; "" is "not set"
  std::string_view why = "";
};

struct ExportedFile {
  std::string name, text;
};

struct Export {
  std::vector<ExportedFile> files;
  std::string command;
  std::vector<std::string> marks;          // one sentence each
  std::vector<std::string> marked_fields;  // names of the job fields that files don't carry
  // " --seq-len 2048 --allocator expandable": what the files leave to the user's script and to the command, as an
  // estimate of the files takes it.
  std::string job_flags;
};

class ExportWriter;

struct ExportTool {
  std::string_view name;
  std::span<const FieldRow> fields;  // those that all tools treat alike may be missing (common_fields())
  void (*write)(ExportWriter& writer);
  const ExportTool* with_deepspeed = nullptr;  // for jobs of that runtime, where the tool writes them otherwise
};

#define EXPORT(name) const ExportTool& name##_export();
#include "cli/configs/export/list.def"
#undef EXPORT

/// From cli/configs/export/list.def.
std::vector<std::string> export_tool_names();
const ExportTool& export_tool_named(std::string_view name);  // throws InputError with a suggestion

/// What all tools treat alike.
std::span<const FieldRow> common_fields();

/// Throws InputError naming the flag of what the tool lacks.
Export export_plan(const PlanFile& plan, const ExportTool& tool);

/// What a tool's `write` works with.
class ExportWriter {
 public:
  ExportWriter(const PlanFile& plan, const ExportTool& tool) : plan_(plan), tool_(tool) {}

  const PlanFile& plan() const { return plan_; }
  /// The model's name as libraries find it: the catalog's id for a short alias of it, which no hub has.
  std::string model() const;
  /// The value of a field as its flag takes it.
  std::string value(std::string_view field) const;
  bool is(std::string_view field, std::string_view wanted) const { return value(field) == wanted; }
  [[noreturn]] void refuse(std::string_view field, std::string_view why) const;
  void mark(std::string_view field, std::string_view why);
  void note(const std::string& text) { export_.marks.push_back(text); }
  /// Marks what the user's script decides, and adds it to what an estimate of the files is told.
  void leave_to_script(std::string_view field);
  void tell_estimate(std::string_view flags) { export_.job_flags.append(" ").append(flags); }

  void add_file(std::string name, std::string text) { export_.files.push_back({std::move(name), std::move(text)}); }
  /// What starts the tool; the allocator's setting is put before it.
  void set_command(const std::string& command);
  /// The marks so far as lines of comments.
  std::string comments() const;
  Export take() { return std::move(export_); }

 private:
  const PlanFile& plan_;
  const ExportTool& tool_;
  Export export_;
};

/// A text as YAML has to write it: in quotes where it would be something else without them.
std::string yaml_text(std::string_view text);

/// Whether parameters are sharded over several GPUs.
bool is_sharded(const ExportWriter& writer);

/// Whether units are dropped between forward and backward.
bool is_resharded(const ExportWriter& writer);

/// DeepSpeed's configuration of a job.
std::string deepspeed_json(ExportWriter& writer);
/// Whether DeepSpeed's AdamW takes the place of the Trainer's.
bool has_deepspeed_optimizer(const ExportWriter& writer);

/// accelerate's configuration; `checkpoints` whether it says that activations are checkpointed.
std::string accelerate_yaml(ExportWriter& writer, bool checkpoints);

}  // namespace vramfit
