// The store of a rank played alone: nobody else is there to set a key.
#include <nccl.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "executor/sharding/backends_torch.h"

namespace vramfit {

namespace {

/// The one thing that a process group reads from another rank is NCCL's unique id, from the root of its communicator
/// (of each root, in large groups). A ghost's is zeros.
class GhostStore final : public c10d::HashStore {
 public:
  std::vector<std::uint8_t> get(const std::string& key) override {
    answer(key);
    return HashStore::get(key);
  }

  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    for (const std::string& key : keys) answer(key);
    HashStore::wait(keys, timeout);
  }

  std::vector<std::vector<std::uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) answer(key);
    return HashStore::multiGet(keys);
  }

 private:
  void answer(const std::string& key) {
    if (!check({key})) set(key, std::vector<std::uint8_t>(NCCL_UNIQUE_ID_BYTES));
  }
};

}  // namespace

c10::intrusive_ptr<c10d::Store> ghost_store() { return c10::make_intrusive<GhostStore>(); }

}  // namespace vramfit
