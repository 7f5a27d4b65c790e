// The protocol of torch's TCPStore clients (torch/csrc/distributed/c10d/TCPStoreBackend.hpp of 2.11): a request is one
// byte followed by its arguments; lengths and numbers are 64 bits in the machine's byte order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vramfit {

enum class StoreRequest : std::uint8_t {
  validate,
  set,
  compare_set,
  get,
  add,
  check,
  wait,
  key_count,
  erase,
  append,
  multi_get,
  multi_set,
  cancel_wait,
  ping,
  queue_push,
  queue_pop,
  queue_length,
  list_keys,
  barrier
};

struct StoreMessage {
  StoreRequest request{};
  std::vector<std::string> keys;
  std::vector<std::string> values;  // besides the keys; for compare_set: expected, desired
  std::int64_t number = 0;          // what to add, a barrier's ranks, the magic number, a ping's nonce
};

/// The first message in `bytes` and its length `taken`; nothing while it is incomplete. Throws InputError for anything
/// that no client sends: unknown requests, keys over 8 KiB, values over 64 MiB, more than 131072 keys.
std::optional<StoreMessage> parse_store_message(std::string_view bytes, std::size_t& taken);

/// The first number that a client sends.
inline constexpr std::int64_t kStoreMagic = 0x3C85F7CE;

// Parts of replies.
void put_byte(std::string& out, std::uint8_t value);
void put_number(std::string& out, std::int64_t value);
void put_nonce(std::string& out, std::int64_t value);  // 32 bits
void put_text(std::string& out, std::string_view text);

}  // namespace vramfit
