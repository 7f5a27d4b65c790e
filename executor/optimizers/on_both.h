// For functions that own CUDA kernels (executor/kernels) share with CPU ranks: one formula for both.
#pragma once

#ifdef __CUDACC__
#define VRAMFIT_ON_BOTH __host__ __device__
#else
#define VRAMFIT_ON_BOTH
#endif
