// Making, asking and ending communicators.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "phantom/core/context.h"
#include "phantom/core/pending.h"
#include "phantom/core/session.h"
#include "phantom/nccl/api.h"
#include "phantom/nccl/split.h"

namespace vramfit::phantom {

namespace {

constexpr unsigned kConfigMagic = 0xcafebeef;  // of NCCL_CONFIG_INITIALIZER

bool is_config(const ncclConfig_t* config) { return config == nullptr || config->magic == kConfigMagic; }

bool shares(const ncclConfig_t* config) { return config != nullptr && config->splitShare == 1; }

ncclResult_t bad_config(const char* function) {
  return refuse(ncclInvalidArgument,
                fmt::format("{}: config was not initialized with NCCL_CONFIG_INITIALIZER", function));
}

ncclResult_t join(ncclComm_t* made, int ranks, std::span<const ncclUniqueId> ids, int rank) {
  if (made == nullptr || ids.empty()) return refuse(ncclInvalidArgument, "ncclCommInitRank: null pointer");
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    return refuse(ncclInvalidArgument, fmt::format("ncclCommInitRank: invalid rank requested : {}/{}", rank, ranks));
  }
  if (ensure_context() != Status::success) return refuse(ncclUnhandledCudaError, "ncclCommInitRank: no card");
  const std::span bytes(ids.front().internal, ids.size() * sizeof(ncclUniqueId));
  return make_communicator({.id = digest(bytes), .rank = rank, .ranks = ranks, .card = current_card()},
                           others_of_session(), false, made);
}

ncclResult_t end(ncclComm_t comm, const char* function) {
  if (comm == nullptr) return ncclSuccess;
  if (communicator_of(comm) == nullptr) return no_communicator(function);
  const Status status = settle_owner(static_cast<const Communicator*>(comm));
  drop_communicator(comm);
  return status == Status::success ? ncclSuccess : ncclRemoteError;
}

template <typename Get>
ncclResult_t ask(const ncclComm_t comm, int* answer, const char* function, const Get& get) {
  const ncclComm* const communicator = communicator_of(comm);
  if (communicator == nullptr) return no_communicator(function);
  if (answer == nullptr) return refuse(ncclInvalidArgument, fmt::format("{}: null pointer", function));
  *answer = get(*communicator);
  return ncclSuccess;
}

}  // namespace

}  // namespace vramfit::phantom

using vramfit::phantom::ask;
using vramfit::phantom::bad_config;
using vramfit::phantom::communicator_of;
using vramfit::phantom::is_config;
using vramfit::phantom::make_communicator;
using vramfit::phantom::no_communicator;
using vramfit::phantom::refuse;
using vramfit::phantom::shares;

PHANTOM_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId) {
  if (uniqueId == nullptr) return refuse(ncclInvalidArgument, "ncclGetUniqueId: null pointer");
  *uniqueId = {};
  std::ifstream random("/dev/urandom", std::ios::binary);
  if (!random.read(uniqueId->internal, NCCL_UNIQUE_ID_BYTES)) {
    return refuse(ncclSystemError, "ncclGetUniqueId: cannot read /dev/urandom");
  }
  return ncclSuccess;
}

PHANTOM_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                                   ncclConfig_t* config) {
  if (!is_config(config)) return bad_config("ncclCommInitRankConfig");
  return vramfit::phantom::join(comm, nranks, {&commId, 1}, rank);
}

PHANTOM_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank) {
  return vramfit::phantom::join(comm, nranks, {&commId, 1}, rank);
}

PHANTOM_EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId,
                                                     ncclUniqueId* commIds, ncclConfig_t* config) {
  if (!is_config(config)) return bad_config("ncclCommInitRankScalable");
  if (commIds == nullptr || nId < 1 || nId > nranks) {
    return refuse(ncclInvalidArgument, fmt::format("ncclCommInitRankScalable: {} ids for {} ranks", nId, nranks));
  }
  return vramfit::phantom::join(newcomm, nranks, {commIds, static_cast<std::size_t>(nId)}, myrank);
}

PHANTOM_EXPORT ncclResult_t ncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist) {
  using namespace vramfit::phantom;  // NOLINT(google-build-using-namespace): within one function
  if (comm == nullptr || ndev < 0) return refuse(ncclInvalidArgument, "ncclCommInitAll: invalid argument");
  ncclUniqueId id;
  if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess) return result;
  Context* const before = current_context();
  ncclResult_t result = ncclSuccess;
  for (int rank = 0; rank < ndev && result == ncclSuccess; ++rank) {
    const int card = devlist == nullptr ? rank : devlist[rank];
    if (use_card(card) != Status::success) {
      result = refuse(ncclInvalidArgument, fmt::format("ncclCommInitAll: invalid device {}", card));
    } else {
      result = make_communicator({.id = digest(id.internal), .rank = rank, .ranks = ndev, .card = card},
                                 Others::processes, false, comm + rank);
    }
  }
  set_current_context(before);
  return result;
}

PHANTOM_EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                                          ncclConfig_t* config) {
  using namespace vramfit::phantom;  // NOLINT(google-build-using-namespace): within one function
  ncclComm* const parent = communicator_of(comm);
  if (parent == nullptr) return no_communicator("ncclCommSplit");
  if (newcomm == nullptr) return refuse(ncclInvalidArgument, "ncclCommSplit: null pointer");
  if (color < NCCL_SPLIT_NOCOLOR) return refuse(ncclInvalidArgument, fmt::format("ncclCommSplit: color {}", color));
  if (!is_config(config)) return bad_config("ncclCommSplit");
  *newcomm = nullptr;
  const bool shared = shares(config);
  try {
    const std::uint64_t number = announce_split(*parent, color, key);
    return issue([=] {
      try {
        const auto place = split_place(*parent, number, color, key);
        return place ? make_communicator(*place, parent->others(), shared, newcomm) : ncclSuccess;
      } catch (const std::exception& error) {
        parent->fail(ncclRemoteError);
        return refuse(ncclRemoteError, fmt::format("ncclCommSplit: {}", error.what()));
      }
    });
  } catch (const std::exception& error) {
    return refuse(ncclSystemError, fmt::format("ncclCommSplit: {}", error.what()));
  }
}

// Not of NCCL: phantom/python/vramfit_rehearsal/splits.py calls it.
PHANTOM_EXPORT void phantomSplitRanks(const int* ranks, int count) {
  vramfit::phantom::tell_split_ranks(std::vector<int>(ranks, ranks + std::max(count, 0)));
}

PHANTOM_EXPORT ncclResult_t ncclCommShrink(ncclComm_t comm, int* excludeRanksList, int excludeRanksCount,
                                           ncclComm_t* newcomm, ncclConfig_t* config, int) {
  ncclComm* const parent = communicator_of(comm);
  if (parent == nullptr) return no_communicator("ncclCommShrink");
  if (!is_config(config)) return bad_config("ncclCommShrink");
  if (newcomm == nullptr || excludeRanksList == nullptr || excludeRanksCount < 1) {
    return refuse(ncclInvalidArgument, "ncclCommShrink: no ranks to exclude");
  }
  *newcomm = nullptr;
  const auto place =
      vramfit::phantom::shrunk_place(*parent, {excludeRanksList, static_cast<std::size_t>(excludeRanksCount)});
  if (!place) return refuse(ncclInvalidArgument, "ncclCommShrink: excluded ranks must be others of this communicator");
  return make_communicator(*place, parent->others(), config != nullptr && config->shrinkShare == 1, newcomm);
}

PHANTOM_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  using namespace vramfit::phantom;  // NOLINT(google-build-using-namespace): within one function
  if (communicator_of(comm) == nullptr) return no_communicator("ncclCommFinalize");
  return settle_owner(static_cast<const Communicator*>(comm)) == Status::success ? ncclSuccess : ncclRemoteError;
}

PHANTOM_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) { return vramfit::phantom::end(comm, "ncclCommDestroy"); }

PHANTOM_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (ncclComm* const communicator = communicator_of(comm)) communicator->abort();
  vramfit::phantom::end(comm, "ncclCommAbort");  // what is cut off is no failure of the call
  return ncclSuccess;
}

PHANTOM_EXPORT ncclResult_t ncclCommRevoke(ncclComm_t comm, int) {
  ncclComm* const communicator = communicator_of(comm);
  if (communicator == nullptr) return no_communicator("ncclCommRevoke");
  communicator->abort();
  return ncclSuccess;
}

PHANTOM_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError) {
  const ncclComm* const communicator = communicator_of(comm);
  if (communicator == nullptr) return no_communicator("ncclCommGetAsyncError");
  if (asyncError == nullptr) return refuse(ncclInvalidArgument, "ncclCommGetAsyncError: null pointer");
  *asyncError = communicator->error();
  return ncclSuccess;
}

PHANTOM_EXPORT ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  return ask(comm, count, "ncclCommCount", [](const ncclComm& c) { return c.ranks(); });
}

PHANTOM_EXPORT ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  return ask(comm, device, "ncclCommCuDevice", [](const ncclComm& c) { return c.card(); });
}

PHANTOM_EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  return ask(comm, rank, "ncclCommUserRank", [](const ncclComm& c) { return c.rank(); });
}
