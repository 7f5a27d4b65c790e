#include "executor/meter/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/error.h"
#include "executor/meter/cuda_arena.h"
#include "executor/meter/meter.h"
#include "job/allocator/allocator_settings.h"

namespace vramfit {

namespace {

constexpr std::int64_t kBlockAlignment = 512;

thread_local Arena* of_thread = nullptr;

/// Leaked: memory is freed after static destructors have run.
struct Registry {
  std::mutex mutex;
  std::atomic<std::size_t> count{0};
  std::vector<std::shared_ptr<Arena>> arenas;  // also those that only memory still belongs to
  std::vector<const Arena*> left;
};

Registry& registry() {
  static auto* const kRegistry = new Registry;
  return *kRegistry;
}

/// With the mutex held. What it returns is destroyed without it: that gives memory back to another allocator.
std::shared_ptr<Arena> remove_if_done(Registry& all, const Arena* arena) {
  const auto left = std::ranges::find(all.left, arena);
  if (left == all.left.end() || !arena->is_empty()) return nullptr;
  all.left.erase(left);
  const auto found = std::ranges::find(all.arenas, arena, [](const auto& kept) { return kept.get(); });
  std::shared_ptr<Arena> done = std::move(*found);
  all.arenas.erase(found);
  all.count = all.arenas.size();
  return done;
}

/// Its owner is done with it.
void leave(const Arena* arena) {
  Registry& all = registry();
  std::shared_ptr<Arena> done;
  {
    const std::scoped_lock lock(all.mutex);
    all.left.push_back(arena);
    done = remove_if_done(all, arena);
  }
}

std::shared_ptr<Arena> open_cpu_arena(arena::Script script) {
  const std::int64_t bytes = std::max(kBlockAlignment, round_up(script.size.n, kBlockAlignment));
  Meter::instance().check_budget(Bytes{bytes});
  void* base = std::aligned_alloc(kBlockAlignment, static_cast<std::size_t>(bytes));
  if (base == nullptr) {
    throw OutOfMemory(fmt::format("out of memory: the machine could not allocate the arena's block of {}",
                                  format_size(Bytes{bytes})));
  }
  return Arenas::add(std::move(script), {.base = base, .release = [](void* held) { std::free(held); }});
}

}  // namespace

Arena::~Arena() { memory_.release(memory_.base); }

void Arena::begin_section(std::size_t section) {
  section_ = script_.sections.at(section);
  first_ = count_ = next_ = 0;
  times_ = 0;
}

void Arena::begin_instruction(std::size_t count, std::int64_t times) {
  first_ += count_;
  count_ = count;
  times_ = times;
  next_ = 0;
}

bool Arena::is_free(std::int64_t from, std::int64_t to) const {
  const auto after = tenants_.lower_bound(from);
  if (after != tenants_.end() && after->first < to) return false;
  return after == tenants_.begin() || std::prev(after)->first + std::prev(after)->second <= from;
}

void Arena::note_off_script(Bytes bytes, const char* why) {
  if (report_.off_script++ > 0) return;
  report_.first_off_script = fmt::format("{} bytes, {}", bytes.n, why);
}

void* Arena::take(Bytes bytes) {
  const std::scoped_lock lock(mutex_);
  if (count_ == 0 || next_ >= count_ * static_cast<std::size_t>(times_)) {
    note_off_script(bytes, "where the script has no request");
    return nullptr;
  }
  const arena::Script::Request& request = script_.requests.at(section_ + first_ + next_ % count_);
  if (request.bytes != bytes) {
    note_off_script(bytes, fmt::format("where the script has {}", request.bytes.n).c_str());
    return nullptr;
  }
  ++next_;
  const std::int64_t from = request.offset.n, taken = round_up(bytes.n, script_.granule.n);
  if (!is_free(from, from + taken)) {
    note_off_script(bytes, "whose place in the script was not free yet");
    return nullptr;
  }
  tenants_.emplace(from, taken);
  ++report_.requests;
  live_.n += taken;
  peak_ = std::max(peak_, live_);
  return static_cast<std::byte*>(memory_.base) + from;
}

bool Arena::contains(const void* address) const {
  const auto at = reinterpret_cast<std::uintptr_t>(address), base = reinterpret_cast<std::uintptr_t>(memory_.base);
  return at >= base && at - base < static_cast<std::uintptr_t>(script_.size.n);
}

bool Arena::give_back(void* address) {
  if (!contains(address)) return false;
  const std::scoped_lock lock(mutex_);
  const auto tenant = tenants_.find(static_cast<std::byte*>(address) - static_cast<std::byte*>(memory_.base));
  if (tenant == tenants_.end()) return false;
  live_.n -= tenant->second;
  if (memory_.freed) memory_.freed(address, Bytes{tenant->second});
  tenants_.erase(tenant);
  return true;
}

MeasuredArena Arena::report() const {
  const std::scoped_lock lock(mutex_);
  MeasuredArena report = report_;
  report.bytes = script_.size;
  return report;
}

Bytes Arena::take_peak() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(peak_, live_);
}

Bytes Arena::live() const {
  const std::scoped_lock lock(mutex_);
  return live_;
}

bool Arena::is_empty() const {
  const std::scoped_lock lock(mutex_);
  return tenants_.empty();
}

std::shared_ptr<Arena> Arenas::add(arena::Script script, Arena::Memory memory) {
  auto arena = std::make_shared<Arena>(std::move(script), std::move(memory));
  Registry& all = registry();
  const std::scoped_lock lock(all.mutex);
  all.arenas.push_back(arena);
  all.count = all.arenas.size();
  return {arena.get(), leave};
}

void* Arenas::take(Bytes bytes) { return of_thread == nullptr ? nullptr : of_thread->take(bytes); }

bool Arenas::contains(const void* address) {
  Registry& all = registry();
  if (all.count == 0) return false;
  const std::scoped_lock lock(all.mutex);
  return std::ranges::any_of(all.arenas, [&](const auto& arena) { return arena->contains(address); });
}

bool Arenas::give_back(void* address) {
  Registry& all = registry();
  if (all.count == 0) return false;
  std::shared_ptr<Arena> done;
  {
    const std::scoped_lock lock(all.mutex);
    const auto owner = std::ranges::find_if(all.arenas, [&](const auto& arena) { return arena->give_back(address); });
    if (owner == all.arenas.end()) return false;
    done = remove_if_done(all, owner->get());
  }
  return true;
}

ArenaScope::ArenaScope(Arena* arena) : saved_(std::exchange(of_thread, arena)) {}

ArenaScope::~ArenaScope() { of_thread = saved_; }

std::shared_ptr<Arena> open_arena(const std::string& allocator, const program::Program& lowered, DeviceKind device) {
  if (!is_arena(allocator)) return nullptr;
  if (device == DeviceKind::cuda) return open_cuda_arena(arena::script_of(lowered, arena::kDeviceGranule));
  return open_cpu_arena(arena::script_of(lowered, arena::kCpuGranule));
}

}  // namespace vramfit
