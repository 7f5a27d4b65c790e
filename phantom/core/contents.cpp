#include "phantom/core/contents.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "phantom/core/graph.h"
#include "phantom/core/memory.h"
#include "phantom/core/operations.h"
#include "phantom/core/pending.h"
#include "phantom/core/record.h"
#include "phantom/core/session.h"

namespace vramfit::phantom {

namespace {

using Address = std::uintptr_t;

constexpr Address kAlignment = 512;  // of every block that an allocator hands out
constexpr std::size_t kMostInventors = 32;
constexpr std::size_t kMostWriters = 4096, kMostNames = 256;  // beyond, the next ones begin anew, or have no name

struct Block {
  Address end = 0;
  const std::string* invented_by = nullptr;
  std::uint32_t assumptions = 0;
};

struct State {
  std::mutex mutex;
  std::set<Address> pages;         // by number: those that can be read and written here
  std::map<Address, Block> known;  // by first address: what copies and fills made, a block each
  std::set<std::string> inventors;
  std::map<Address, const std::string*> writers;  // of what is unknown, by the pointer that a kernel got
  std::set<std::string, std::less<>> names;       // of kernels
};

// Never destroyed: programs copy in their own destructors.
State& state() {
  static auto* const kState = new State;  // NOLINT(cppcoreguidelines-owning-memory)
  return *kState;
}

Address number(const void* address) { return reinterpret_cast<Address>(address); }

enum class Side { host, device, managed };

Side side_of(const void* address) {
  const auto block = find_block(address);
  if (!block) return Side::host;
  if (block->kind == MemoryKind::device || block->kind == MemoryKind::virtual_range) return Side::device;
  return block->kind == MemoryKind::managed ? Side::managed : Side::host;
}

bool make_pages(State& s, Address address, std::int64_t bytes) {
  const auto page_bytes = static_cast<Address>(kPageBytes);
  for (Address page = address / page_bytes; page <= (address + static_cast<Address>(bytes) - 1) / page_bytes; ++page) {
    if (s.pages.contains(page)) continue;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): a page's number becomes its address
    if (mprotect(reinterpret_cast<void*>(page * page_bytes), page_bytes, PROT_READ | PROT_WRITE) != 0) return false;
    s.pages.insert(page);
  }
  return true;
}

// The first known block that ends behind `address`.
std::map<Address, Block>::iterator first_behind(State& s, Address address) {
  auto next = s.known.upper_bound(address);
  if (next != s.known.begin() && std::prev(next)->second.end > address) --next;
  return next;
}

void cut(State& s, Address first, Address end) {
  for (auto block = first_behind(s, first); block != s.known.end() && block->first < end;) {
    const auto [start, whole] = *block;
    block = s.known.erase(block);
    if (start < first) s.known.emplace(start, Block{first, whole.invented_by, whole.assumptions});
    if (whole.end > end) s.known.emplace(end, whole);
  }
}

void set_known(State& s, Address first, std::int64_t bytes, const Knowledge& knowledge) {
  const Address end = first + static_cast<Address>(bytes);
  cut(s, first, end);
  s.writers.erase(s.writers.lower_bound(first), s.writers.lower_bound(end));
  if (knowledge.is_known) s.known.emplace(first, Block{end, knowledge.invented_by, knowledge.assumptions});
}

Knowledge known(State& s, Address first, std::int64_t bytes) {
  const Address end = first + static_cast<Address>(bytes);
  Knowledge knowledge{.is_known = false};
  for (auto block = first_behind(s, first); block != s.known.end() && block->first <= first; ++block) {
    if (knowledge.invented_by == nullptr) knowledge.invented_by = block->second.invented_by;
    knowledge.assumptions |= block->second.assumptions;
    knowledge.is_known = block->second.end >= end;
    if (knowledge.is_known) break;
    first = block->second.end;
  }
  return knowledge;
}

void count_read(std::int64_t bytes, const Knowledge& knowledge) {
  if (!knowledge.is_known) {
    count_uncertain_read(bytes, "copy to the host");
  } else if (knowledge.invented_by != nullptr) {
    count_invented_read(bytes, *knowledge.invented_by);
  } else if (knowledge.assumptions != 0 && !is_in_operation()) {  // within one, its observer says who reads
    count_assumed_read(knowledge.assumptions, false, bytes, "copy to the host");
  }
}

// A block is what lies side by side: a kernel that got a pointer into it may write all of it. What begins behind the
// pointer but not where an allocation can begin belongs to the same tensor.
// It ends with the block that the card gave: `base` and `end`.
void touch(State& s, Address address, Address base, Address end) {
  auto block = first_behind(s, address);
  while (block != s.known.begin() && block != s.known.end() && std::prev(block)->second.end == block->first &&
         std::prev(block)->first >= base) {
    --block;
  }
  Address reached = address;
  while (block != s.known.end() && block->first < end && (block->first <= reached || block->first % kAlignment != 0)) {
    reached = std::max(reached, block->second.end);
    block = s.known.erase(block);
  }
}

void note_writer(State& s, Address address, std::string_view by) {
  auto name = s.names.find(by);
  if (name == s.names.end()) {
    if (s.names.size() >= kMostNames) return;
    name = s.names.emplace(by).first;
  }
  if (s.writers.size() >= kMostWriters) s.writers.clear();
  s.writers[address] = &*name;
}

// A read of what a kernel wrote: nobody computed it, and what lies there is another tensor's. Zeros are the same answer
// whatever the addresses were.
void copy_known(State& s, void* target, const void* source, std::int64_t bytes) {
  const Address first = number(source), end = first + static_cast<Address>(bytes);
  auto* out = static_cast<std::byte*>(target);
  std::memset(out, 0, static_cast<std::size_t>(bytes));
  for (auto block = first_behind(s, first); block != s.known.end() && block->first < end; ++block) {
    const Address start = std::max(block->first, first), stop = std::min(block->second.end, end);
    std::memcpy(out + (start - first), static_cast<const std::byte*>(source) + (start - first), stop - start);
  }
}

Status book(void* target, const void* source, std::int64_t bytes, Side to, Side from) {
  if (to == Side::host && from == Side::device) count_uncertain_read(bytes, "copy to the host, larger than real_bytes");
  if (to == Side::device) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    set_known(s, number(target), bytes, {.is_known = false});
  }
  static_cast<void>(source);
  return Status::success;
}

// Both sides can be reached: device pages are made where there are none.
Status move(void* target, const void* source, std::int64_t bytes, Side to, Side from) {
  Knowledge knowledge;
  {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (to == Side::device && !make_pages(s, number(target), bytes)) return Status::invalid_value;
    if (from == Side::device && !make_pages(s, number(source), bytes)) return Status::invalid_value;
    if (from == Side::device) knowledge = known(s, number(source), bytes);
    if (knowledge.is_known || to != Side::host) {
      std::memmove(target, source, static_cast<std::size_t>(bytes));
    } else {
      copy_known(s, target, source, bytes);
    }
    if (to == Side::device) set_known(s, number(target), bytes, knowledge);
  }
  if (to == Side::host) count_read(bytes, knowledge);
  return Status::success;
}

}  // namespace

const std::string* inventor(std::string_view text) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const bool is_full = s.inventors.size() >= kMostInventors && !s.inventors.contains(std::string(text));
  return &*s.inventors.emplace(is_full ? "another collective" : text).first;
}

Status copy(void* target, const void* source, std::int64_t bytes) {
  if (bytes < 0) return Status::invalid_value;
  if (bytes == 0 || target == source) return Status::success;
  if (target == nullptr || source == nullptr) return Status::invalid_value;
  for (const void* address : {source, static_cast<const void*>(target)}) {
    if (const Status status = settle_memory(address, bytes); status != Status::success) return status;
  }
  const Side to = side_of(target), from = side_of(source);
  if (to == Side::host && from == Side::device && take_answer(target, bytes)) return Status::success;
  const bool reaches_card = to == Side::device || from == Side::device;
  if (reaches_card && bytes > real_bytes_here()) return book(target, source, bytes, to, from);
  return move(target, source, bytes, to, from);
}

Status copy_rows(void* target, std::int64_t target_pitch, const void* source, std::int64_t source_pitch,
                 std::int64_t width, std::int64_t rows) {
  for (std::int64_t row = 0; row < rows; ++row) {
    const Status status = copy(static_cast<std::byte*>(target) + row * target_pitch,
                               static_cast<const std::byte*>(source) + row * source_pitch, width);
    if (status != Status::success) return status;
  }
  return Status::success;
}

Status fill(void* target, std::uint32_t value, int value_bytes, std::int64_t count) {
  const std::int64_t bytes = count * value_bytes;
  if (bytes < 0) return Status::invalid_value;
  if (bytes == 0) return Status::success;
  if (const Status status = settle_memory(target, bytes); status != Status::success) return status;
  const Side to = side_of(target);
  if (to == Side::device && bytes > real_bytes_here()) return book(target, nullptr, bytes, to, Side::host);
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (to == Side::device && !make_pages(s, number(target), bytes)) return Status::invalid_value;
  auto* out = static_cast<std::byte*>(target);
  for (std::int64_t n = 0; n < count && value_bytes > 1; ++n)
    std::memcpy(out + n * value_bytes, &value, static_cast<std::size_t>(value_bytes));
  if (value_bytes == 1) std::memset(target, static_cast<int>(value), static_cast<std::size_t>(bytes));
  if (to == Side::device) set_known(s, number(target), bytes, {});
  return Status::success;
}

void touched(std::span<const void* const> pointers, std::string_view by) {
  if (launch_in_operation()) return;
  supersede(pointers);
  note_touched(pointers);
  State& s = state();
  const bool is_named = !by.empty() && session().settings.computes_values;  // otherwise nobody asks
  {
    const std::lock_guard lock(s.mutex);
    if (s.known.empty() && !is_named) return;
  }
  // Blocks are looked up before the lock is taken: memory that is freed takes the two locks the other way round.
  for (const void* pointer : pointers) {
    const auto block = pointer == nullptr ? std::nullopt : find_block(pointer);
    if (!block) continue;
    const std::lock_guard lock(s.mutex);
    touch(s, number(pointer), block->base, block->base + static_cast<Address>(block->bytes));
    if (is_named) note_writer(s, number(pointer), by);
  }
}

const std::string* writer_of(const void* address) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto found = s.writers.find(number(address));
  return found == s.writers.end() ? nullptr : found->second;
}

void written_unknown(void* address, std::int64_t bytes, std::string_view by) {
  written_by_operation(address, bytes, {.is_known = false});
  State& s = state();
  const std::lock_guard lock(s.mutex);
  note_writer(s, number(address), by);
}

void touched_by_call(const void* pointer) { touched({&pointer, 1}); }

void touched_everything() {
  if (launch_in_operation()) return;
  supersede_all();
  note_touched_everything();
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.known.clear();
}

Knowledge knowledge_of(const void* address, std::int64_t bytes) {
  await_memory(address, bytes);
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return known(s, number(address), bytes);
}

std::byte* host_view(void* address, std::int64_t bytes, std::int64_t limit_bytes) {
  if (bytes <= 0 || bytes > limit_bytes) return nullptr;
  const auto block = find_block(address);
  if (!block || await_memory(address, bytes) != Status::success) return nullptr;
  const Address end = number(address) + static_cast<Address>(bytes);
  if (end > block->base + static_cast<Address>(block->bytes)) return nullptr;
  if (side_of(address) == Side::device) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (!make_pages(s, number(address), bytes)) return nullptr;
  }
  return static_cast<std::byte*>(address);
}

Knowledge read_known(const void* address, std::int64_t bytes, std::byte* out) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  copy_known(s, out, address, bytes);
  return known(s, number(address), bytes);
}

void written(void* address, std::int64_t bytes, const Knowledge& knowledge) {
  await_memory(address, bytes);
  State& s = state();
  const std::lock_guard lock(s.mutex);
  set_known(s, number(address), bytes, knowledge);
}

void written_by_operation(void* address, std::int64_t bytes, const Knowledge& knowledge) {
  supersede_range(number(address), number(address) + static_cast<Address>(bytes));
  State& s = state();
  const std::lock_guard lock(s.mutex);
  set_known(s, number(address), bytes, knowledge);
}

void forget(Address address, std::int64_t bytes) {
  supersede_range(address, address + static_cast<Address>(bytes));
  State& s = state();
  const std::lock_guard lock(s.mutex);
  set_known(s, address, bytes, {.is_known = false});
  const auto page_bytes = static_cast<Address>(kPageBytes);
  const Address end_page = (address + static_cast<Address>(bytes)) / page_bytes;
  auto page = s.pages.lower_bound((address + page_bytes - 1) / page_bytes);
  while (page != s.pages.end() && *page < end_page) {
    void* start = reinterpret_cast<void*>(*page * page_bytes);  // NOLINT(performance-no-int-to-ptr)
    madvise(start, page_bytes, MADV_DONTNEED);
    mprotect(start, page_bytes, PROT_NONE);
    page = s.pages.erase(page);
  }
}

}  // namespace vramfit::phantom
