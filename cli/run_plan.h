// What `vramfit run` does before it starts ranks.
#pragma once

#include <string>

#include "cli/job_flags.h"

namespace vramfit {

/// Whether `path` is a file of one of our own JSON forms (it has a "schema"), as opposed to a MODEL.
bool is_plan_file(const std::string& path);

/// A plan made from MODEL and flags as given, without a search. The file lives as long as this object. Warns on stderr
/// if the job is predicted not to fit.
class TemporaryPlan {
 public:
  /// `clip` is the value of --clip, or "". Throws InputError, ModelError, NotModelled.
  TemporaryPlan(const JobFlags& flags, const std::string& clip);
  ~TemporaryPlan();
  TemporaryPlan(const TemporaryPlan&) = delete;
  TemporaryPlan& operator=(const TemporaryPlan&) = delete;
  TemporaryPlan(TemporaryPlan&&) = delete;
  TemporaryPlan& operator=(TemporaryPlan&&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Throws InputError naming both when PYTORCH_ALLOC_CONF or PYTORCH_CUDA_ALLOC_CONF asks for another allocator than the
/// job.
void check_allocator_variables(const Job& job);

}  // namespace vramfit
