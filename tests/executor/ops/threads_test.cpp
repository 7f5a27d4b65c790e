#include <ATen/Parallel.h>
#include <doctest/doctest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "executor/ops/gemm_torch.h"
#include "executor/ops/kernels_torch.h"
#include "tests/executor/ops/random_tensors_torch.h"

#if !defined(__SANITIZE_THREAD__)  // ThreadSanitizer's build has no OpenMP (cmake/FindLibTorch.cmake)

namespace vramfit::testing {

namespace {

/// `count` threads while this lives.
class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

std::ptrdiff_t threads_of_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

/// Every file in the process's memory that is an OpenMP runtime.
std::set<std::string> openmp_runtimes() {
  std::set<std::string> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t start = line.find('/');
    if (start == std::string::npos) continue;
    const std::filesystem::path path = line.substr(start);
    const std::string name = path.filename();
    for (const char* prefix : {"libgomp", "libiomp", "libomp"}) {
      if (name.starts_with(prefix)) found.insert(path);
    }
  }
  return found;
}

}  // namespace

TEST_CASE("the loops of kernels run on as many threads as are asked for") {
  for (const int count : {1, 2, 3}) {
    const Threads threads(count);
    std::atomic<unsigned> numbers = 0;
    kernels::parallel_elements(8 * kernels::kGrain, [&](std::int64_t /*begin*/, std::int64_t /*end*/) {
      numbers |= 1U << static_cast<unsigned>(at::get_thread_num());
    });
    CHECK(numbers == (1U << static_cast<unsigned>(count)) - 1);
  }
}

TEST_CASE("one OpenMP runtime is loaded, LibTorch's") {
  const std::set<std::string> found = openmp_runtimes();
  REQUIRE(found.size() == 1);
  CHECK(found.begin()->find("/torch/lib/") != std::string::npos);
}

TEST_CASE("a product within a parallel loop starts no threads of its own") {
  const Threads threads(3);
  const at::Tensor a = random_tensor({256, 256}, 1), b = random_tensor({256, 256}, 2);
  const at::Tensor out = at::empty({3, 256, 256});
  std::atomic<std::ptrdiff_t> most = 0;
  kernels::parallel_rows(3, kernels::kGrain, [&](std::int64_t) {});  // the threads are there
  const std::ptrdiff_t before = threads_of_process();
  kernels::parallel_rows(3, kernels::kGrain, [&](std::int64_t i) {
    kernels::multiply_f32(1, kernels::matrix(a), kernels::matrix(b), 0, kernels::matrix(out[i]));
    if (at::get_thread_num() == 0) most = threads_of_process();
  });
  CHECK(most == before);
  CHECK(at::equal(out[0], out[2]));
}

}  // namespace vramfit::testing

#endif
