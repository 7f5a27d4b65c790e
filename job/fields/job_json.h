// JSON forms of jobs and clusters. A job's keys are its flags with '_' for '-', and its values are those of the flags;
// numbers, toggles and lists use JSON's own types.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json/json_value.h"
#include "base/json/json_writer.h"
#include "job/cluster/cluster.h"
#include "job/fields/job_fields.h"
#include "job/job.h"

namespace vramfit {

/// One object; fields that are not resolved are left out.
void write_job(JsonWriter& writer, const Job& job);
std::string job_to_json(const Job& job);

/// One field as a member, of `value` as the command line takes it.
void write_job_field(JsonWriter& writer, const JobField& field, const std::string& value);

/// Sets the fields of `job` that the object holds and appends their names to `fields_set`. Throws InputError naming
/// file and key for anything unknown, of the wrong type or out of range.
void read_job(JsonObject& object, Job& job, std::vector<std::string>& fields_set);

/// A job file: fields that are absent stay as in unresolved_job().
Job job_from_json(std::string_view text, const std::string& file);

void write_cluster(JsonWriter& writer, const Cluster& cluster);
Cluster read_cluster(JsonObject& object);

/// Throws InputError unless `object`'s schema is "vramfit/KIND@1"; the message says if it is newer or of another kind.
void check_schema(JsonObject& object, std::string_view kind);

}  // namespace vramfit
