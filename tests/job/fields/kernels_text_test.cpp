#include "job/fields/kernels_text.h"

#include <doctest/doctest.h>

#include "base/error.h"

namespace vramfit {

TEST_CASE("parts of Liger are read and written in one order") {
  Job job;
  CHECK(get_kernels(job).empty());
  for (const char* const text : {"vramfit", "liger", "liger:rope=off", "liger:rms_norm=off,swiglu=on"}) {
    set_kernels(job, text);
    CHECK(get_kernels(job) == text);
  }
  set_kernels(job, "liger:fused_linear_cross_entropy=off,cross_entropy=on");
  CHECK(get_kernels(job) == "liger:cross_entropy=on,fused_linear_cross_entropy=off");
  set_kernels(job, "libtorch");
  CHECK(get_kernels(job).empty());
  CHECK(job.liger == LigerParts{});
}

TEST_CASE("parts that Liger doesn't have, or not together, are refused") {
  Job job;
  CHECK_THROWS_WITH_AS(set_kernels(job, "liger:norm=on"), doctest::Contains("unknown value \"norm\""), InputError);
  CHECK_THROWS_WITH_AS(set_kernels(job, "liger:rope=yes"), doctest::Contains("unknown value \"yes\""), InputError);
  CHECK_THROWS_WITH_AS(set_kernels(job, "liger:rope=on,rope=off"), doctest::Contains("rope: is there twice"),
                       InputError);
  CHECK_THROWS_WITH_AS(set_kernels(job, "liger:cross_entropy=on,fused_linear_cross_entropy=on"),
                       doctest::Contains("exclude each other"), InputError);
  CHECK_THROWS_AS(set_kernels(job, "liger:"), InputError);
  CHECK_THROWS_AS(set_kernels(job, "ligers"), InputError);
}

}  // namespace vramfit
