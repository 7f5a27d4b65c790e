#include "phantom/core/pending.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace vramfit::phantom {

namespace {

constexpr std::uintptr_t kAlignment = 512;  // of every block that an allocator hands out

struct Entry {
  PendingWork work;
  std::uint64_t id = 0;
  std::uintptr_t first = 0, end = 0;
  std::atomic<bool> superseded{false};
  std::mutex running;  // one thread goes on with it at a time
  Progress progress = Progress::waiting;
};
using Entries = std::vector<std::shared_ptr<Entry>>;

struct State {
  std::mutex mutex;
  std::atomic<std::size_t> count{0};  // without the lock: almost always 0
  Entries entries;                    // in the order of issue
  std::uint64_t next_id = 1;
  std::map<const void*, std::set<std::uint64_t>> waits;  // of streams and events
};

// Never destroyed: programs copy in their own destructors.
State& state() {
  static auto* const kState = new State;  // NOLINT(cppcoreguidelines-owning-memory)
  return *kState;
}

// Writing the result is itself an access to memory.
thread_local bool going_on = false;

bool nothing_to_do() { return state().count == 0 || going_on; }

template <typename Choose>
Entries chosen(const Choose& choose) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Entries found;
  std::ranges::copy_if(s.entries, std::back_inserter(found), [&](const auto& entry) { return choose(*entry); });
  return found;
}

void remove(const Entry& done) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.count -= std::erase_if(s.entries, [&](const auto& entry) { return entry.get() == &done; });
  for (auto waits = s.waits.begin(); waits != s.waits.end();) {
    waits->second.erase(done.id);
    waits = waits->second.empty() ? s.waits.erase(waits) : std::next(waits);
  }
}

Progress go_on(Entry& entry, bool wait, bool reports) {
  std::unique_lock lock(entry.running, std::defer_lock);
  if (wait) {
    lock.lock();
  } else if (!lock.try_lock()) {
    return Progress::waiting;
  }
  if (entry.progress == Progress::waiting) {
    going_on = true;
    entry.progress = entry.work.go_on(wait, !entry.superseded);
    going_on = false;
  }
  if (entry.progress == Progress::done || (entry.progress == Progress::failed && reports)) remove(entry);
  return entry.progress;
}

Status settle(const Entries& entries, bool wait, bool reports = true) {
  Status status = Status::success;
  for (const auto& entry : entries) {
    const Progress progress = go_on(*entry, wait, reports);
    if (progress == Progress::failed) return Status::unknown;
    if (progress == Progress::waiting) status = Status::not_ready;
  }
  return status;
}

Entries waited_for(const void* stream_or_event) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto waits = s.waits.find(stream_or_event);
  Entries found;
  if (waits == s.waits.end()) return found;
  std::ranges::copy_if(s.entries, std::back_inserter(found),
                       [&](const auto& entry) { return waits->second.contains(entry->id); });
  return found;
}

}  // namespace

void add_pending(PendingWork work) {
  State& s = state();
  auto entry = std::make_shared<Entry>();
  entry->first = reinterpret_cast<std::uintptr_t>(work.address);
  entry->end = entry->first + static_cast<std::uintptr_t>(work.bytes);
  entry->work = std::move(work);
  const std::lock_guard lock(s.mutex);
  entry->id = s.next_id++;
  s.waits[entry->work.stream].insert(entry->id);
  s.entries.push_back(std::move(entry));
  ++s.count;
}

namespace {

Entries writing_to(const void* address, std::int64_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  const std::uintptr_t end = first + static_cast<std::uintptr_t>(bytes);
  return chosen([&](const Entry& entry) { return entry.first < end && first < entry.end; });
}

}  // namespace

Status settle_memory(const void* address, std::int64_t bytes) {
  return nothing_to_do() ? Status::success : settle(writing_to(address, bytes), true);
}

Status await_memory(const void* address, std::int64_t bytes) {
  return nothing_to_do() ? Status::success : settle(writing_to(address, bytes), true, false);
}

Status settle_owner(const void* owner) {
  if (nothing_to_do()) return Status::success;
  return settle(chosen([&](const Entry& entry) { return entry.work.owner == owner; }), true);
}

Status settle_waits(const void* stream_or_event) {
  return nothing_to_do() ? Status::success : settle(waited_for(stream_or_event), true);
}

Status settle_card(int card) {
  if (nothing_to_do()) return Status::success;
  return settle(chosen([&](const Entry& entry) { return entry.work.card == card; }), true);
}

Status settle_what_came(const void* stream_or_event) {
  return nothing_to_do() ? Status::success : settle(waited_for(stream_or_event), false);
}

// As contents.cpp has it: a pointer stands for the tensor from the last place where one can begin, and what begins
// behind it where none can begin belongs to it too.
void supersede(std::span<const void* const> pointers) {
  if (nothing_to_do()) return;
  for (const void* pointer : pointers) {
    if (pointer == nullptr) continue;
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    for (const auto& entry : chosen([&](const Entry& each) {
           const bool is_inside = address >= each.first / kAlignment * kAlignment && address < each.end;
           return is_inside || (address < each.first && each.first % kAlignment != 0);
         })) {
      entry->superseded = true;
    }
  }
}

void supersede_range(std::uintptr_t first, std::uintptr_t end) {
  if (nothing_to_do()) return;
  for (const auto& entry : chosen([&](const Entry& each) { return each.first < end && first < each.end; })) {
    entry->superseded = true;
  }
}

void supersede_all() { supersede_range(0, ~std::uintptr_t{0}); }

void pending_recorded(const Event* event, const Stream* stream) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto waits = s.waits.find(stream);
  if (waits == s.waits.end()) {
    s.waits.erase(event);
  } else {
    s.waits[event] = waits->second;
  }
}

void pending_gone(const void* stream_or_event) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.waits.erase(stream_or_event);
}

void wait_for_event(const Stream* stream, const Event* event) {
  if (state().count == 0) return;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto waits = s.waits.find(event);
  if (waits == s.waits.end()) return;
  const std::set<std::uint64_t> ids = waits->second;
  s.waits[stream].insert(ids.begin(), ids.end());
}

}  // namespace vramfit::phantom
