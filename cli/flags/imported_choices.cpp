#include "cli/flags/imported_choices.h"

#include <string_view>

#include "job/fields/job_fields.h"
#include "job/stacks/pinned_offload.h"

namespace vramfit {
namespace {

/// Whether it is a choice that only other libraries have, and that changes no result.
bool is_foreign(std::string_view field, std::string_view value, const Job& there) {
  if (field == "bucket_bytes" || field == "overlap_comm" || field == "zero3_sizes") {
    return there.runtime != Runtime::deepspeed;
  }
  if (field == "optimizer") return value == "adamw:deepspeed" && there.runtime != Runtime::deepspeed;
  if (field == "rotary_positions") return there.modeling != Modeling::torchtune;
  if (has_trainer(there)) return false;
  if (field == "kernels") return value != "vramfit";
  if (field == "reentrant_checkpoints") return true;
  // Another library's DDP may look for unused parameters, for which there are no rules.
  return field == "find_unused_parameters" && (there.runtime == Runtime::vramfit || value == "off");
}

/// `--offload optimizer` of "optimizer:pageable".
std::string without_pageable(const std::string& offload) {
  Job job;
  set_job_field(job, job_field_named("offload"), offload, "--job");
  job.offload = pinned_offload(job.offload);
  return job_field_named("offload").get(job);
}

}  // namespace

std::optional<std::string> choice_on(const std::string& field, const std::string& value, const Job& there) {
  if (is_foreign(field, value, there)) return std::nullopt;
  return field == "offload" && there.runtime != Runtime::deepspeed ? without_pageable(value) : value;
}

}  // namespace vramfit
