// What device memory holds. Copies and fills of up to `real_bytes` are real, larger ones only booked, and kernels write
// what nobody knows: so each read is either certain or counted. Of a rank played alone, so is what ghosts were taken to
// have sent: it is there, but no rank computed it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "phantom/core/status.h"
#include "phantom/core/visibility.h"

namespace vramfit::phantom {

struct Knowledge {
  bool is_known = true;                      // copied, filled or computed since a call last got a pointer into it
  const std::string* invented_by = nullptr;  // the collective with ghosts that it came from; of `inventor`
  std::uint32_t assumptions = 0;             // that it rests on: bits of values/core.h
  bool is_certain() const { return is_known && invented_by == nullptr && assumptions == 0; }
};

/// Of what is made of both.
inline Knowledge operator&(const Knowledge& a, const Knowledge& b) {
  return {.is_known = a.is_known && b.is_known,
          .invented_by = a.invented_by != nullptr ? a.invented_by : b.invented_by,
          .assumptions = a.assumptions | b.assumptions};
}

/// The one string of this text, which stays; after the first 32, "another collective".
PHANTOM_CORE const std::string* inventor(std::string_view text);

/// Any direction: host or device on either side.
PHANTOM_CORE Status copy(void* target, const void* source, std::int64_t bytes);
/// Rows of `width` bytes, each side with its pitch.
PHANTOM_CORE Status copy_rows(void* target, std::int64_t target_pitch, const void* source, std::int64_t source_pitch,
                              std::int64_t width, std::int64_t rows);
/// Repeats a value of 1, 2 or 4 bytes.
PHANTOM_CORE Status fill(void* target, std::uint32_t value, int value_bytes, std::int64_t count);

/// A kernel, library call or collective got these pointers: what is known of their blocks no longer holds. `by`: the
/// kernel's name, for the report.
PHANTOM_CORE void touched(std::span<const void* const> pointers, std::string_view by = {});
/// The kernel that last got this very pointer, outside of operations, unless something else was written there since;
/// null if there is none.
PHANTOM_CORE const std::string* writer_of(const void* address);
/// What lies there is unknown now, because of that kernel.
PHANTOM_CORE void written_unknown(void* address, std::int64_t bytes, std::string_view by);
PHANTOM_CORE void touched_by_call(const void* pointer);
/// A launch whose parameters could not be read: nothing known before holds.
PHANTOM_CORE void touched_everything();

/// Of a range on a card.
PHANTOM_CORE Knowledge knowledge_of(const void* address, std::int64_t bytes);
inline bool is_certain(const void* address, std::int64_t bytes) { return knowledge_of(address, bytes).is_certain(); }

/// Host access to a device range, for small collectives and computed values: pages are made. Null if it is larger than
/// `limit_bytes` or not ours.
PHANTOM_CORE std::byte* host_view(void* address, std::int64_t bytes, std::int64_t limit_bytes);
/// Copies what is known of such a range, zeros for the rest.
PHANTOM_CORE Knowledge read_known(const void* address, std::int64_t bytes, std::byte* out);
/// After a small collective wrote through host_view: what is known of what it was made of.
PHANTOM_CORE void written(void* address, std::int64_t bytes, const Knowledge& knowledge);

/// After an operation (operations.h): what it wrote there, in place of what was still to come.
void written_by_operation(void* address, std::int64_t bytes, const Knowledge& knowledge);

/// Memory goes back: pages and knowledge are dropped. Used by memory.cpp.
void forget(std::uintptr_t address, std::int64_t bytes);

}  // namespace vramfit::phantom
