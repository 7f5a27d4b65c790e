// Which element types cards, CPUs and communication libraries support. Checked before anything is trained.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "estimator/cluster.h"
#include "estimator/job.h"

namespace vramfit {

enum class Support { native, emulated, none };

/// Matrix products with operands of `dtype` on a CUDA card, by compute capability (90 for 9.0). Source: NVIDIA's CUDA
/// programming guide, arithmetic of tensor cores: fp16 from 7.0, bf16 from 8.0, FP8 (e4m3, e5m2) from 8.9. Older cards
/// emulate the 16-bit types (cuBLAS computes them in fp32); nothing emulates FP8.
Support card_support(Dtype dtype, int compute_capability);

/// The same for a CPU with these `flags` (as in /proc/cpuinfo). MKL and oneDNN accept 16-bit types on every CPU and
/// convert them if the hardware lacks support.
Support cpu_support(Dtype dtype, const std::vector<std::string>& flags);

/// "native", "emulated in fp32", "none".
std::string_view support_name(Support support);

/// The first NCCL version that sums bf16.
inline constexpr int kNcclOfBf16 = 21000;  // 2.10, as ncclGetVersion counts

/// Throws InputError naming what to use instead when the card can't compute in the job's precision.
void require_card_support(const Job& job, const Cluster& cluster);

/// What users should know: emulation, and what would run faster.
std::vector<std::string> precision_notes(const Job& job, const Cluster& cluster);

}  // namespace vramfit
