// The driver's start, and what it says of the cards.
#include <cstring>

#include "phantom/core/architecture.h"
#include "phantom/core/attributes.h"
#include "phantom/core/identity.h"
#include "phantom/core/session.h"
#include "phantom/core/visible_cards.h"
#include "phantom/cuda/driver.h"

namespace phantom = vramfit::phantom;

namespace {

bool is_card(CUdevice device) { return device >= 0 && device < phantom::card_count(); }

void copy_text(char* out, int room, const std::string& text) {
  if (room <= 0) return;
  std::strncpy(out, text.c_str(), static_cast<std::size_t>(room));
  out[room - 1] = '\0';
}

}  // namespace

PHANTOM_EXPORT CUresult cuInit(unsigned int flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return phantom::card_count() > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

PHANTOM_EXPORT CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = phantom::kDriverVersion;
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_card(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuDeviceGetCount(int* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = phantom::card_count();
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuDeviceGetName(char* name, int room, CUdevice device) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_card(device)) return CUDA_ERROR_INVALID_DEVICE;
  copy_text(name, room, phantom::session().card.name);
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_card(device)) return CUDA_ERROR_INVALID_DEVICE;
  const auto bytes = phantom::uuid_of_place(phantom::place_of_card(device));
  std::memcpy(uuid->bytes, bytes.data(), bytes.size());
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device) {
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_card(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = static_cast<size_t>(phantom::session().card.memory_bytes);
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_card(device)) return CUDA_ERROR_INVALID_DEVICE;
  const auto answer = phantom::device_attribute(static_cast<int>(attribute), device);
  if (!answer) return CUDA_ERROR_INVALID_VALUE;
  *value = *answer;
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_card(device)) return CUDA_ERROR_INVALID_DEVICE;
  *major = phantom::session().card.major;
  *minor = phantom::session().card.minor;
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuDeviceGetProperties(CUdevprop* properties, CUdevice device) {
  if (properties == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_card(device)) return CUDA_ERROR_INVALID_DEVICE;
  const auto ask = [&](CUdevice_attribute attribute) {
    return phantom::device_attribute(static_cast<int>(attribute), device).value_or(0);
  };
  *properties = {};
  properties->maxThreadsPerBlock = phantom::kMaxThreadsPerBlock;
  for (int axis = 0; axis < 3; ++axis) {
    properties->maxThreadsDim[axis] = ask(static_cast<CUdevice_attribute>(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + axis));
    properties->maxGridSize[axis] = ask(static_cast<CUdevice_attribute>(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + axis));
  }
  properties->sharedMemPerBlock = phantom::kSharedMemoryPerBlock;
  properties->totalConstantMemory = ask(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
  properties->SIMDWidth = phantom::kWarpSize;
  properties->memPitch = ask(CU_DEVICE_ATTRIBUTE_MAX_PITCH);
  properties->regsPerBlock = phantom::kRegistersPerSm;
  properties->clockRate = ask(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  properties->textureAlign = ask(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuDeviceGetPCIBusId(char* text, int room, CUdevice device) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_card(device)) return CUDA_ERROR_INVALID_DEVICE;
  copy_text(text, room, phantom::pci_bus_id_of_place(phantom::place_of_card(device)));
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
  if (device == nullptr || text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (int card = 0; card < phantom::card_count(); ++card) {
    if (strcasecmp(phantom::pci_bus_id_of_place(phantom::place_of_card(card)).c_str(), text) != 0) continue;
    *device = card;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

// Cards of a node reach each other; how fast is nobody's question here.
PHANTOM_EXPORT CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_card(device) || !is_card(peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer ? 1 : 0;
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice device,
                                                CUdevice peer) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_card(device) || !is_card(peer) || device == peer) return CUDA_ERROR_INVALID_DEVICE;
  *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED ? 1 : 0;
  return CUDA_SUCCESS;
}

PHANTOM_EXPORT CUresult cuDeviceGetExecAffinitySupport(int* supported, CUexecAffinityType /*type*/, CUdevice device) {
  if (supported == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!is_card(device)) return CUDA_ERROR_INVALID_DEVICE;
  *supported = 0;
  return CUDA_SUCCESS;
}
