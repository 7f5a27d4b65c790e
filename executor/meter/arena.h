// One block of memory that answers a program's requests with the offsets computed for them (program/arena). LibTorch's
// allocators ask it first; what it has no place for they answer themselves, and that is counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "job/cluster/device.h"
#include "program/arena/script.h"
#include "program/files/run_record.h"

namespace vramfit {

class Arena {
 public:
  /// Memory of script.size bytes, aligned to its granule, and how it is given back.
  struct Memory {
    void* base = nullptr;
    std::function<void(void*)> release;
    std::function<void(void*, Bytes)> freed = {};  // told of each range that is given back; tests spoil it
  };

  Arena(arena::Script script, Memory memory) : script_(std::move(script)), memory_(std::move(memory)) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  Arena(Arena&&) = delete;
  Arena& operator=(Arena&&) = delete;

  /// The requests of section number `section` come next.
  void begin_section(std::size_t section);
  /// The next `count` of the script are those of one instruction, which makes them `times` times over; its place in the
  /// script is found again with the next instruction, whatever it asks for.
  void begin_instruction(std::size_t count, std::int64_t times);

  /// The address for a request of this thread. Null if it is not the next one of its instruction, or if the range is
  /// still taken (something was freed later than the program says): then it is counted as off the script.
  void* take(Bytes bytes);
  /// False: not an address that `take` gave. Any thread may free.
  bool give_back(void* address);

  bool contains(const void* address) const;
  /// What has happened so far; the peak is of requests, each rounded up to `granule` bytes, since the last peak taken.
  MeasuredArena report() const;
  Bytes take_peak();
  Bytes live() const;
  bool is_empty() const;

 private:
  bool is_free(std::int64_t from, std::int64_t to) const;
  void note_off_script(Bytes bytes, const char* why);

  const arena::Script script_;
  const Memory memory_;
  // Of the thread that runs the program.
  std::size_t section_ = 0, first_ = 0, count_ = 0, next_ = 0;
  std::int64_t times_ = 0;

  mutable std::mutex mutex_;
  std::map<std::int64_t, std::int64_t> tenants_;  // offset and bytes
  Bytes live_, peak_;
  MeasuredArena report_;
};

/// Arenas by the addresses that they gave. Thread-safe.
class Arenas {
 public:
  /// When its owner lets go of it, it stays until all memory that it gave is freed.
  static std::shared_ptr<Arena> add(arena::Script script, Arena::Memory memory);
  /// The address for a request of this thread from the arena that it runs a program with; null: none, or off script.
  static void* take(Bytes bytes);
  /// Whether it lies in the block of one.
  static bool contains(const void* address);
  /// False: of no arena.
  static bool give_back(void* address);
};

/// While it lives, requests of this thread go to the arena first. None if it is null.
class ArenaScope {
 public:
  explicit ArenaScope(Arena* arena);
  ~ArenaScope();
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;
  ArenaScope(ArenaScope&&) = delete;
  ArenaScope& operator=(ArenaScope&&) = delete;

 private:
  Arena* saved_;
};

/// The arena of a rank's program, if `--allocator` asks for one; otherwise null. Throws OutOfMemory where the machine,
/// or --budget, has no room for its block.
std::shared_ptr<Arena> open_arena(const std::string& allocator, const program::Program& lowered, DeviceKind device);

}  // namespace vramfit
