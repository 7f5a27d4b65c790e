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

TEST_CASE("axolotl's kernels for adapters are all on but for those that are off, alone or beside Liger's") {
  Job job;
  for (const char* const text :
       {"axolotl", "axolotl:mlp=off", "axolotl:mlp=off,o=off", "liger+axolotl:qkv=off", "liger:rope=off+axolotl"}) {
    set_kernels(job, text);
    CHECK(get_kernels(job) == text);
  }
  set_kernels(job, "axolotl:o=off,mlp=on");
  CHECK(job.axolotl == AxolotlParts{.mlp = true, .qkv = true, .o = false});
  set_kernels(job, "libtorch+axolotl");
  CHECK(get_kernels(job) == "axolotl");
  set_kernels(job, "liger");
  CHECK(job.axolotl == AxolotlParts{});
  CHECK_THROWS_WITH_AS(set_kernels(job, "axolotl:k=off"), doctest::Contains("unknown value \"k\""), InputError);
  CHECK_THROWS_WITH_AS(set_kernels(job, "axolotl:mlp=off,qkv=off,o=off"), doctest::Contains("all of its parts are off"),
                       InputError);
  for (const char* const text :
       {"axolotl:", "axolotl+liger", "liger+", "liger+vramfit", "vramfit+axolotl", "axolotls"}) {
    CHECK_THROWS_AS(set_kernels(job, text), InputError);
  }
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
