#include "job/fields/runtime_text.h"

#include "job/fields/job_field_names.h"

namespace vramfit {

/// A runtime brings its own defaults, as a precision brings its dtypes: PyTorch's allocator and FSDP2's schedule, which
/// gathers one unit ahead in backward alone and holds embeddings and head in the root's unit. "pytorch-ddp" is PyTorch
/// with a copy on each GPU. The runtime that the job has already changes nothing: a stack may have set more for it.
void set_runtime(Job& job, std::string_view value) {
  if (value == "pytorch-ddp") {
    set_runtime(job, "pytorch");
    job.sharding = "no-shard";
    return;
  }
  const Runtime runtime = named(kRuntimes, value);
  if (job.runtime == runtime) return;
  job.runtime = runtime;
  const bool is_own = job.runtime == Runtime::vramfit;
  const Job defaults;
  job.allocator = is_own ? defaults.allocator : "native";
  job.wrap_embeddings = is_own;
  job.backward_prefetch = is_own ? defaults.backward_prefetch : BackwardPrefetch::pre;
  job.forward_prefetch = is_own ? defaults.forward_prefetch : 0;
  job.bucket_bytes = job.runtime == Runtime::deepspeed ? kDeepSpeedBucketBytes : defaults.bucket_bytes;
}

/// accelerate makes embeddings and output FSDP2 units of their own (1.15, utils/fsdp_utils.py: fsdp2_prepare_model),
/// and so does torchtitan (0.2, models/llama3/infra/parallelize.py: apply_fsdp).
void set_modeling(Job& job, std::string_view value) {
  job.modeling = named(kModelings, value);
  const bool wraps_ends = uses_accelerate(job) || job.modeling == Modeling::torchtitan_02;
  if (job.runtime == Runtime::pytorch_fsdp2 && wraps_ends) job.wrap_embeddings = true;
}

}  // namespace vramfit
