#include "phantom/generate/generated.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "phantom/core/contents.h"
#include "phantom/core/context.h"
#include "phantom/core/graph.h"
#include "phantom/core/memory.h"
#include "phantom/core/record.h"
#include "phantom/core/session.h"
#include "phantom/core/streams.h"
#include "phantom/core/trace.h"

namespace vramfit::phantom::generated {
namespace {

using Values = std::map<std::pair<std::string_view, int>, std::vector<std::byte>>;

struct Entry {
  bool made_here = false;  // others were made by hand-written functions
  Values values;
};

struct Handles {
  std::mutex mutex;
  std::map<const void*, Entry> alive;
};

// Never destroyed: libraries give handles back while the process ends.
Handles& handles() {
  static auto* all = new Handles;
  return *all;
}

// Callers may look into a handle only through the library, so its size is nobody's business; not empty, so that each
// has its own address.
struct Handle {
  long unused = 0;
};

// What the handle's ...SetStream was given; null for none.
const void* stream_given(const void* handle) {
  const std::lock_guard lock(handles().mutex);
  const auto found = handles().alive.find(handle);
  if (found == handles().alive.end()) return nullptr;
  for (const auto& [key, value] : found->second.values) {
    if (key.first.find("Stream") == std::string_view::npos || value.size() != sizeof(void*)) continue;
    const void* stream = nullptr;
    std::memcpy(&stream, value.data(), sizeof stream);
    return stream;
  }
  return nullptr;
}

}  // namespace

void computing_on(const void* stream) {
  advance();
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast): handles are not const
  if (stream != nullptr) submit_kernel(stream_of(const_cast<void*>(stream), 0));
}

void computing(const void* handle) { computing_on(stream_given(handle)); }

bool is_ours(const void* address) { return find_block(address).has_value(); }

void unknown_result(void* result, std::size_t bytes, const char* function) {
  std::memset(result, 0, bytes);
  count_uncertain_read(static_cast<std::int64_t>(bytes), function);
}

void succeed(int* verdict, std::int64_t count) {
  if (verdict == nullptr || count <= 0) return;
  if (is_ours(verdict)) {
    fill(verdict, 0, sizeof *verdict, count);
    touched_by_call(verdict);  // 0 is what programs expect to read, not what a card would be sure to say
  } else {
    std::fill_n(verdict, count, 0);
  }
}

bool is_on_card(const void* address) {
  const auto block = find_block(address);
  return block && (block->kind == MemoryKind::device || block->kind == MemoryKind::virtual_range);
}

void touch_address(const void* address) {
  touched_by_call(address);
  // A descriptor of ours: whatever pointers it was given.
  std::vector<const void*> within;
  {
    const std::lock_guard lock(handles().mutex);
    const auto found = handles().alive.find(address);
    if (found == handles().alive.end()) return;
    for (const auto& [key, value] : found->second.values) {
      if (value.size() != sizeof(void*)) continue;
      within.emplace_back();
      std::memcpy(&within.back(), value.data(), sizeof(void*));
    }
  }
  if (!within.empty()) touched(within);
}

void touch_all_if_on_card(const void* address) {
  if (is_on_card(address)) touched_everything();
}

void* new_handle() {
  auto* handle = new Handle;
  const std::lock_guard lock(handles().mutex);
  handles().alive[handle].made_here = true;
  return handle;
}

void delete_handle(const void* handle) {
  const std::lock_guard lock(handles().mutex);
  const auto found = handles().alive.find(handle);
  if (found == handles().alive.end()) return;
  if (found->second.made_here) delete static_cast<const Handle*>(handle);
  handles().alive.erase(found);
}

void store_bytes(const void* handle, const char* key, int index, std::span<const std::byte> value) {
  const std::lock_guard lock(handles().mutex);
  handles().alive[handle].values[{key, index}].assign(value.begin(), value.end());
}

void fetch_bytes(const void* handle, const char* key, int index, std::span<std::byte> value) {
  const std::lock_guard lock(handles().mutex);
  const auto of_handle = handles().alive.find(handle);
  if (of_handle == handles().alive.end()) return;
  const auto& values = of_handle->second.values;
  const auto found = values.find({key, index});
  if (found != values.end() && found->second.size() == value.size()) {
    std::ranges::copy(found->second, value.begin());
  }
}

void unknown(const char* what) {
  count_unsupported(what);
  if (tracing()) trace_name("unsupported", what);
}

std::int64_t workspace(const char* what, std::int64_t bound_bytes, bool is_kept) {
  count_workspace(what, bound_bytes, is_kept);
  if (tracing()) trace_name("workspace", what);
  if (bound_bytes <= 0 || is_kept || !session().settings.bounds_workspaces) return 0;
  // An algorithm that finds no room is one that callers do without: PyTorch goes on to the next.
  return std::min(bound_bytes, memory_info(current_card()).free_bytes / kPageBytes * kPageBytes);
}

}  // namespace vramfit::phantom::generated
