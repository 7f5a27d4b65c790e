#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#include "phantom/core/architecture.h"
#include "phantom/core/attributes.h"
#include "phantom/core/identity.h"
#include "phantom/core/memory.h"
#include "phantom/core/session.h"
#include "phantom/core/visible_cards.h"
#include "phantom/cudart/runtime.h"

namespace phantom = vramfit::phantom;
using phantom::result;
using phantom::Status;

namespace {

bool is_card(int card) { return card >= 0 && card < phantom::card_count(); }

constexpr int kMaxGridX = 2147483647, kMaxGridYZ = 65535;
constexpr int kConstantBytes = 64 << 10;
constexpr int kTextureAlignment = 512, kTexturePitchAlignment = 32;

void set_identity(cudaDeviceProp* p, int card) {
  const phantom::CardFacts& facts = phantom::session().card;
  std::snprintf(p->name, sizeof p->name, "%s", facts.name.c_str());
  const int place = phantom::place_of_card(card);
  const auto uuid = phantom::uuid_of_place(place);
  std::memcpy(p->uuid.bytes, uuid.data(), uuid.size());
  p->pciBusID = place + 1;
}

void set_limits(cudaDeviceProp* p) {
  const phantom::CardFacts& facts = phantom::session().card;
  const phantom::Architecture& a = phantom::architecture_of(facts.major, facts.minor);
  p->totalGlobalMem = static_cast<std::size_t>(facts.memory_bytes);
  p->sharedMemPerBlock = phantom::kSharedMemoryPerBlock;
  p->sharedMemPerBlockOptin = static_cast<std::size_t>(a.shared_memory_per_block_optin);
  p->sharedMemPerMultiprocessor = static_cast<std::size_t>(a.shared_memory_per_sm);
  p->reservedSharedMemPerBlock = facts.major >= 8 ? 1024 : 0;
  p->regsPerBlock = p->regsPerMultiprocessor = phantom::kRegistersPerSm;
  p->warpSize = phantom::kWarpSize;
  p->maxThreadsPerBlock = phantom::kMaxThreadsPerBlock;
  p->maxThreadsPerMultiProcessor = a.max_threads_per_sm;
  p->maxBlocksPerMultiProcessor = a.max_blocks_per_sm;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = kMaxGridX;
  p->maxGridSize[1] = p->maxGridSize[2] = kMaxGridYZ;
  p->memPitch = static_cast<std::size_t>(kMaxGridX);
  p->totalConstMem = kConstantBytes;
  p->textureAlignment = kTextureAlignment;
  p->texturePitchAlignment = kTexturePitchAlignment;
  p->major = facts.major;
  p->minor = facts.minor;
  p->multiProcessorCount = facts.sm_count;
  p->l2CacheSize = static_cast<int>(phantom::l2_bytes(facts.catalog_name, a));
  p->memoryBusWidth = a.memory_bus_bits;
}

void set_abilities(cudaDeviceProp* p) {
  p->asyncEngineCount = 3;
  p->canMapHostMemory = p->unifiedAddressing = p->managedMemory = p->concurrentKernels = 1;
  p->concurrentManagedAccess = p->pageableMemoryAccess = 1;
  p->cooperativeLaunch = p->streamPrioritiesSupported = p->globalL1CacheSupported = p->localL1CacheSupported = 1;
  p->hostNativeAtomicSupported = 0;
  p->memoryPoolsSupported = 1;
  p->ECCEnabled = phantom::session().card.memory_bytes > (std::int64_t{32} << 30) ? 1 : 0;
}

}  // namespace

PHANTOM_EXPORT cudaError_t cudaGetDeviceCount(int* count) {
  if (count == nullptr) return result(Status::invalid_value);
  *count = phantom::card_count();
  return *count == 0 ? result(Status::no_device) : cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaGetDevice(int* card) {
  if (card == nullptr) return result(Status::invalid_value);
  *card = phantom::current_card();
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaSetDevice(int card) {
  return is_card(card) ? result(phantom::use_card(card)) : result(Status::invalid_device);
}

PHANTOM_EXPORT cudaError_t cudaInitDevice(int card, unsigned int /*device_flags*/, unsigned int /*flags*/) {
  return is_card(card) ? result(phantom::open_card(card)) : result(Status::invalid_device);
}

PHANTOM_EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int card) {
  if (properties == nullptr) return result(Status::invalid_value);
  if (!is_card(card)) return result(Status::invalid_device);
  std::memset(properties, 0, sizeof *properties);
  set_identity(properties, card);
  set_limits(properties);
  set_abilities(properties);
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int card) {
  if (value == nullptr) return result(Status::invalid_value);
  if (!is_card(card)) return result(Status::invalid_device);
  const auto answer = phantom::device_attribute(static_cast<int>(attribute), card);
  if (!answer) return result(Status::invalid_value);
  *value = *answer;
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaDeviceSynchronize() {
  if (const Status status = phantom::ensure_context(); status != Status::success) return result(status);
  return result(phantom::synchronize_card(phantom::current_card()));
}

PHANTOM_EXPORT cudaError_t cudaDeviceReset() { return result(phantom::reset_primary(phantom::current_card())); }

PHANTOM_EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int card, int peer) {
  if (can == nullptr) return result(Status::invalid_value);
  if (!is_card(card) || !is_card(peer)) return result(Status::invalid_device);
  *can = card != peer ? 1 : 0;
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int /*flags*/) {
  return is_card(peer) ? cudaSuccess : result(Status::invalid_device);
}

PHANTOM_EXPORT cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return is_card(peer) ? cudaSuccess : result(Status::invalid_device);
}

PHANTOM_EXPORT cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int card) {
  if (text == nullptr || length <= 0) return result(Status::invalid_value);
  if (!is_card(card)) return result(Status::invalid_device);
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02X:00.0", phantom::place_of_card(card) + 1);
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return result(Status::invalid_value);
  *version = CUDART_VERSION;
  return cudaSuccess;
}

// A driver serves every runtime up to its own version; this one is as new as the runtime that asks.
PHANTOM_EXPORT cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }

PHANTOM_EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int version,
                                                            unsigned long long flags,
                                                            cudaDriverEntryPointQueryResult* answer) {
  using Lookup = int (*)(const char*, void**, int, unsigned long long, int*);
  if (symbol == nullptr || function == nullptr) return result(Status::invalid_value);
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  const auto lookup = reinterpret_cast<Lookup>(driver == nullptr ? nullptr : dlsym(driver, "cuGetProcAddress_v2"));
  *function = nullptr;
  int found = 0;
  if (lookup != nullptr) lookup(symbol, function, static_cast<int>(version), flags, &found);
  if (answer != nullptr) {
    *answer = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  }
  return cudaSuccess;
}

PHANTOM_EXPORT cudaError_t cudaProfilerStart() { return cudaSuccess; }
PHANTOM_EXPORT cudaError_t cudaProfilerStop() { return cudaSuccess; }
