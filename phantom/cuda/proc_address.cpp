// Functions by name and version: a name stands for several forms, of which the newest that the caller knows is meant.
#include <dlfcn.h>

#include <string>
#include <string_view>

#include "phantom/core/record.h"
#include "phantom/core/trace.h"
#include "phantom/cuda/driver.h"

namespace phantom = vramfit::phantom;

namespace {

struct Form {
  std::string_view name;
  int version;  // of CUDA, as 1000 * major + 10 * minor
  const char* symbol;
};

constexpr Form kForms[] = {
#include "driver_forms.inc"
};

// The handle of this library, however it was opened.
void* own_handle() {
  static void* const kHandle = [] {
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(&own_handle), &info);
    return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }();
  return kHandle;
}

enum class Found { yes, no, too_new };

const Form* newest_form(std::string_view name, int version, bool* is_known) {
  const Form* best = nullptr;
  for (const Form& form : kForms) {
    if (form.name != name) continue;
    *is_known = true;
    if (form.version <= version && (best == nullptr || form.version > best->version)) best = &form;
  }
  return best;
}

void* symbol_address(const std::string& symbol, bool per_thread) {
  for (const char* suffix : {"_ptsz", "_ptds"}) {
    void* const found = per_thread ? dlsym(own_handle(), (symbol + suffix).c_str()) : nullptr;
    if (found != nullptr) return found;
  }
  return dlsym(own_handle(), symbol.c_str());
}

// A symbol that has one form only can be asked for by its full name, as cuMemAlloc_v2 and cuGetExportTable.
Found find(std::string_view name, int version, bool per_thread, void** function) {
  bool is_known = false;
  const Form* const form = newest_form(name, version, &is_known);
  *function = nullptr;
  if (form == nullptr && is_known) return Found::too_new;
  *function = symbol_address(form == nullptr ? std::string(name) : form->symbol, per_thread);
  return *function == nullptr ? Found::no : Found::yes;
}

}  // namespace

PHANTOM_EXPORT CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags,
                                         CUdriverProcAddressQueryResult* status) {
  if (symbol == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  const Found found = find(symbol, version, per_thread, function);
  if (status != nullptr) {
    *status = found == Found::yes       ? CU_GET_PROC_ADDRESS_SUCCESS
              : found == Found::too_new ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                        : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  if (found != Found::yes && phantom::tracing()) phantom::trace_name("not_found", symbol);
  // Asked for its status, the function succeeds also when there is nothing by that name.
  return found == Found::yes || status != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

#undef cuGetProcAddress
PHANTOM_EXPORT CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}

// Tables of undocumented functions, which a CUDA runtime linked into the program itself starts with. Without them that
// runtime refuses to run, so the program does not believe in a card it was never given. NVRTC asks too, and does
// without.
PHANTOM_EXPORT CUresult cuGetExportTable(const void** table, const CUuuid* /*id*/) {
  if (table == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *table = nullptr;
  Dl_info caller{};
  dladdr(__builtin_return_address(0), &caller);
  const std::string path = caller.dli_fname == nullptr ? "the program" : caller.dli_fname;
  const std::string name = path.substr(path.rfind('/') + 1);
  if (name.starts_with("libcudart.so.")) {
    phantom::add_escape(name + " is a CUDA version that this build of vramfit has no stand-ins for");
  } else if (!name.starts_with("libnvrtc")) {
    phantom::add_escape(name + " carries its own CUDA runtime (static cudart)");
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

// Profilers see nothing, since nothing runs.
PHANTOM_EXPORT CUresult cuProfilerStart() { return CUDA_SUCCESS; }
PHANTOM_EXPORT CUresult cuProfilerStop() { return CUDA_SUCCESS; }
