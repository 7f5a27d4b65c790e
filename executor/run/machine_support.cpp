#include "executor/run/machine_support.h"

#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/cuda/nccl.h>
#include <torch/headeronly/version.h>

#include <fstream>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "executor/kernels/own_kernels.h"
#include "job/cluster/precision_support.h"

namespace vramfit {

namespace {

/// 22809 for 2.28.9, as NCCL itself counts.
int nccl_version() {
  const std::uint64_t packed = torch::cuda::nccl::version();  // major, minor and patch, of 32, 16 and 16 bits
  return static_cast<int>((packed >> 32U) * 10000 + ((packed >> 16U) & 0xFFFFU) * 100 + (packed & 0xFFFFU));
}

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::vector<std::string> cpu_flags() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    std::vector<std::string> flags;
    for (std::string word; words >> word;) flags.push_back(word);
    return flags;
  }
  return {};
}

std::string row(const std::string& name, Support bf16, Support fp16, Support fp8) {
  return fmt::format("{:<18}fp32 native, bf16 {}, fp16 {}, FP8 {}\n", name, support_name(bf16), support_name(fp16),
                     support_name(fp8));
}

/// Which kernels a job gets that asks for the engine's own.
std::string kernels_note() {
  if (own_kernels() != nullptr) return fmt::format("CUDA kernels of {}\n", own_kernels_path());
  throw InputError(
      fmt::format("--kernels vramfit: {} isn't there, or is another version's; scripts/setup --cuda installs nvcc, and "
                  "the next build compiles it; or use --kernels libtorch",
                  own_kernels_path()));
}

}  // namespace

std::string machine_support() {
  const int nccl = nccl_version();
  std::vector<std::string> compiled;
  for (const int capability : kTorchArchitectures) compiled.push_back(capability_text(capability));
  std::string text = fmt::format("{:<18}{}, kernels for compute capability {}\n", "LibTorch", TORCH_VERSION,
                                 fmt::join(compiled, ", "));
  text += fmt::format("{:<18}{}, sums fp32, fp16{}\n", "NCCL", version_text(nccl), nccl >= kNcclOfBf16 ? ", bf16" : "");
  text += fmt::format("{:<18}sums fp32, fp16, bf16\n", "Gloo");
  text += fmt::format("{:<18}{}\n", "Own CUDA kernels", own_kernels() != nullptr ? own_kernels_path() : "not built");
  const std::vector<std::string> flags = cpu_flags();
  text +=
      row("CPU", cpu_support(Dtype::bf16, flags), cpu_support(Dtype::f16, flags), cpu_support(Dtype::f8_e4m3, flags));
  for (int card = 0; card < c10::cuda::device_count(); ++card) {
    const cudaDeviceProp* facts = at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(card));
    const int capability = 10 * facts->major + facts->minor;
    text += row(fmt::format("GPU {}", card), card_support(Dtype::bf16, capability),
                card_support(Dtype::f16, capability), card_support(Dtype::f8_e4m3, capability));
    text += fmt::format("{:<18}{}, compute capability {}{}\n", "", facts->name, capability_text(capability),
                        torch_has_kernels(capability) ? "" : ", for which this LibTorch has no kernels");
  }
  return text;
}

std::string check_machine(const Job& job, const Cluster& planned, const Device& device) {
  Cluster actual = planned;
  actual.card.device = device;
  if (!device.name.empty()) actual.card.name = device.name;
  require_card_support(job, actual);
  if (device.kind == DeviceKind::cuda && sums_between_ranks(job, Dtype::bf16) && nccl_version() < kNcclOfBf16) {
    throw InputError(
        fmt::format("NCCL {} can't sum bf16 (2.10 and later can); use --reduce-dtype fp32 and --gradient-dtype fp32",
                    version_text(nccl_version())));
  }
  std::string notes;
  if (job.kernels == KernelSource::vramfit && device.kind == DeviceKind::cuda) notes += kernels_note();
  for (const std::string& note : precision_notes(job, actual)) notes += note + "\n";
  return notes;
}

}  // namespace vramfit
