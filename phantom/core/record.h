// What this process leaves in process.PID.json for the report: written at the first use of a card, on out-of-memory,
// and at exit.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "phantom/core/visibility.h"

namespace vramfit::phantom {

/// {"schema": "vramfit/phantom-process@1", "pid", "rank" (from RANK, else null), "command", "ended": bool,
///  "cards": [{"card", "used_bytes", "peak_used_bytes", "outside_bytes", "allocations", "out_of_memory":
///  [{"asked_bytes", "free_bytes"}]}], "uncertain_reads": {"count", "bytes", "places": []}, "invented_reads": the same,
///  "assumed_reads": [{"what": "item at train.py:12", "steers": bool, "assumptions": bits of values/core.h or -1,
///  "count", "bytes"}], "ghost_answers", "ghost_places": [],
///  "unsupported": {name: count}, "escapes": []}
PHANTOM_CORE void write_record(bool ended);

PHANTOM_CORE void count_out_of_memory(int card, std::int64_t asked_bytes, std::int64_t free_bytes);
PHANTOM_CORE void count_uncertain_read(std::int64_t bytes, std::string_view place);
/// Of what a collective with ghosts gave, by that collective.
PHANTOM_CORE void count_invented_read(std::int64_t bytes, std::string_view collective);
/// Of values that rest on assumptions (bits of values/core.h), or, with -1, of unknown ones that the program was given
/// nevertheless. `what` says how and where.
void count_assumed_read(std::int64_t assumptions, bool steers, std::int64_t bytes, const std::string& what);
PHANTOM_CORE void count_ghost_answer(std::string_view what);
PHANTOM_CORE void count_unsupported(const char* function);
PHANTOM_CORE void add_escape(std::string_view what);
/// After every change of a card's used bytes by this process.
void count_used(int card, std::int64_t used_bytes, std::int64_t outside_bytes, bool is_allocation);

}  // namespace vramfit::phantom
