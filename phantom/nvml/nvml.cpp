// The management library: the same cards, all of the node, whatever CUDA_VISIBLE_DEVICES says.
#include <nvml.h>
#include <strings.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "phantom/core/architecture.h"
#include "phantom/core/identity.h"
#include "phantom/core/session.h"
#include "phantom/core/shared_cards.h"
#include "phantom/core/visibility.h"

namespace phantom = vramfit::phantom;

namespace {

constexpr char kDriverVersion[] = "580.65.06";  // the first of CUDA 13.0's release notes
constexpr int kCudaVersion = 13000;

int card_count() { return phantom::session().cards_per_node; }

// A handle is the card's place plus one, so that none is null.
// NOLINTNEXTLINE(performance-no-int-to-ptr)
nvmlDevice_t handle_of(int place) { return reinterpret_cast<nvmlDevice_t>(static_cast<std::intptr_t>(place) + 1); }
int place_of(nvmlDevice_t handle) { return static_cast<int>(reinterpret_cast<std::intptr_t>(handle)) - 1; }
bool is_card(nvmlDevice_t handle) { return place_of(handle) >= 0 && place_of(handle) < card_count(); }

nvmlReturn_t copy_text(char* out, unsigned int room, const std::string& text) {
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (room <= text.size()) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(out, text.c_str(), text.size() + 1);
  return NVML_SUCCESS;
}

template <class Wanted>
nvmlReturn_t find(nvmlDevice_t* device, Wanted is_it) {
  if (device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  for (int place = 0; place < card_count(); ++place) {
    if (!is_it(place)) continue;
    *device = handle_of(place);
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

std::int64_t used_bytes(nvmlDevice_t device) {
  std::int64_t sum = 0;
  for (const auto& [pid, bytes] : phantom::users_of_place(place_of(device))) sum += bytes;
  return sum;
}

}  // namespace

PHANTOM_EXPORT nvmlReturn_t nvmlInit() { return NVML_SUCCESS; }
PHANTOM_EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int /*flags*/) { return NVML_SUCCESS; }
PHANTOM_EXPORT nvmlReturn_t nvmlShutdown() { return NVML_SUCCESS; }

PHANTOM_EXPORT const char* nvmlErrorString(nvmlReturn_t error) {
  switch (static_cast<int>(error)) {
    case NVML_SUCCESS:
      return "Success";
    case NVML_ERROR_UNINITIALIZED:
      return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
      return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
      return "Not Supported";
    case NVML_ERROR_NO_PERMISSION:
      return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND:
      return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
      return "Insufficient Size";
    case NVML_ERROR_FUNCTION_NOT_FOUND:
      return "Function Not Found";
    default:
      return "Unknown Error";
  }
}

PHANTOM_EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char* text, unsigned int room) {
  return copy_text(text, room, kDriverVersion);
}
PHANTOM_EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char* text, unsigned int room) {
  return copy_text(text, room, std::string("13.") + kDriverVersion);
}
PHANTOM_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* version) {
  if (version == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *version = kCudaVersion;
  return NVML_SUCCESS;
}
PHANTOM_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* version) {
  return nvmlSystemGetCudaDriverVersion(version);
}

PHANTOM_EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int* count) {
  if (count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *count = static_cast<unsigned int>(card_count());
  return NVML_SUCCESS;
}

PHANTOM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t* device) {
  if (device == nullptr || index >= static_cast<unsigned int>(card_count())) return NVML_ERROR_INVALID_ARGUMENT;
  *device = handle_of(static_cast<int>(index));
  return NVML_SUCCESS;
}
PHANTOM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  if (uuid == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return find(device, [&](int place) { return phantom::uuid_text_of_place(place) == uuid; });
}
PHANTOM_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* id, nvmlDevice_t* device) {
  if (id == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  // The domain has four digits or eight.
  return find(device, [&](int place) {
    const std::string own = phantom::pci_bus_id_of_place(place);
    return strcasecmp(own.c_str(), id) == 0 || strcasecmp(("0000" + own).c_str(), id) == 0;
  });
}

PHANTOM_EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int* index) {
  if (!is_card(device) || index == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *index = static_cast<unsigned int>(place_of(device));
  return NVML_SUCCESS;
}
PHANTOM_EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int* number) {
  return nvmlDeviceGetIndex(device, number);
}
PHANTOM_EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* text, unsigned int room) {
  return is_card(device) ? copy_text(text, room, phantom::session().card.name) : NVML_ERROR_INVALID_ARGUMENT;
}
PHANTOM_EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* text, unsigned int room) {
  if (!is_card(device)) return NVML_ERROR_INVALID_ARGUMENT;
  return copy_text(text, room, phantom::uuid_text_of_place(place_of(device)));
}

PHANTOM_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t* info) {
  if (!is_card(device) || info == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *info = {};
  const std::string id = phantom::pci_bus_id_of_place(place_of(device));
  std::snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%s", id.c_str());
  std::snprintf(info->busId, sizeof info->busId, "0000%s", id.c_str());
  info->bus = static_cast<unsigned int>(place_of(device)) + 1;
  return NVML_SUCCESS;
}

PHANTOM_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  if (!is_card(device) || memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  memory->total = static_cast<unsigned long long>(phantom::session().card.memory_bytes);
  memory->used = static_cast<unsigned long long>(used_bytes(device));
  memory->free = memory->total - std::min(memory->total, memory->used);
  return NVML_SUCCESS;
}
// What a real card keeps for itself lies outside the total that torch reports, which is all that is known of a card
// here.
PHANTOM_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  nvmlMemory_t known{};
  if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const nvmlReturn_t error = nvmlDeviceGetMemoryInfo(device, &known);
  if (error != NVML_SUCCESS) return error;
  memory->total = known.total;
  memory->reserved = 0;
  memory->free = known.free;
  memory->used = known.used;
  return NVML_SUCCESS;
}

PHANTOM_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int* count,
                                                                 nvmlProcessInfo_t* processes) {
  if (!is_card(device) || count == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const auto users = phantom::users_of_place(place_of(device));
  const bool fits = users.size() <= *count;
  *count = static_cast<unsigned int>(users.size());
  if (!fits) return NVML_ERROR_INSUFFICIENT_SIZE;
  if (processes == nullptr && !users.empty()) return NVML_ERROR_INVALID_ARGUMENT;
  for (std::size_t i = 0; i < users.size(); ++i) {
    processes[i] = {};
    processes[i].pid = static_cast<unsigned int>(users[i].first);
    processes[i].usedGpuMemory = static_cast<unsigned long long>(users[i].second);
    processes[i].gpuInstanceId = processes[i].computeInstanceId = ~0U;  // no partitions
  }
  return NVML_SUCCESS;
}

PHANTOM_EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major, int* minor) {
  if (!is_card(device) || major == nullptr || minor == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *major = phantom::session().card.major;
  *minor = phantom::session().card.minor;
  return NVML_SUCCESS;
}

PHANTOM_EXPORT nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned int* bits) {
  if (!is_card(device) || bits == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const phantom::CardFacts& card = phantom::session().card;
  *bits = static_cast<unsigned int>(phantom::architecture_of(card.major, card.minor).memory_bus_bits);
  return NVML_SUCCESS;
}

// Nothing runs: a phantom is never busy.
PHANTOM_EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* rates) {
  if (!is_card(device) || rates == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *rates = {};
  return NVML_SUCCESS;
}
PHANTOM_EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
  if (!is_card(device) || mode == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *mode = NVML_FEATURE_ENABLED;
  return NVML_SUCCESS;
}
PHANTOM_EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t* mode) {
  if (!is_card(device) || mode == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *mode = NVML_COMPUTEMODE_DEFAULT;
  return NVML_SUCCESS;
}
PHANTOM_EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int* current, unsigned int* pending) {
  if (!is_card(device) || current == nullptr || pending == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  *current = *pending = NVML_DEVICE_MIG_DISABLE;
  return NVML_SUCCESS;
}

PHANTOM_EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t peer, nvmlGpuP2PCapsIndex_t caps,
                                                   nvmlGpuP2PStatus_t* status) {
  if (!is_card(device) || !is_card(peer) || status == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const bool can = caps == NVML_P2P_CAPS_INDEX_READ || caps == NVML_P2P_CAPS_INDEX_WRITE;
  *status = can ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
  return NVML_SUCCESS;
}
