// What this process leaves for the report: process.PID.record (base/process/process_record.h), which is current at any
// moment from the first use of a card on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "phantom/core/visibility.h"

namespace vramfit::phantom {

PHANTOM_CORE void count_out_of_memory(int card, std::int64_t asked_bytes, std::int64_t free_bytes);
PHANTOM_CORE void count_uncertain_read(std::int64_t bytes, std::string_view place);
/// Of what a collective with ghosts gave, by that collective.
PHANTOM_CORE void count_invented_read(std::int64_t bytes, std::string_view collective);
/// Of values that rest on assumptions (bits of values/core.h), or, with -1, of unknown ones that the program was given
/// nevertheless. `what` says how and where.
void count_assumed_read(std::int64_t assumptions, bool steers, std::int64_t bytes, const std::string& what);
PHANTOM_CORE void count_ghost_answer(std::string_view what);
PHANTOM_CORE void count_unsupported(const char* function);
/// A library asked for memory to work in, whose size only the real one knows: at most `bound_bytes`, or -1 if there is
/// no bound. Each of those that are kept counts, of others the largest.
PHANTOM_CORE void count_workspace(std::string_view what, std::int64_t bound_bytes, bool is_kept);
PHANTOM_CORE void add_escape(std::string_view what);
/// After every change of a card's used bytes by this process.
void count_used(int card, std::int64_t used_bytes, std::int64_t outside_bytes, bool is_allocation);
/// Of the program's caching allocator, on one card.
void count_peaks(int card, std::int64_t requested_bytes, std::int64_t allocated_bytes);
/// Managed memory that was taken, or given back (negative). No card has to hold it.
void count_managed(int card, std::int64_t bytes);

}  // namespace vramfit::phantom
