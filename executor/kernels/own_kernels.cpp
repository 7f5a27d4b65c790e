#include "executor/kernels/own_kernels.h"

#include <dlfcn.h>

#include <filesystem>

namespace vramfit {

namespace {

const cuda::Kernels* in_place_of_library = nullptr;

const cuda::Kernels* load() {
  // Kept until the process ends: its kernels are registered with the CUDA runtime.
  void* const library = dlopen(own_kernels_path().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  const auto find = reinterpret_cast<cuda::Find>(dlsym(library, "vramfit_kernels"));
  return find == nullptr ? nullptr : find(cuda::kInterface);
}

}  // namespace

std::string own_kernels_path() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return self.parent_path().parent_path() / "lib" / "libvramfit_kernels.so";
}

const cuda::Kernels* own_kernels() {
  static const cuda::Kernels* const kLibrary = load();
  return in_place_of_library != nullptr ? in_place_of_library : kLibrary;
}

void use_own_kernels(const cuda::Kernels* kernels) { in_place_of_library = kernels; }

}  // namespace vramfit
