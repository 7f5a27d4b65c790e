#include <fmt/format.h>

#include <map>
#include <memory>
#include <mutex>

#include "phantom/core/context.h"
#include "phantom/core/session.h"
#include "phantom/core/trace.h"
#include "phantom/nccl/api.h"

namespace vramfit::phantom {

namespace {

struct Registry {
  std::mutex mutex;
  std::map<ncclComm_t, std::unique_ptr<ncclComm>> communicators;
};

// Never destroyed: watchdog threads ask for errors until the very end.
Registry& registry() {
  static auto* const kRegistry = new Registry;  // NOLINT(cppcoreguidelines-owning-memory)
  return *kRegistry;
}

}  // namespace

ncclComm* communicator_of(ncclComm_t handle) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto found = r.communicators.find(handle);
  return found == r.communicators.end() ? nullptr : found->second.get();
}

Others others_of_session() { return session().played_rank ? Others::ghosts : Others::processes; }

ncclResult_t make_communicator(Communicator::Place place, Others others, bool shares, ncclComm_t* made) {
  const std::int64_t bytes = shares ? 0 : session().card.nccl_bytes;
  trace("communicator", place.card, nullptr, bytes);
  try {
    auto communicator = std::make_unique<ncclComm>(std::move(place), others, bytes);
    if (communicator->out_of_memory()) {
      return refuse(ncclUnhandledCudaError, fmt::format("Failed to CUDA calloc {} bytes", bytes));
    }
    *made = communicator.get();
    Registry& r = registry();
    const std::lock_guard lock(r.mutex);
    r.communicators.emplace(*made, std::move(communicator));
    return ncclSuccess;
  } catch (const std::exception& error) {
    return refuse(ncclSystemError, error.what());
  }
}

void drop_communicator(ncclComm_t handle) {
  std::unique_ptr<ncclComm> dropped;
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto found = r.communicators.find(handle);
  if (found == r.communicators.end()) return;
  dropped = std::move(found->second);
  r.communicators.erase(found);
}

ncclResult_t no_communicator(const char* function) {
  return refuse(ncclInvalidArgument, fmt::format("{}: comm is not a communicator of this process", function));
}

}  // namespace vramfit::phantom
