#include "phantom/core/shared_cards.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#include "phantom/core/session.h"
#include "phantom/core/visible_cards.h"

namespace vramfit::phantom {

namespace {

constexpr int kProcesses = 64;  // on one card at once

struct Slot {
  std::atomic<std::int32_t> pid;
  std::atomic<std::int64_t> used_bytes;
};
using CardSlots = std::array<Slot, kProcesses>;

// A file of zeros is an empty table, so whoever comes first only has to set its size.
struct Table {
  int file = -1;
  CardSlots* cards = nullptr;
};

// Of the node whose GPUs this process has: vramfit sets it where one machine plays several.
std::size_t node() {
  static const std::size_t kNode = [] {
    const char* text = std::getenv("VRAMFIT_PHANTOM_NODE");
    const long number = text == nullptr ? 0 : std::strtol(text, nullptr, 10);
    return number > 0 && number < session().nodes ? static_cast<std::size_t>(number) : 0;
  }();
  return kNode;
}

std::size_t index_of(int place) {
  return node() * static_cast<std::size_t>(session().cards_per_node) + static_cast<std::size_t>(place);
}

const Table& table() {
  static const Table kTable = [] {
    Table made;
    const std::string path = session().folder + "/cards.shared";
    const std::size_t bytes = sizeof(CardSlots) * static_cast<std::size_t>(session().world());
    made.file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void* address = MAP_FAILED;
    if (made.file >= 0 && ftruncate(made.file, static_cast<off_t>(bytes)) == 0) {
      address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made.file, 0);
    }
    if (address == MAP_FAILED) {
      std::fprintf(stderr, "vramfit phantom: cannot map %s\n", path.c_str());
      std::_Exit(1);
    }
    made.cards = static_cast<CardSlots*>(address);
    return made;
  }();
  return kTable;
}

bool is_alive(std::int32_t pid) { return pid != 0 && (kill(pid, 0) == 0 || errno == EPERM); }

// Between threads and between processes.
class Lock {
 public:
  Lock() : threads_(mutex()) { flock(table().file, LOCK_EX); }
  ~Lock() { flock(table().file, LOCK_UN); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  static std::mutex& mutex() {
    static std::mutex* const kMutex = new std::mutex;  // NOLINT(cppcoreguidelines-owning-memory): outlives destructors
    return *kMutex;
  }
  std::lock_guard<std::mutex> threads_;
};

CardSlots& slots_of(int card) { return table().cards[index_of(place_of_card(card))]; }

std::int64_t sum_of(CardSlots& slots) {
  std::int64_t sum = 0;
  for (Slot& slot : slots) {
    if (slot.pid != 0 && !is_alive(slot.pid)) {
      slot.used_bytes = 0;
      slot.pid = 0;
    }
    sum += slot.used_bytes;
  }
  return sum;
}

Slot* own_slot(CardSlots& slots) {
  Slot* empty = nullptr;
  for (Slot& slot : slots) {
    if (slot.pid == getpid()) return &slot;
    if (slot.pid == 0 && empty == nullptr) empty = &slot;
  }
  if (empty != nullptr) empty->pid = getpid();
  return empty;
}

}  // namespace

bool take_from_card(int card, std::int64_t bytes) {
  const Lock lock;
  CardSlots& slots = slots_of(card);
  if (bytes > 0 && sum_of(slots) + bytes > session().card.memory_bytes) return false;
  Slot* slot = own_slot(slots);
  if (slot == nullptr) return false;
  slot->used_bytes += bytes;
  return true;
}

std::int64_t used_of_card(int card) {
  const Lock lock;
  return sum_of(slots_of(card));
}

std::vector<std::pair<std::int32_t, std::int64_t>> users_of_place(int place) {
  const Lock lock;
  std::vector<std::pair<std::int32_t, std::int64_t>> users;
  for (const Slot& slot : table().cards[index_of(place)]) {
    if (is_alive(slot.pid)) users.emplace_back(slot.pid.load(), slot.used_bytes.load());
  }
  return users;
}

std::int64_t used_by_process(int card) {
  const Lock lock;
  for (const Slot& slot : slots_of(card)) {
    if (slot.pid == getpid()) return slot.used_bytes;
  }
  return 0;
}

}  // namespace vramfit::phantom
