#include "program/pytorch/compiled/compiled.h"

#include <variant>

#include "program/pytorch/compiled/fp8_products.h"
#include "program/pytorch/compiled/fusion.h"

namespace vramfit::eager {

bool is_timed_alone(const Job& job) {
  return job.runtime != Runtime::vramfit && (job.compile || wants_fp8(job.precision));
}

Job eager_form(const Job& job) {
  Job eager = job;
  if (!is_timed_alone(job)) return eager;
  eager.compile = false;
  if (wants_fp8(job.precision)) eager.precision.name = "bf16-mixed";  // whose dtypes are the same
  return eager;
}

void set_work_of(program::Program& program, const Job& job) {
  if (wants_fp8(job.precision)) {
    use_fp8_products(program, {.is_compiled = job.compile,
                               .keeps_maxima = std::holds_alternative<SelectiveCheckpointing>(job.checkpointing)});
  }
  if (job.compile) fuse_calls(program);
}

}  // namespace vramfit::eager
