// What `vramfit run` does before it starts ranks.
#pragma once

#include <string>

#include "cli/flags/job_flags.h"
#include "cli/private_folder.h"

namespace vramfit {

/// Whether `path` is a file of one of our own JSON forms (it has a "schema"), as opposed to a MODEL.
bool is_plan_file(const std::string& path);

/// A plan made from MODEL and flags as given, without a search. The file lives as long as this object. Warns on stderr
/// if the job is predicted not to fit.
class TemporaryPlan {
 public:
  /// `clip`: whether the step clips gradients. `adapters`: PEFT's folder that says what flags leave open. Throws
  /// InputError, ModelError, NotModelled, and FaultError when the file can't be written.
  TemporaryPlan(const JobFlags& flags, bool clip, const std::string& adapters = "");
  std::string path() const { return folder_.path() + "/plan.json"; }

 private:
  PrivateFolder folder_{"run"};
};

/// Throws InputError naming both when PYTORCH_ALLOC_CONF or PYTORCH_CUDA_ALLOC_CONF asks for another allocator than the
/// job.
void check_allocator_variables(const Job& job);

}  // namespace vramfit
