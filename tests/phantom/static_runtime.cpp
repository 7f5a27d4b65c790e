// Asks the runtime that is linked into it for cards; ends with 1 if it was given any.
#include <cuda_runtime_api.h>

#include <cstdio>

int main() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  std::printf("%d cards, %s\n", count, cudaGetErrorString(error));
  return error == cudaSuccess ? 1 : 0;
}
