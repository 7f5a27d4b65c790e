#include "phantom/nccl/buffers.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error.h"
#include "phantom/core/contents.h"
#include "phantom/core/memory.h"
#include "phantom/core/record.h"
#include "phantom/core/session.h"

namespace vramfit::phantom {

namespace {

bool is_on_card(const void* address) {
  const auto block = find_block(address);
  return block && (block->kind == MemoryKind::device || block->kind == MemoryKind::virtual_range);
}

}  // namespace

std::byte* view(const void* address, std::int64_t bytes) {
  // Pages of a buffer that is only read are made too: host_view takes what it may write to.
  auto* const writable = const_cast<void*>(address);  // NOLINT(cppcoreguidelines-pro-type-const-cast)
  std::byte* const data = host_view(writable, bytes, session().settings.real_bytes);
  if (data == nullptr) {
    throw InputError(fmt::format("{} bytes at {} are not memory of a card, pinned or managed memory", bytes, address));
  }
  return data;
}

Knowledge knowledge_at(const void* address, std::int64_t bytes) {
  return is_on_card(address) ? knowledge_of(address, bytes) : Knowledge{};
}

void wrote(void* address, std::int64_t bytes, const Knowledge& knowledge) {
  if (is_on_card(address)) {
    written(address, bytes, knowledge);
  } else if (knowledge.invented_by != nullptr) {
    count_invented_read(bytes, *knowledge.invented_by);
  }
}

Contribution contribution(const Operation& operation, int receiver) {
  const std::int64_t bytes = operation.part_bytes();
  const auto* from = static_cast<const std::byte*>(operation.send) + send_offset(operation, receiver);
  const std::byte* const data = view(from, bytes);
  Contribution own{.data = std::vector<std::byte>(data, data + bytes), .knowledge = {}};
  if (is_on_card(from)) own.knowledge = read_known(from, bytes, own.data.data());
  if (operation.scale.empty()) return own;
  const Part scaled{own.data.data(), operation.scale.data()};
  reduce({.type = operation.reduction.type, .combine = Combine::sum}, {&scaled, 1}, operation.count, own.data.data());
  own.knowledge = own.knowledge & operation.scale_knowledge;
  return own;
}

void place(const Operation& operation, int sender, const Contribution& part) {
  auto* const to = static_cast<std::byte*>(operation.receive) + receive_offset(operation, sender);
  const auto bytes = static_cast<std::int64_t>(part.data.size());
  std::memcpy(view(to, bytes), part.data.data(), part.data.size());
  wrote(to, bytes, part.knowledge);
}

}  // namespace vramfit::phantom
