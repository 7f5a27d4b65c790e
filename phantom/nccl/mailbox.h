// Where the processes of a communicator meet: a folder of small files. A message is a file that its sender makes whole
// and then links under the receiver's name, so sending never waits, and a receiver sees all of it or nothing.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace vramfit::phantom {

/// What a message says besides its data; both sides must mean the same call.
struct Header {
  std::int32_t call = 0;  // what was called, see operation.h
  std::int32_t type = 0, combine = 0;
  std::int32_t root = 0;   // or the peer
  std::int64_t count = 0;  // elements as given to the call
  std::int64_t data_bytes = 0;
  std::int32_t certain = 0;  // whether the sender's bytes were known
  std::int32_t reserved = 0;
};

struct Message {
  Header header;
  std::vector<std::byte> data;
};

/// Which of a communicator's orders a message belongs to: each has its own count from 0.
enum class Lane : char { collective = 'c', pair = 'p', split = 's' };

class Mailbox {
 public:
  /// Makes the folder if it is not there and leaves this process's name in it. Throws FaultError when that fails.
  Mailbox(std::filesystem::path folder, int rank, int ranks);

  /// One file, one link a receiver. Throws FaultError, as when the disk is full.
  void post(Lane lane, std::uint64_t number, const Header& header, std::span<const std::byte> data,
            std::span<const int> receivers);

  /// The message if it is there; each can be taken once.
  std::optional<Message> try_take(Lane lane, std::uint64_t number, int sender);

  /// Waits for it. Throws FaultError, naming the sender, when that process has ended without sending it, after
  /// `timeout`, or when `stop` becomes true.
  Message take(Lane lane, std::uint64_t number, int sender, std::chrono::milliseconds timeout,
               const std::atomic<bool>& stop);

 private:
  std::filesystem::path message_path(Lane lane, std::uint64_t number, int sender, int receiver) const;
  std::filesystem::path member_path(int rank) const;
  /// What is wrong with the sender, or nothing.
  std::string trouble_with(int sender) const;
  [[noreturn]] void give_up(int sender, std::chrono::milliseconds timeout) const;

  std::filesystem::path folder_;
  int rank_ = 0, ranks_ = 1;
};

}  // namespace vramfit::phantom
