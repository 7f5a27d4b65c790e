#include "tests/phantom/compiled_kernels.h"

#include <dlfcn.h>
#include <nvrtc.h>

#include <array>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace vramfit::phantom_test {

namespace {

// NVRTC asks for libnvrtc-builtins by its bare name, which the loader finds where CUDA is installed, or where it is
// loaded already.
void* nvrtc() {
  const std::filesystem::path library = VRAMFIT_TEST_NVRTC;
  for (const auto& file : std::filesystem::directory_iterator(library.parent_path())) {
    if (file.path().filename().string().starts_with("libnvrtc-builtins.so.")) dlopen(file.path().c_str(), RTLD_NOW);
  }
  return dlopen(library.c_str(), RTLD_NOW);
}

template <class Function>
Function* find(const char* name) {
  static void* const kLibrary = nvrtc();
  void* const found = kLibrary == nullptr ? nullptr : dlsym(kLibrary, name);
  if (found == nullptr) throw std::runtime_error(std::string(VRAMFIT_TEST_NVRTC) + ": no " + name);
  return reinterpret_cast<Function*>(found);
}

#define NVRTC(NAME) find<decltype(NAME)>(#NAME)

constexpr char kSample[] = R"(
struct Pair { float* first; int count; float* second; };
extern "C" {
__device__ int counter = 7;
__device__ float scratch[64];
__constant__ float table[4] = {1.5f, 2.5f, 3.5f, 4.5f};
__global__ void add(const float* x, const float* y, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = x[i] + y[i] + table[i & 3];
}
__global__ void __launch_bounds__(256) by_value(char flag, Pair pair, double scale) {
  __shared__ float tile[128];
  tile[threadIdx.x & 127] = pair.first[threadIdx.x];
  __syncthreads();
  pair.second[threadIdx.x] = flag ? tile[(threadIdx.x * 7) & 127] * scale : scratch[threadIdx.x & 63];
}
__global__ void nothing() { atomicAdd(&counter, 1); }
}
)";

}  // namespace

Compiled compile(const std::string& source, int capability) {
  nvrtcProgram program = nullptr;
  NVRTC(nvrtcCreateProgram)(&program, source.c_str(), "test.cu", 0, nullptr, nullptr);
  const std::string target = "-arch=sm_" + std::to_string(capability);
  const std::array options{target.c_str()};
  if (NVRTC(nvrtcCompileProgram)(program, static_cast<int>(options.size()), options.data()) != NVRTC_SUCCESS) {
    std::size_t bytes = 0;
    NVRTC(nvrtcGetProgramLogSize)(program, &bytes);
    std::string log(bytes, ' ');
    NVRTC(nvrtcGetProgramLog)(program, log.data());
    throw std::runtime_error(log);
  }
  Compiled made;
  std::size_t bytes = 0;
  NVRTC(nvrtcGetCUBINSize)(program, &bytes);
  made.cubin.resize(bytes);
  NVRTC(nvrtcGetCUBIN)(program, reinterpret_cast<char*>(made.cubin.data()));
  NVRTC(nvrtcGetPTXSize)(program, &bytes);
  made.ptx.resize(bytes);
  NVRTC(nvrtcGetPTX)(program, made.ptx.data());
  NVRTC(nvrtcDestroyProgram)(&program);
  return made;
}

const Compiled& sample() {
  static const Compiled kMade = compile(kSample);
  return kMade;
}

}  // namespace vramfit::phantom_test
