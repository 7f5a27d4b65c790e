// What ncclComm_t stands for: a rank's place among others, who are processes of the session or ghosts.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "phantom/nccl/mailbox.h"
#include "phantom/nccl/reduce.h"

namespace vramfit::phantom {

/// Who a communicator's other ranks are.
enum class Others { none, processes, ghosts };

/// The factor of a pre-multiplied sum: a value, or the device address of one that is read when the call runs.
struct ScaleOperator {
  ncclDataType_t type = ncclFloat32;
  std::vector<std::byte> value;
  void* address = nullptr;
  bool destroyed = false;
};

class Communicator {
 public:
  struct Place {
    std::string id;  // the same for all ranks, and for no other communicator
    int rank = 0, ranks = 1, card = 0;
  };
  /// Joins without waiting for anybody, and takes `card_bytes` off the card. Throws FaultError when the meeting place
  /// cannot be made. Check `out_of_memory()` first of all.
  Communicator(Place place, Others others, std::int64_t card_bytes);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  Communicator(Communicator&&) = delete;
  Communicator& operator=(Communicator&&) = delete;

  const std::string& id() const { return place_.id; }
  int rank() const { return place_.rank; }
  int ranks() const { return place_.ranks; }
  int card() const { return place_.card; }
  Others others() const { return others_; }
  bool out_of_memory() const { return out_of_memory_; }
  std::int64_t card_bytes() const { return card_bytes_; }
  Mailbox* mailbox() { return mailbox_.get(); }

  /// The next number of a lane; for pairs, of the messages to or from `peer`.
  std::uint64_t next_collective() { return collectives_++; }
  std::uint64_t next_split() { return splits_++; }
  std::uint64_t next_sent(int peer);
  std::uint64_t next_received(int peer);

  int add_scale(ScaleOperator scale);
  std::optional<ScaleOperator> scale(int operation);  // none if it is not one of ours, or destroyed
  bool destroy_scale(int operation);

  void abort() { aborted_ = true; }
  const std::atomic<bool>& aborted() const { return aborted_; }
  /// The first failure stays, as ncclCommGetAsyncError tells it.
  void fail(ncclResult_t error);
  ncclResult_t error() const { return error_; }

 private:
  Place place_;
  Others others_ = Others::none;
  std::int64_t card_bytes_ = 0;
  bool out_of_memory_ = false;
  std::unique_ptr<Mailbox> mailbox_;
  std::atomic<std::uint64_t> collectives_{0}, splits_{0};
  std::mutex mutex_;
  std::map<int, std::uint64_t> sent_, received_;
  std::vector<ScaleOperator> scales_;
  std::atomic<bool> aborted_{false};
  std::atomic<ncclResult_t> error_{ncclSuccess};
};

}  // namespace vramfit::phantom
