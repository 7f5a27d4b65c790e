#include "phantom/core/shared_memory.h"

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>

#include "phantom/core/memory.h"

namespace vramfit::phantom {

namespace {

constexpr std::uint64_t kMemoryMagic = 0x76724D656D6F7279, kEventMagic = 0x76724576656E7420;

struct Content {
  std::uint64_t magic = 0;
  std::int64_t process = 0;
  std::uint64_t base = 0;
  std::int64_t bytes = 0;
};
static_assert(sizeof(Content) <= sizeof(SharedHandle));

struct Opened {
  std::int64_t bytes = 0;
  int users = 0;
};

struct State {
  std::mutex mutex;
  std::map<std::pair<std::int64_t, std::uint64_t>, void*> by_owner;  // process and its address: where it lies here
  std::map<void*, Opened> opened;
};

State& state() {
  static auto* const kState = new State;  // NOLINT(cppcoreguidelines-owning-memory): outlives destructors
  return *kState;
}

Content content_of(const SharedHandle& handle) {
  Content content;
  std::memcpy(&content, handle.data(), sizeof content);
  return content;
}

void put(SharedHandle* handle, const Content& content) {
  handle->fill(std::byte{0});
  std::memcpy(handle->data(), &content, sizeof content);
}

std::int64_t whole_pages(std::int64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

}  // namespace

Status share_memory(const void* address, SharedHandle* handle) {
  const auto block = find_block(address);
  if (!block || block->kind != MemoryKind::device) return Status::invalid_value;
  put(handle, {kMemoryMagic, getpid(), block->base, block->bytes});
  return Status::success;
}

Status open_shared_memory(const SharedHandle& handle, void** address) {
  *address = nullptr;
  const Content content = content_of(handle);
  if (content.magic != kMemoryMagic || content.bytes <= 0) return Status::invalid_value;
  if (content.process == getpid()) return Status::invalid_context;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  void*& place = s.by_owner[{content.process, content.base}];
  if (place == nullptr) {
    const Status status = reserve_range(whole_pages(content.bytes), 0, &place);
    if (status != Status::success) return status;
    s.opened[place] = {whole_pages(content.bytes), 0};
  }
  ++s.opened[place].users;
  *address = place;
  return Status::success;
}

Status close_shared_memory(void* address) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const auto found = s.opened.find(address);
  if (found == s.opened.end()) return Status::invalid_value;
  if (--found->second.users > 0) return Status::success;
  const std::int64_t bytes = found->second.bytes;
  s.opened.erase(found);
  std::erase_if(s.by_owner, [&](const auto& entry) { return entry.second == address; });
  return free_range(address, bytes);
}

Status share_event(const Event* event, SharedHandle* handle) {
  if (event == nullptr) return Status::invalid_handle;
  put(handle, {kEventMagic, getpid(), 0, 0});
  return Status::success;
}

Status open_shared_event(const SharedHandle& handle, int card, Event** event) {
  const Content content = content_of(handle);
  if (content.magic != kEventMagic) return Status::invalid_value;
  if (content.process == getpid()) return Status::invalid_context;
  *event = create_event(card, 0);
  return Status::success;
}

}  // namespace vramfit::phantom
