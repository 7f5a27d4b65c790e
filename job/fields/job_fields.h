// The table of a job's fields: names, values and meaning, read by the flags, by job.json and plan.json, and by `--set`.
// Adding a field is one row; the flag is the name with '-' for '_'.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "job/job.h"

namespace vramfit {

/// How a field's value is written in JSON: as a string, an integer, true/false, or a list of strings. On the command
/// line all are text: "on" or "off" for a toggle, commas between the elements of a list.
enum class FieldForm { text, integer, toggle, list };

/// Under which heading --help shows a field.
enum class FieldGroup { common, sharding, precision, memory, software };

/// Which runtimes do as a field says; the others have only their default and refuse any other value by the field's
/// name.
enum class HonouredBy { every_runtime, own_runtime };

/// Whether a resumed run must have the value of the run that saved. It must where the field decides what is computed,
/// beyond rounding; `in_part` where only a part of the value does (executor/run/run_checkpoints.cpp says which).
enum class AtResume { may_differ, must_match, in_part };

/// Whether a plan file must have the field. One that came after the first release is optional: plans written before
/// have its default.
enum class InPlan { required, optional };

/// Whether how parameters are held between steps depends on the field: units with their storages, gradients and states
/// are shared only by jobs that have the same value (estimator/least/job_keys.h).
enum class Decides { other, parameters };

struct JobField {
  std::string_view name;  // "seq_len"
  FieldForm form;
  std::string_view values;  // "full|lora|qlora", "N"
  std::string_view help;    // effect, unit and default, and which runtime has a value that not all have; for --help
  /// The value as the command line takes it; "" while it is not resolved.
  std::string (*get)(const Job& job);
  /// Throws InputError that says what is wrong with `value`, without the field's name.
  void (*set)(Job& job, std::string_view value);
  FieldGroup group = FieldGroup::common;
  HonouredBy honoured_by = HonouredBy::every_runtime;
  AtResume at_resume = AtResume::may_differ;
  InPlan in_plan = InPlan::required;
  Decides decides = Decides::other;
};

/// All fields, in the order in which they are applied (a precision before its dtypes).
std::span<const JobField> job_fields();

/// The row called `name` ('-' and '_' alike); throws InputError with a suggestion.
const JobField& job_field_named(std::string_view name);

/// Sets one field from text; throws InputError prefixed with `where` ("--seq-len", "job.json: seq_len").
void set_job_field(Job& job, const JobField& field, std::string_view value, const std::string& where);

/// Marks a dtype that nobody has chosen yet; resolve_job() replaces it by the precision's.
inline constexpr Dtype kUnsetDtype = Dtype::u8;

/// A job in which nothing is set: precision.name is "" and its dtypes are kUnsetDtype; mesh, sequence, micro_batch,
/// accumulation and global_batch are 0. resolve_job() (job/resolve_job.h) fills these in from the model and the
/// cluster.
Job unresolved_job();

/// "--seq-len": the flag of a field.
std::string flag_of(const JobField& field);

/// The flags that turn `base` into this job: those whose values differ, quoted for a shell where necessary.
std::string job_as_flags(const Job& job, const Job& base);

}  // namespace vramfit
