// The flash-attn package's host code without its kernels: it makes all tensors, and launches nothing. For
// build.py, which compiles this beside the package's own headers.
#include <cutlass/numeric_types.h>
#include <flash.h>

namespace FLASH_NAMESPACE {

template <typename T, int width, bool causal>
void run_mha_fwd_(Flash_fwd_params&, cudaStream_t) {}

template <typename T, int width, bool causal>
void run_mha_fwd_splitkv_dispatch(Flash_fwd_params&, cudaStream_t) {}

template <typename T, int width, bool causal>
void run_mha_bwd_(Flash_bwd_params&, cudaStream_t) {}

}  // namespace FLASH_NAMESPACE

#include <flash_api.cpp>
