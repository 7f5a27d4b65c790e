// Modules, libraries of modules, and the kernels in them. CUmodule and CUlibrary are the same here; so are CUfunction
// and CUkernel.
#include "phantom/core/modules.h"

#include <fstream>
#include <iterator>
#include <vector>

#include "phantom/core/memory.h"
#include "phantom/cuda/driver.h"

namespace phantom = vramfit::phantom;
using phantom::Kernel;
using phantom::Module;
using phantom::result;
using phantom::Status;

namespace {

template <class Handle>
Module* module_of(Handle handle) {
  auto* const module = reinterpret_cast<Module*>(handle);
  return phantom::is_module(module) ? module : nullptr;
}

template <class Handle>
CUresult load(Handle* out, const void* image) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Module* module = nullptr;
  const Status status = phantom::load_module(image, &module);
  *out = reinterpret_cast<Handle>(module);
  return result(status);
}

template <class Handle>
CUresult load_file(Handle* out, const char* path) {
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::ifstream file(path, std::ios::binary);
  if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
  std::vector<char> image{std::istreambuf_iterator<char>(file), {}};
  constexpr std::size_t kLargestHeader = 64;  // what is looked at to tell what the image is
  image.resize(std::max(image.size() + 1, kLargestHeader), '\0');
  return load(out, image.data());
}

template <class KernelHandle, class ModuleHandle>
CUresult find_kernel(KernelHandle* out, ModuleHandle handle, const char* name) {
  Module* const module = module_of(handle);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (out == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Kernel* kernel = nullptr;
  const Status status = phantom::module_kernel(module, name, &kernel);
  *out = reinterpret_cast<KernelHandle>(kernel);
  return result(status);
}

template <class ModuleHandle>
CUresult find_variable(CUdeviceptr* address, size_t* bytes, ModuleHandle handle, const char* name) {
  Module* const module = module_of(handle);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  void* place = nullptr;
  std::int64_t size = 0;
  const Status status = phantom::module_variable(module, name, phantom::current_card(), &place, &size);
  if (address != nullptr) *address = phantom::number(place);
  if (bytes != nullptr) *bytes = static_cast<size_t>(size);
  return result(status);
}

template <class KernelHandle, class ModuleHandle>
CUresult list_kernels(KernelHandle* out, unsigned int room, ModuleHandle handle) {
  Module* const module = module_of(handle);
  if (module == nullptr || out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto kernels = phantom::module_kernels(module);
  for (unsigned int i = 0; i < room && i < kernels.size(); ++i) out[i] = reinterpret_cast<KernelHandle>(kernels[i]);
  return CUDA_SUCCESS;
}

template <class ModuleHandle>
CUresult count_kernels(unsigned int* count, ModuleHandle handle) {
  Module* const module = module_of(handle);
  if (module == nullptr || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<unsigned int>(phantom::module_kernels(module).size());
  return CUDA_SUCCESS;
}

template <class KernelHandle>
CUresult name_of(const char** name, KernelHandle handle) {
  const Kernel* const kernel = phantom::kernel_of(reinterpret_cast<const void*>(handle));
  if (kernel == nullptr || name == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *name = kernel->name.data();  // of a std::string or a literal: a zero follows
  return CUDA_SUCCESS;
}

}  // namespace

PHANTOM_EXPORT CUresult cuModuleLoad(CUmodule* module, const char* path) { return load_file(module, path); }
PHANTOM_EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) { return load(module, image); }
PHANTOM_EXPORT CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int /*count*/,
                                           CUjit_option* /*options*/, void** /*values*/) {
  return load(module, image);
}
PHANTOM_EXPORT CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) { return load(module, image); }
PHANTOM_EXPORT CUresult cuModuleUnload(CUmodule module) {
  return result(phantom::unload_module(reinterpret_cast<Module*>(module)));
}
PHANTOM_EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return find_kernel(function, module, name);
}
PHANTOM_EXPORT CUresult cuModuleGetFunctionCount(unsigned int* count, CUmodule module) {
  return count_kernels(count, module);
}
PHANTOM_EXPORT CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned int room, CUmodule module) {
  return list_kernels(functions, room, module);
}
PHANTOM_EXPORT CUresult cuModuleGetGlobal(CUdeviceptr* address, size_t* bytes, CUmodule module, const char* name) {
  return find_variable(address, bytes, module, name);
}
PHANTOM_EXPORT CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *mode = CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option* /*jit_options*/,
                                          void** /*jit_values*/, unsigned int /*jit_count*/,
                                          CUlibraryOption* /*options*/, void** /*values*/, unsigned int /*count*/) {
  return load(library, image);
}
PHANTOM_EXPORT CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option* /*jit_options*/,
                                              void** /*jit_values*/, unsigned int /*jit_count*/,
                                              CUlibraryOption* /*options*/, void** /*values*/, unsigned int /*count*/) {
  return load_file(library, path);
}
PHANTOM_EXPORT CUresult cuLibraryUnload(CUlibrary library) {
  return result(phantom::unload_module(reinterpret_cast<Module*>(library)));
}
PHANTOM_EXPORT CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  return find_kernel(kernel, library, name);
}
PHANTOM_EXPORT CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary library) {
  return count_kernels(count, library);
}
PHANTOM_EXPORT CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int room, CUlibrary library) {
  return list_kernels(kernels, room, library);
}
PHANTOM_EXPORT CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  if (module == nullptr || module_of(library) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *module = reinterpret_cast<CUmodule>(library);
  return CUDA_SUCCESS;
}
PHANTOM_EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
  return find_variable(address, bytes, library, name);
}

PHANTOM_EXPORT CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  if (function == nullptr || phantom::kernel_of(kernel) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}
PHANTOM_EXPORT CUresult cuKernelGetLibrary(CUlibrary* library, CUkernel handle) {
  const Kernel* const kernel = phantom::kernel_of(handle);
  if (library == nullptr || kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *library = reinterpret_cast<CUlibrary>(kernel->module);
  return CUDA_SUCCESS;
}
PHANTOM_EXPORT CUresult cuFuncGetModule(CUmodule* module, CUfunction handle) {
  const Kernel* const kernel = phantom::kernel_of(handle);
  if (module == nullptr || kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *module = reinterpret_cast<CUmodule>(kernel->module);
  return CUDA_SUCCESS;
}
PHANTOM_EXPORT CUresult cuFuncGetName(const char** name, CUfunction function) { return name_of(name, function); }
PHANTOM_EXPORT CUresult cuKernelGetName(const char** name, CUkernel kernel) { return name_of(name, kernel); }
