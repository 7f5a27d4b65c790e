// Whether there is a library of kernels, and what is said where there is none.
#include "executor/kernels/own_kernels.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "executor/kernels/own_kernels_torch.h"

extern "C" const vramfit::cuda::Kernels* vramfit_kernels(int interface_version);

namespace vramfit::testing {

TEST_CASE("the library of kernels is there if and only if it was built beside the programs") {
  CHECK((own_kernels() != nullptr) == std::filesystem::exists(own_kernels_path()));
}

TEST_CASE("kernels of another interface are not used") {
  CHECK(vramfit_kernels(cuda::kInterface) != nullptr);
  CHECK(vramfit_kernels(cuda::kInterface + 1) == nullptr);
}

TEST_CASE("a launch that failed is an error") {
  CHECK_NOTHROW(check_launch(0));
  CHECK_THROWS_WITH(check_launch(98), doctest::Contains("cudaError 98"));
}

}  // namespace vramfit::testing
