// Which element types cards, CPUs and communication libraries support. Checked before anything is trained.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "job/cluster/cluster.h"
#include "job/job.h"

namespace vramfit {

enum class Support { native, emulated, none };

/// The PyTorch release that the executor is built with, and the compute capabilities (90 for 9.0) that its kernels are
/// compiled for. Source: torch._C._cuda_getArchFlags() of the wheel, which contains no PTX; a test compares.
inline constexpr std::string_view kTorchVersion = "2.11.0";
inline constexpr std::array kTorchArchitectures{75, 80, 86, 90, 100, 120};

/// "9.0" for 90.
std::string capability_text(int compute_capability);

/// Whether that release has kernels for a card. Code for X.Y runs on X.Z if Z >= Y, and on no other generation (CUDA
/// programming guide, binary compatibility).
bool torch_has_kernels(int compute_capability);

/// Matrix products with operands of `dtype` on a CUDA card, by compute capability. fp16: tensor cores from 7.0 (CUDA
/// programming guide, arithmetic of tensor cores); older cards compute it in fp32. bf16: from 8.0; below that, PyTorch
/// 2.11 refuses batched products and has no attention kernels. FP8 (e4m3, e5m2): from 8.9.
Support card_support(Dtype dtype, int compute_capability);

/// The same for a CPU with these `flags` (as in /proc/cpuinfo). MKL and oneDNN accept 16-bit types on every CPU and
/// convert them if the hardware lacks support.
Support cpu_support(Dtype dtype, const std::vector<std::string>& flags);

/// "native", "emulated in fp32", "none".
std::string_view support_name(Support support);

/// The first NCCL version that sums bf16.
inline constexpr int kNcclOfBf16 = 21000;  // 2.10, as ncclGetVersion counts

/// Whether ranks of the engine add up numbers of `dtype`: shards those of --reduce-dtype, and replicas gradients as
/// they are kept.
bool sums_between_ranks(const Job& job, Dtype dtype);

/// The precision of a job that names none: fp32 on CPU ranks, bf16-mixed on cards that compute bf16, fp16-mixed on
/// older ones.
std::string_view default_precision(const Cluster& cluster);

/// Throws InputError if the card cannot compute in the job's precision, naming what to use instead, or if the
/// executor's PyTorch has no kernels for the card. For PyTorch runtimes only FP8 is checked: a script brings its own
/// PyTorch.
void require_card_support(const Job& job, const Cluster& cluster);

/// What users should know: emulation, and what would run faster.
std::vector<std::string> precision_notes(const Job& job, const Cluster& cluster);

}  // namespace vramfit
